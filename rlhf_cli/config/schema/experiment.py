"""Define an experiment, the sections of a configuration together, and look up the field behind a dotted key.

It is strict: an unknown key or a wrong type is an error. A weight is a number, a name is a string, `yes` is no boolean.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeGuard

from pydantic import BaseModel, BeforeValidator, Field
from pydantic.fields import FieldInfo

from rlhf_cli.config.schema.expect_section import Expectations, checked_expectations
from rlhf_cli.config.schema.launch_sections import Launch, Sweep
from rlhf_cli.config.schema.model_and_data import Data, Model
from rlhf_cli.config.schema.reward_sections import Gate, Reward, RewardModel, Truncation
from rlhf_cli.config.schema.run_sections import (
    Guards,
    Profile,
    Run,
    StopRules,
    Track,
    Warn,
    all_switches,
    checked_rules,
)
from rlhf_cli.config.schema.section import Section
from rlhf_cli.config.schema.trainer_sections import Critic, Kl, Trainer


class Experiment(Section):
    """An experiment, which holds everything one run needs to know.

    `seed` begins every random number of the run. `rewards` maps names to rewards. `primary` gates every other reward,
    null for none. `aggregate` says how rewards become one total: `sum`, `normalize_then_sum` or a function of the
    user's. `profile` says what is measured of where the time goes: `phases`, the share of each phase in every log
    event; `trace`, with that a few steps as torch's profiler sees them; `off`, nothing. The sections `critic`, `kl` and
    `reward_model` are null where the trainer reads no such section; `sweep` is null where `rlhf train -m` makes a grid
    and no search, and in every run of a sweep.
    """

    seed: int = Field(ge=0, lt=2**32)
    trainer: Trainer
    model: Model
    data: Data
    rewards: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")], Reward] = Field(
        default_factory=dict
    )
    primary: Gate | None = None
    aggregate: str = "sum"
    critic: Critic | None = None
    kl: Kl | None = None
    reward_model: RewardModel | None = None
    truncation: Truncation = Truncation()
    guards: Guards = Guards()
    stop: Annotated[StopRules, BeforeValidator(checked_rules)] = None
    expect: Annotated[Expectations, BeforeValidator(checked_expectations)] = None
    warn: Annotated[Warn, BeforeValidator(all_switches)] = Warn()
    profile: Profile = "phases"
    launch: Launch
    track: Track
    run: Run
    sweep: Sweep | None = None


def leaves(node: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of every entry of a composed tree, branches included; a list's keys are 0, 1, ..."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in entries:
        key = f"{prefix}.{name}" if prefix else str(name)
        yield key, value
        yield from leaves(value, key)


def valid_keys(path: Sequence[int | str]) -> list[str]:
    """Return the keys of the section that a path leads to; none where it leads to no section."""
    section = section_at(path)
    return list(_keys(section)) if section is not None else []


def section_at(path: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the section that a path leads to, None where it leads to a value, a map of the user's or nowhere."""
    section = _arm(_kind_at(path), "")
    return section if _is_section(section) else None


def field_at(path: Sequence[int | str]) -> FieldInfo | None:
    """Return the field that a path leads to, None where the schema has none there (the arguments of a function)."""
    section = _arm(_kind_at(path[:-1]), path[-1])
    return section.model_fields.get(str(path[-1])) if _is_section(section) else None


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section that an annotation stands for, optional or not; None where it stands for none."""
    arm = _arm(annotation, "")
    return arm if _is_section(arm) else None


def _kind_at(path: Sequence[int | str]) -> object:
    """Return the annotation that a path leads to, `object` where it leads out of the schema."""
    kind: object = Experiment
    for part in path:
        kind = _arm(kind, part)
        if _is_section(kind):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field is not None else object
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        elif typing.get_origin(kind) in (list, tuple):
            kind = typing.get_args(kind)[0]
        else:
            kind = object
    return kind


def _arm(annotation: object, part: int | str) -> object:
    """Return what of an optional or union annotation has an entry of that name: the list for 0, else the section."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _arm(typing.get_args(annotation)[0], part)
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    arms = [_arm(arm, part) for arm in typing.get_args(annotation) if arm is not type(None)]
    by_number = [arm for arm in arms if typing.get_origin(arm) in (list, tuple)]
    by_name = [arm for arm in arms if typing.get_origin(arm) is dict or _is_section(arm)]
    # A name that is no key of a section is one of the user's, where there may be such.
    by_name.sort(key=lambda arm: _is_section(arm) and str(part) not in _keys(arm))
    wanted = by_number + by_name if str(part).isdigit() else by_name + by_number
    return (wanted or arms)[0]


def _keys(section: type[BaseModel]) -> dict[str, None]:
    return dict.fromkeys(field.alias or name for name, field in section.model_fields.items())


def _is_section(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
