"""Describe a trainer's arguments: TRL's help and defaults, the values that we set, and those set elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import compose
from rlhf_cli.config.conf_folders import caption
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import RESERVED_ARGS, RESERVED_WITH_A_CRITIC
from rlhf_cli.project.function_source import sentences_about
from rlhf_cli.project.reward_reference import option_file
from rlhf_cli.tables.former_names import FORMER_NAMES
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

COMPUTED_DEFAULTS: dict[str, object] = {
    "optim": "adamw_torch_fused",
    "loss_type": ["sigmoid"],
    "include_for_metrics": [],
}
"""Defaults that TRL and transformers compute, without a literal in their source; a contract test checks the list."""


@dataclass(frozen=True)
class TrainerArgument:
    """An argument of a trainer. `default` is TRL's, or None if there is none or it is computed.

    `home` is the key that sets it instead, or None if it is set under `trainer.args`. `ours` is the value that the conf
    files set, None if they do not set it. `config_class` is the class that defines it.
    """

    name: str
    type: str
    default: object
    choices: tuple[str, ...]
    text: str
    config_class: str
    home: str | None = None
    ours: JsonValue = None

    @property
    def key(self) -> str:
        """Return the key that sets it."""
        return self.home or f"trainer.args.{self.name}"


@dataclass(frozen=True)
class TrainerReference:
    """A trainer of the group `trainer`: its TRL class and its arguments, the most derived class's first."""

    name: str
    caption: str
    conf_file: Path
    trl: str
    has_critic: bool
    arguments: tuple[TrainerArgument, ...]


def trainer_reference(option: str) -> TrainerReference:
    """Describe `trainer=option`. Raise ConfigError if there is no such option."""
    file = option_file("trainer", option)
    chosen = section(compose([f"trainer={option}"]).tree, "trainer")
    ours = section(chosen, "args")
    arguments = tuple(replace(known, ours=ours.get(known.name)) for known in trainer_arguments(chosen))
    has_critic = chosen.get("baseline") == "critic"
    return TrainerReference(option, caption(file), file, str(chosen.get("trl")), has_critic, arguments)


def trainer_arguments(chosen: JsonTree) -> Iterator[TrainerArgument]:
    """Yield the arguments of a composed section `trainer`; none if it names no trainer of TRL's."""
    has_critic, trainer = chosen.get("baseline") == "critic", str(chosen.get("trl"))
    if trainer not in TRAINERS:
        return
    for name, field in PpoArgs.model_fields.items() if has_critic else ():
        kind = getattr(field.annotation, "__name__", str(field.annotation))
        yield TrainerArgument(name, kind, field.default, (), sentences_about(PpoArgs.__doc__, name), "PpoArgs")
    homes = RESERVED_WITH_A_CRITIC if has_critic else RESERVED_ARGS
    fields = trl_args.fields_of(trainer)
    owners = list(dict.fromkeys(known.owner for known in fields.values()))
    # The trainer's own arguments come first, then those that all have.
    for name, known in sorted(fields.items(), key=lambda item: -owners.index(item[1].owner)):
        default = COMPUTED_DEFAULTS.get(name) if known.default is None else known.default
        facts = (name, known.annotation, default, known.choices, known.text, known.owner)
        yield TrainerArgument(*facts, home=homes.get(name))


def about(arguments: Iterable[TrainerArgument], words: Sequence[str]) -> list[TrainerArgument]:
    """Return the arguments with all of `words`, matches in the name first; a former name (`lr`) finds today's."""
    wanted = [word.lower().replace("-", "_").removeprefix("trainer.args.") for word in words]
    row = FORMER_NAMES.get(wanted[0]) if len(wanted) == 1 else None
    keys = f"{row.today},{row.with_critic or ''}".split(",") if row is not None else []
    today = {key.partition("=")[0] for key in keys}

    def rank(argument: TrainerArgument) -> int:
        text = f"{argument.name} {argument.text} {argument.home or ''}".lower()
        is_found = all(word in text or word.replace("_", " ") in text for word in wanted)
        is_named = all(word in argument.name for word in wanted)
        ranks = (argument.key in today, argument.name in wanted, is_found and is_named, is_found, True)
        return ranks.index(True)

    return [known for known in sorted(arguments, key=rank) if rank(known) < 4]
