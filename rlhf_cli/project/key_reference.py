"""Describe keys, metrics and trainers' arguments, also in the JSON Schema, and find what is not default."""

from __future__ import annotations

import copy
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pydantic
from pydantic import BaseModel

from rlhf_cli.config import trl_args
from rlhf_cli.config.conf_folders import caption, shipped_page
from rlhf_cli.config.rules.trainer_rules import own_fields
from rlhf_cli.config.schema.experiment import Experiment, arms_of, keys_of_section, possible_section, section_of
from rlhf_cli.config.schema.model_and_data import Lora
from rlhf_cli.config.schema.run_sections import Warn
from rlhf_cli.config.schema.section import Section
from rlhf_cli.config.schema.trainer_sections import PpoArgs, Trainer
from rlhf_cli.config.trl_args import RESERVED_ARGS, RESERVED_WITH_A_CRITIC
from rlhf_cli.errors import ConfigError
from rlhf_cli.project.function_source import NO_DEFAULT, read_docstring, sentences_about
from rlhf_cli.project.reward_reference import option_file
from rlhf_cli.tables.former_names import FORMER_NAMES
from rlhf_cli.tables.metrics import FINDING_KINDS
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, JsonValue, leaves, section
from rlhf_cli.text.suggest import nearest

ANY_NAME = "NAME"  # placeholder in a key for a name that the user chooses, as in `rewards.NAME.weight`


@dataclass(frozen=True)
class KeyReference:
    """A key. `values` are its allowed values, empty if any value of its type is; `holds` are the keys below it.

    A key that maps the user's names (`rewards`) holds ANY_NAME. `text` contains the sentences in its section's
    docstring that name the key. `default` is a plain value, or NO_DEFAULT if the key is required.
    """

    key: str
    type: str
    default: object
    values: tuple[str, ...]
    text: str
    holds: tuple[str, ...]

    @property
    def is_branch(self) -> bool:
        """Return whether it has keys below it and no value of its own."""
        return (
            not self.values
            and set(self.type.split(" | ")) & {"number", "whole number", "text"} == set()
            and (bool(self.holds) or self.type.startswith("{"))
        )


def keys_below(key: str) -> list[KeyReference]:
    """Return the keys one level below a dotted key; the sections for ''; empty if the schema names none."""
    section = possible_section(_path(key))
    if section is None:
        return []
    found = [_of_field(section, name, f"{key}.{name}" if key else name) for name in keys_of_section(_path(key))]
    if section is Lora:
        for name in own_fields():
            field, text = trl_args.lora_fields()[name], f"`{name}` of peft.LoraConfig."
            below = f"{key}.{name}"
            found.append(KeyReference(below, field.annotation, field.default, field.choices, text, holds=()))
    return found


def key_reference(key: str) -> KeyReference | None:
    """Describe a dotted key, or return None if the schema does not have it (a function's argument, for example)."""
    path = _path(key)
    section = possible_section(path[:-1])
    if section is None or not path or str(path[-1]) not in keys_of_section(path[:-1]):
        return None
    return _of_field(section, str(path[-1]), key)


def all_keys(prefix: str = "") -> Iterator[KeyReference]:
    """Yield all keys of the configuration, each after its section, with ANY_NAME for names that the user chooses."""
    for reference in keys_below(prefix):
        yield reference
        if set(reference.holds) - {ANY_NAME}:
            yield from all_keys(reference.key)
        if ANY_NAME in reference.holds:
            yield from all_keys(f"{reference.key}.{ANY_NAME}")


def about_keys(words: Sequence[str]) -> list[KeyReference]:
    """Return the keys at or below a single word, else those that contain all words; all keys for none.

    A name that the user chooses, as in `rewards.brevity`, matches any name. Raise ConfigError if no key matches.
    """
    known = list(all_keys())
    if not words:
        return known
    typed = words[0].removesuffix(".")
    if len(words) == 1 and (below := [key for key in known if _is_at_or_below(key.key, typed)]):
        return [key for key in below if f"{key.key}.".startswith(f"{typed}.")] or below  # a key of one set is no name
    found = [key for key in known if _has_words(f"{key.key} {key.text} {key.type}", words)]
    if not found:
        close = nearest(typed, [key.key for key in known] + [key.key.rpartition(".")[2] for key in known])
        raise _none_found("key", words, close)
    return found


def _has_words(text: str, words: Sequence[str]) -> bool:
    return all(word.lower() in text.lower() for word in words)


def _none_found(what: str, words: Sequence[str], close: str | None) -> ConfigError:
    verb = f"rlhf list {what}s"
    got = f"no {what} has {' and '.join(map(repr, words))} in its name or meaning"
    return ConfigError(got, where=verb, hint=f"{verb} {close or ''}".strip())


def _is_at_or_below(key: str, typed: str) -> bool:
    """Return whether a key is the typed one or below it; ANY_NAME matches any name."""
    own, wanted = key.split("."), typed.split(".")
    return len(own) >= len(wanted) and all(part in (want, ANY_NAME) for part, want in zip(own, wanted, strict=False))


def _path(key: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in key.split(".")] if key else []


def _of_field(section: type[BaseModel], name: str, key: str) -> KeyReference:
    field = next(field for known, field in section.model_fields.items() if name in (field.alias, known))
    default: object = NO_DEFAULT
    if not field.is_required():
        default = field.get_default(call_default_factory=True, validated_data={})
        default = default.model_dump(mode="json") if isinstance(default, BaseModel) else default
    holds = tuple(keys_of_section(_path(key)))
    arms = arms_of(field.annotation)
    if any(typing.get_origin(arm) is dict and section_of(typing.get_args(arm)[1]) for arm in arms):
        holds = (*holds, ANY_NAME)
    values: list[str] = []
    for arm in arms:
        values += map(str, typing.get_args(arm)) if typing.get_origin(arm) is typing.Literal else ()
        values += ("true", "false") if arm is bool else ()
    return KeyReference(key, _type_text(field.annotation), default, tuple(values), key_text(section, name), holds)


def key_text(section: type[BaseModel], name: str) -> str:
    """Return the text about a key from its section's docstring or that of a base class; '' if there is none."""
    if section is Warn:
        return f"Says where this does not hold: {FINDING_KINDS[name]}."
    arms = arms_of(section.model_fields[name].annotation) if name in section.model_fields else []
    of_section = next((read_docstring(arm.__doc__).summary for arm in arms if section_of(arm) is not None), "")
    if section is Experiment and of_section:
        return of_section
    bases = [owner for owner in section.__mro__ if issubclass(owner, BaseModel)]
    return next((about for owner in bases if (about := sentences_about(owner.__doc__, name))), of_section)


def _type_text(annotation: object) -> str:
    """Return a type in readable form: `number`, `text`, `list of text`, `true | false`; no part appears twice."""
    return " | ".join(dict.fromkeys(_arm_text(arm) for arm in arms_of(annotation, with_none=True)))


_WORDS: dict[object, str] = {bool: "true | false", int: "whole number", float: "number", str: "text"}
_WORDS |= {type(None): "null", object: "any", pydantic.JsonValue: "any"}


def _arm_text(arm: object) -> str:
    origin, args = typing.get_origin(arm), typing.get_args(arm)
    if origin is typing.Literal:
        return " | ".join(str(value) for value in args)
    if origin is dict:
        return f"{{name: {_type_text(args[1])}}}"
    if origin in (list, tuple) or origin is Sequence:
        inside = ", ".join(dict.fromkeys(_type_text(arg) for arg in args if arg is not Ellipsis))
        return f"[{inside}, {inside}]" if origin is tuple else f"[{inside}, ...]"
    if section_of(arm) is not None:
        return "section"
    return _WORDS.get(arm, str(arm))


_HEADING = re.compile(r"^#+ (.+)$")
_NAME = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@dataclass(frozen=True)
class MetricReference:
    """A metric of metrics.jsonl; `group` is its heading in the document."""

    name: str
    text: str
    group: str


def metrics_about(words: Sequence[str]) -> list[MetricReference]:
    """Return the metrics with all of `words` in their name or meaning. Raise ConfigError if there is none."""
    known = list(all_metrics())
    found = [metric for metric in known if _has_words(f"{metric.name} {metric.text}", words)]
    if not found:
        raise _none_found("metric", words, nearest(" ".join(words), [metric.name for metric in known]))
    return sorted(found, key=lambda metric: not _has_words(metric.name, words))


def all_metrics() -> Iterator[MetricReference]:
    """Yield the metrics in the tables' order. Raise FileNotFoundError if the installation lacks the document."""
    group, heads = "", list[str]()
    for line in shipped_page("metrics.md").splitlines():
        if match := _HEADING.match(line):
            group, heads = match[1], []
        elif not line.startswith("|"):
            heads = []
        elif not heads:
            heads = _cells(line)
        elif heads[0] == "metric" and not line.startswith("|-"):
            cells, name = _cells(line), ""
            more = [f"{head}: {cell}" for head, cell in zip(heads[2:], cells[2:], strict=False) if cell]
            for written in _NAME.findall(cells[0]):  # one that begins with `/` replaces the last part of the one before
                name = f"{name.rpartition('/')[0]}{written}" if written.startswith("/") else written
                yield MetricReference(name, "; ".join([cells[1], *more]), group)


def _cells(line: str) -> list[str]:
    return [_LINK.sub(r"\1", cell.strip()).replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


_WHOLE = ("model.build",)  # sections whose parts have no meaning without the rest


def unlike_default(tree: JsonTree, prefix: str = "") -> JsonTree:
    """Return the part of a configuration or its section `prefix` that an experiment without settings does not have."""
    kept: JsonTree = {}
    for name, value in tree.items():
        key = f"{prefix}.{name}" if prefix else name
        reference = key_reference(key) if key not in _without_settings() else None
        default = _without_settings().get(key, reference.default if reference is not None else NO_DEFAULT)
        if isinstance(value, dict) and value and key not in _WHOLE:
            below = unlike_default(value, key)
            if below or not isinstance(default, dict):
                kept[name] = below or value  # the section was added, even if all its values are defaults
        elif value != default:
            kept[name] = value
    return kept


@cache
def _without_settings() -> dict[str, object]:
    """Return key -> value without any settings: all sections, filled with the schema's defaults."""
    from rlhf_cli.config.compose import compose  # imports Hydra, which takes 0.3 s

    return dict(leaves(Experiment.model_validate(compose([]).tree).model_dump(mode="json")))


def only_sections(tree: JsonTree, keys: Sequence[str]) -> JsonTree:
    """Return the part of a configuration at or below the dotted keys, in its own order; all if `keys` is empty."""
    if not keys:
        return tree
    kept: JsonTree = {}
    for name, value in tree.items():
        below = [key.partition(".")[2] for key in keys if key.partition(".")[0] == name]
        if "" in below:
            kept[name] = value
        elif below and isinstance(value, dict):
            kept[name] = only_sections(value, below)
    return kept


def described(schema: JsonTree, group: str) -> JsonTree:
    """Return the schema of a group's files with a description for every known key, and TRL's help for its arguments."""
    schema = copy.deepcopy(schema)
    sections = {section.__name__: section for section in _subclasses(Section)}
    for name, node in [(group.title(), schema), *section(schema, "$defs").items()]:
        owners: list[type[BaseModel]] = [sections.get(name, Experiment), *([Experiment] if node is schema else [])]
        texts = {key: next(filter(None, (key_text(owner, key) for owner in owners)), "") for key in _properties(node)}
        _describe(node, texts)
        if Trainer in owners:
            rows = [trl_args.fields_of(row.name) for row in TRAINERS.values()]
            # the help of the first trainer that has an argument
            texts = {name: field.text for fields in reversed(rows) for name, field in fields.items()}
            texts |= {name: sentences_about(PpoArgs.__doc__, name) for name in PpoArgs.model_fields}
            _describe(_properties(node)["args"], texts)
    return schema


def _properties(node: JsonValue) -> JsonTree:
    return section(node, "properties") if isinstance(node, dict) else {}


def _describe(node: JsonValue, texts: Mapping[str, str]) -> None:
    """Set the descriptions of the properties of a schema that have none, in place."""
    for name, value in _properties(node).items():
        if isinstance(value, dict) and texts[name]:
            value.setdefault("description", texts[name])


def _subclasses(section: type[Section]) -> Iterable[type[Section]]:
    for below in section.__subclasses__():
        yield below
        yield from _subclasses(below)


COMPUTED_DEFAULTS: dict[str, object] = {
    "optim": "adamw_torch_fused",
    "loss_type": ["sigmoid"],
    "include_for_metrics": [],
}
"""Defaults that TRL and transformers compute, without a literal in their source; a contract test checks the list."""


@dataclass(frozen=True)
class TrainerArgument:
    """An argument of a trainer, which `config_class` defines; `default` is TRL's, None if it is computed or missing.

    `home` is the key that sets it instead of `trainer.args`, `ours` the value that the conf files set; or None.
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
    from rlhf_cli.config.compose import compose  # imports Hydra, which takes 0.3 s

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
