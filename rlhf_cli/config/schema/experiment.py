"""An experiment: all sections, validated strictly (`yes` is no boolean), and how to find the field of a dotted key."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from rlhf_cli.config.schema.model_and_data import Data, Model, Teacher
from rlhf_cli.config.schema.reward_sections import Advantages, Gate, Reward, RewardModel, Sampling, Truncation
from rlhf_cli.config.schema.run_sections import ON_OFF, Expectations, Guards, Launch, Run, StopRules, Sweep, Track, Warn
from rlhf_cli.config.schema.section import OFF, Section
from rlhf_cli.config.schema.trainer_sections import Critic, Environment, Environments, Kl, Rollout, Tool, Trainer
from rlhf_cli.tables.trl_values import TURN_TEXTS


class Experiment(Section):
    """An experiment: everything that one run needs to know.

    `seed` seeds all random numbers of the run. `rewards` maps names to rewards. `primary` is a gate on every other
    reward; null has none. `aggregate` says how the rewards are combined: `sum`, `normalize_then_sum` or a function
    of the user's. `advantages` names a function that makes the advantages; null leaves them to the trainer.
    `tools` maps names to functions that the model may call. `environment` is a class with a state for every rollout, or
    several by name. `rollout` names a function that generates; null leaves it to the trainer. `sampling` says which
    completions are kept, `profile` what is measured of the time: `phases` logs the share of each phase, `off` measures
    nothing. `stop` holds rules that end a run, `expect` results that it has to reach. The sections `critic`, `kl`,
    `teacher` and `reward_model` are null for trainers that do not use them. `sweep` is null unless `rlhf train -m`
    searches.
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
    advantages: Advantages | None = None
    tools: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], Tool] = Field(default_factory=dict)
    environment: Environments = None
    rollout: Rollout | None = None
    critic: Critic | None = None
    teacher: Teacher | None = None
    kl: Kl | None = None
    reward_model: RewardModel | None = None
    truncation: Truncation = Truncation()
    sampling: Sampling = Sampling()
    guards: Guards = Guards()
    stop: StopRules = None
    expect: Expectations = None
    warn: Annotated[Warn, ON_OFF] = Warn()
    profile: Annotated[Literal["phases", "off"], OFF] = "phases"
    launch: Launch
    track: Track
    run: Run
    sweep: Sweep | None = None

    @property
    def environments(self) -> dict[str | None, Environment]:
        """Return the environments by the name in the column `environment`; None is the only one, for all rows."""
        if isinstance(self.environment, dict):
            return {name: one for name, one in self.environment.items()}  # noqa: C416  a key may be None, too
        return {} if self.environment is None else {None: self.environment}

    @property
    def interacts(self) -> bool:
        """Return whether the model calls tools or an environment, or a function makes the rollouts."""
        return bool(self.tools) or self.environment is not None or self.rollout is not None

    @property
    def rollout_columns(self) -> list[str]:
        """Return the columns that a rollout function gives to rewards."""
        return [] if self.rollout is None else [*self.rollout.columns, TURN_TEXTS]

    @property
    def has_reference(self) -> bool:
        """Return whether the loss or the rewards compare the policy with its initial state."""
        trainer = self.trainer
        if trainer.row.copies_policy:
            return trainer.setting("teacher_model_kind") != "live"
        if self.kl is not None:
            return self.kl.where != "none"
        return trainer.row.generates and trainer.setting("beta") not in (0, 0.0, None)


def valid_keys(path: Sequence[int | str]) -> list[str]:
    """Return the keys of the section at a path; none if there is no section."""
    return _keys(section_at(path))


def possible_section(path: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the section at a path, also where a mapping of the user's names may stand instead."""
    return next((arm for arm in arms_of(_kind_at(path)) if _is_section(arm)), None)


def keys_of_section(path: Sequence[int | str]) -> list[str]:
    """Return the keys of the section at a path, also where a mapping of the user's names may stand instead."""
    return _keys(possible_section(path))


def section_at(path: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the section at a path, None for a value, a mapping of the user's names, or an unknown path."""
    return section_of(_kind_at(path))


def field_at(path: Sequence[int | str]) -> FieldInfo | None:
    """Return the field at a path, None if the schema has none there (the arguments of a function)."""
    section = _arm(_kind_at(path[:-1]), path[-1])
    if not _is_section(section):
        return None
    return next((field for name, field in section.model_fields.items() if path[-1] in (name, field.alias)), None)


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section that an annotation stands for, optional or not; None if it stands for none."""
    arm = _arm(annotation, "")
    return arm if _is_section(arm) else None


def arms_of(annotation: object, *, with_none: bool = False) -> list[object]:
    """Return the alternatives of a union annotation, without what `Annotated` adds and, by default, without None."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return arms_of(inner[0], with_none=with_none)
    if origin in (Union, types.UnionType):
        return [arm for part in inner for arm in arms_of(part, with_none=with_none)]
    return [] if annotation in (None, type(None)) and not with_none else [annotation]


def _kind_at(path: Sequence[int | str]) -> object:
    """Return the annotation at a path, `object` outside the schema."""
    kind: object = Experiment
    for part in path:
        kind = _arm(kind, part)
        if _is_section(kind):
            field = next((field for name, field in kind.model_fields.items() if part in (name, field.alias)), None)
            kind = field.annotation if field is not None else object
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif get_origin(kind) in (list, tuple):
            kind = get_args(kind)[0]
        else:
            kind = object
    return kind


def _arm(annotation: object, part: int | str) -> object:
    """Return the alternative of an annotation that can have an entry of this name: the list for 0, else the section."""
    arms = arms_of(annotation) or [annotation]
    by_number = [arm for arm in arms if get_origin(arm) in (list, tuple)]
    by_name = [arm for arm in arms if get_origin(arm) is dict or _is_section(arm)]
    # A name that is not a key of a section is one of the user's names.
    by_name.sort(key=lambda arm: _is_section(arm) and str(part) not in _keys(arm))
    return [*(by_number + by_name if str(part).isdigit() else by_name + by_number), *arms][0]


def _keys(section: type[BaseModel] | None) -> list[str]:
    return [] if section is None else [field.alias or name for name, field in section.model_fields.items()]


def _is_section(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
