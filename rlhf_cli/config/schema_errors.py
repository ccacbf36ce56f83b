"""Explain what validation rejected (imported only then): an error for each key, its place, what was probably meant."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlhf_cli.config import trl_args
from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.config.origins import Origin, Origins
from rlhf_cli.config.schema.experiment import field_at, keys_of_section, section_at, valid_keys
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.suggestions import KnownKeys, answer, as_typed, fitted, former_name, meant_key, meant_value, mended
from rlhf_cli.errors import ConfigError, pydantic_words
from rlhf_cli.tables.former_names import GROUPS_OF_OTHERS, SECTIONS_OFF, UNSAYABLE, VALUE_SYNONYMS
from rlhf_cli.tables.trl_trainers import TRAINERS, UNSUPPORTED
from rlhf_cli.text.json_values import JsonTree, JsonValue, leaves, section
from rlhf_cli.text.suggest import nearest

Path = list[int | str]

_FORMS = {
    "run": "at most 128 letters, digits, '.', '_' and '-', the first a letter or a digit: it names the run's folder",
    "rewards": "at most 128 letters (a-z, A-Z), digits and '_', the first not a digit: overrides name the reward so",
}
"""Section -> the pattern for its texts, in words."""
_ARGS = "trainer.args."
_SOURCES = {"fn", "model", "environment"}
"""A reward has exactly one of these keys."""
NAMED_REWARDS = "named entries under `rewards`, each with `fn` or `model`; or reward@rewards.NAME=OPTION"


def named_rewards(given: JsonValue, origin: Origin | None) -> str:
    """Return a list of reward functions, or one of them, as the keys of `rewards` to type, or as its line in a file."""
    listed = given if isinstance(given, list) else [given]
    entries: list[JsonTree] = [entry if isinstance(entry, dict) else {"fn": entry} for entry in listed]
    named = {str(entry.get("fn")).partition(":")[2]: entry for entry in entries}
    named = {"NAME": {"fn": "./rewards.py:FUNCTION"}} if "" in named else named
    if origin is None or origin.file is None:
        return " ".join(f"rewards.{name}.{key}={one[key]}" for name, one in named.items() for key in one)
    return yaml.safe_dump({"rewards": named}, default_flow_style=True, sort_keys=False, width=1000).strip()[1:-1]


def schema_problems(error: ValidationError, tree: JsonTree, origins: Origins) -> Iterator[ConfigError]:
    """Yield an error for every key that pydantic rejects; only one per key, even for a union."""
    by_key: dict[str, tuple[Path, list[ErrorDetails]]] = {}
    for detail in error.errors(include_url=False):
        keys: Path = []  # pydantic's location, without the names it inserts for a union's alternatives
        node: Any = tree
        for part in detail["loc"]:
            inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
            if inside:
                keys.append(part)
                node = node[part]
        last = detail["loc"][-1]
        path = [*keys, last] if detail["type"] == "missing" and isinstance(last, str) else keys
        by_key.setdefault(_dotted(path), (path, []))[1].append(detail)
    known = KnownKeys.of(tree)
    extra = {key: path for key, (path, details) in by_key.items() if details[0]["type"] == "extra_forbidden"}
    unknown = {key: _unknown(path, tree, known, origins) for key, path in extra.items()}
    for empty in (key for key, (path, details) in by_key.items() if details[0]["input"] is None and len(path) == 1):
        for key in unknown.keys() & set(keys_of_section([empty])):  # `trainer:`, and `args:` not indented below it
            unknown[key].hint, unknown[key].advice = f"{empty}.{key}", f"indent {key} below {empty}"
    meant = {problem.hint for problem in unknown.values()}
    for key, (path, details) in by_key.items():
        if any(other.startswith(key + ".") for other in by_key):
            continue  # the longer key describes the same problem more precisely
        if key in unknown:
            yield unknown[key]
        elif details[0]["type"] != "missing" or isinstance(details[0]["loc"][-1], int):  # an entry of a list is missing
            yield _wrong(path, details, known, tree, origins)
        elif not {key, str(path[-1])} & meant:  # else it was given under another name
            hint = f"{path[-1]}: VALUE" if _in_a_list(path) else f"{key}=VALUE"
            yield origins.error(key, f"{key} must be given", hint=hint)


def argument_problems(wrong: list[trl_args.WrongArgument], tree: JsonTree, origins: Origins) -> Iterator[ConfigError]:
    """Yield an error for each wrong argument of a trainer, or for a trainer that rlhf does not know."""
    known, args = KnownKeys.of(tree), section(section(tree, "trainer"), "args")
    name = known.trainer
    for argument in wrong:
        key = f"{_ARGS}{argument.name}"
        if argument.kind == "trainer":
            close, refused = nearest(name, TRAINERS), UNSUPPORTED.get(name)
            what = f"rlhf cannot run the trainer {name!r}" + (f": {refused.why}" if refused else "")
            expected = f"one of {', '.join(TRAINERS)}; or a trainer.class that inherits from one of them"
            hint = f"trainer.trl={close}" if close and not refused else "rlhf list trainer"
            advice = refused.instead if refused else None
            yield origins.error("trainer.trl", what, hint=hint, expected=expected, advice=advice)
        elif argument.kind == "reserved":
            is_off = trl_args.is_off(argument.value)
            hint = trl_args.OFF.get(argument.name, f"'~{key}'") if is_off else argument.expected
            yield origins.error(key, f"{key} has another key in rlhf", hint=hint)
        elif argument.kind == "unknown" and "." in argument.name:
            yield _unknown_inside(argument, origins)
        elif argument.kind == "unknown":
            yield _unknown_argument(argument, known, origins.where(key))
        else:
            meant = _meant_argument(name, argument, args)
            yield _wrong_value(key, origins, repr(argument.value), argument.expected, meant)


def _unknown_argument(argument: trl_args.WrongArgument, known: KnownKeys, where: str) -> ConfigError:
    name, config = argument.name, TRAINERS[known.trainer].config_class
    if (former := former_name(name, known)) is not None:
        row, today = former
        got, expected = f"a name from {row.whose}", f"{today}, its name in rlhf"
        hint = fitted(today, f"{_ARGS}{name}", argument.value, known)
        return ConfigError(f"{config} has no {name!r}", where=where, got=got, expected=expected, hint=hint)
    expected = f"a field of {config}" + (f" or one of {', '.join(PpoArgs.model_fields)}" if known.has_critic else "")
    meant = fitted(meant_key(_ARGS + name, known), f"{_ARGS}{name}", argument.value, known)
    what, advice = f"unknown option {name!r} for {config}", UNSAYABLE.get(name)
    hint = "trainer=ppo" if name in PpoArgs.model_fields else meant if advice is None else None
    return ConfigError(what, where=where, expected=expected, hint=hint, advice=advice)


def _unknown_inside(argument: trl_args.WrongArgument, origins: Origins) -> ConfigError:
    outer, _, name = argument.name.partition(".")
    key, close = f"{_ARGS}{argument.name}", nearest(name, argument.expected.split(", "))
    hint = f"'~{key}'" + (f" {_ARGS}{outer}.{close}={as_typed(argument.value)}" if close else "")
    if outer == "lr_scheduler_kwargs" and not close:
        able = [schedule for schedule, keys in trl_args.INNER_FIELDS.items() if name in keys]
        hint = "".join(f"{_ARGS}{trl_args.SCHEDULE}={schedule}, or " for schedule in able[:1]) + hint
    expected = f"one of {argument.expected}" if argument.expected else f"no key, with this {trl_args.SCHEDULE}"
    return origins.error(key, f"unknown key {key!r}", hint=hint, expected=expected)


def _meant_argument(trainer: str, argument: trl_args.WrongArgument, args: JsonTree) -> str | None:
    outer, _, inner = argument.name.partition(".")
    below = trl_args.inner_fields(outer, trainer, args)
    if (field := ((below or {}) if inner else trl_args.fields_of(trainer)).get(inner or outer)) is None:
        return None  # one of PpoArgs

    def takes(value: object) -> bool:
        return trl_args.expected_instead(field, value) is None

    key = f"{_ARGS}{argument.name}"
    meant = mended(key, argument.value, takes, choices=field.choices, default=field.default)
    return meant if meant or below is None else f"'~{key}'"


def _wrong_value(key: str, origins: Origins, got: str, expected: str, hint: str | None) -> ConfigError:
    what = f"wrong value for {key or 'the experiment'}"
    if (line := _decoded_variable(origins.of(key))) is not None:
        expected, hint = f"{expected}; a variable is text unless it is decoded", line
    return origins.error(key, what, got, hint, expected=expected)


def _decoded_variable(origin: Origin | None) -> str | None:
    """Return the line to write where a file gives a key a variable of the environment, which reads it as a number."""
    if origin is None or origin.file is None or origin.line is None:
        return None
    line = origin.file.read_text(encoding="utf-8").splitlines()[origin.line - 1].partition(" #")[0].strip()
    found = re.fullmatch(r"""([\w-]+:\s*)["']?(?:(\$\{oc\.env:[^{}]*\})|\$\{?([A-Z_][A-Z0-9_]*)\}?)["']?""", line)
    return found and found[1] + "${oc.decode:" + (found[2] or "${oc.env:" + found[3] + "}") + "}"


def _unknown(path: Path, tree: JsonTree, known: KnownKeys, origins: Origins) -> ConfigError:
    key, name = _dotted(path), str(path[-1])
    where = origins.where(key)
    if "." in name:
        what, expected = f"{name!r} is one key with dots in it", "nested keys: dots work on the command line only"
        nested = name.replace(".", ": {") + ": VALUE" + "}" * name.count(".")
        return ConfigError(what, where=where, expected=expected, hint=nested)
    former, value = former_name(name, known), dict(leaves(tree))[key]
    hint, advice = answer(key, value, known)
    options, is_choice = groups(), len(path) == 1 and isinstance(value, str)
    group = GROUPS_OF_OTHERS.get(key) or nearest(key, options) if is_choice else None
    if group is not None and value in options[group]:  # a misspelt group, such as `trianer=ppo`
        hint, advice = f"{'+' if group in APPENDED_GROUPS else ''}{group}={value}", None
    hint = hint or fitted(trl_args.RESERVED_ARGS.get(name), key, value, known)
    file = section(section(tree, "data"), "eval").get(name)
    if list(path[:-1]) == ["data", "eval"] and isinstance(file, str):
        hint = hint or shlex.quote(f"{key}.path={file}")  # the name of an evaluation set
    if hint == f"rewards.{name}" and isinstance(tree.get(name), int | float):
        hint += ".weight"
    expected = f"one of {', '.join(sorted(keys_of_section(path[:-1])))}"
    if former is not None and former[1] == hint:
        expected = f"{former[1]}, which {former[0].whose} called {name}"
    # A part of a list entry cannot be typed alone.
    hint = hint.rpartition(".")[2] if hint is not None and _in_a_list(path) else hint
    if (reason := UNSAYABLE.get(name) or UNSAYABLE.get(f"{path[0]}.{name}")) is not None:
        hint, advice = None, reason
    return ConfigError(f"unknown key {key!r}", where=where, expected=expected, hint=hint, advice=advice)


def _wrong(path: Path, details: list[ErrorDetails], known: KnownKeys, tree: JsonTree, origins: Origins) -> ConfigError:
    given: JsonValue = details[0]["input"]
    expected = ", or ".join(dict.fromkeys(_expected(detail, path) for detail in details))
    hint = next(filter(None, _meant(path, given, {detail["type"] for detail in details}, known, origins)), None)
    if len(path) == 2 and path[0] == "rewards" and isinstance(given, dict) and given and not given.keys() & _SOURCES:
        hint, _ = answer(_dotted(path), given, known)  # a misspelt reward
        there = [name for name, one in section(tree, "rewards").items() if isinstance(one, dict) and _SOURCES & {*one}]
        expected += f", or the name of a reward that is there: {', '.join(there)}" if there else ""
    got = repr(given) if not isinstance(given, dict) else ", ".join(map(str, given)) or "{}"
    return _wrong_value(_dotted(path), origins, got, expected, hint)


def _meant(path: Path, given: JsonValue, kinds: set[str], known: KnownKeys, origins: Origins) -> Iterator[str | None]:
    """Yield what may be meant by a value that a key does not take, the likeliest first; `kinds` are pydantic's."""
    key, last = _dotted(path), path[-1] if path else ""
    origin, is_text = origins.of(key), isinstance(given, str)
    is_typed = origin is None or origin.file is None
    is_section = bool(kinds & {"dict_type", "model_type", "model_attributes_type"})
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if key == "rewards" and given:
        yield named_rewards(given, origins.of("rewards"))
    if "string_pattern_mismatch" in kinds and path[0] in ("rewards", "tools"):
        plain = unicodedata.normalize("NFKD", str(path[1])).encode("ascii", "ignore").decode()
        yield ".".join([str(path[0]), re.sub(r"\W", "_", plain) or "NAME"])
    if len(path) == 2 and path[0] == "rewards" and is_text and (close := nearest(str(given), groups()["reward"])):
        yield f"reward@{key}={close}"
    yield _other_source(key, given, origins) if isinstance(given, dict) else None
    if key == "data.eval" and isinstance(given, float | str):
        yield f"{key}.{'path' if is_text else 'fraction'}={given}"
    options = groups().get(key, {}) if (is_text or given is None) and key not in APPENDED_GROUPS else {}
    word = "null" if given is None else str(given).lower()
    if options and (close := VALUE_SYNONYMS.get(key, {}).get(word) or nearest(word, options)):
        yield f"{key}={close}" if is_typed else f"- override /{key}: {close}"
    if is_section and is_text and (pair := re.fullmatch(r"(\w+):(\S+)", str(given))):
        yield f"{key}.{pair[1]}={pair[2]}" if is_typed else f"{pair[1]}: {pair[2]}"
    if is_section and word in ("off", "false", "no", "none"):
        yield SECTIONS_OFF.get(key, f"{key}=null")
    yield "model.lora.r=16" if key == "model.lora" and given is True else None
    if "string_type" in kinds and isinstance(given, dict) and [*given.values()] == [None]:
        yield f'{last}: "{{{next(iter(given))}}}"'
    if isinstance(given, list) and given and kinds <= {"int_type", "float_type", "bool_type"}:
        yield f"rlhf train -m ... '{key}={','.join(map(str, given))}'"
    if is_section and is_text and last in ("gate", "primary"):
        yield f"'{key}={{by: {given}, at_least: 1}}'"
    if is_section and (is_number or is_text):
        own = ("weight", "r", "learning_rate") if is_number else ("fn",) if ":" in word else ("path",)
        keys = [f"{key}.{name}" for name in own if name in valid_keys(path)]
        today = former_name(str(last), known) if is_number else None
        keys += [today[1]] if today is not None and "=" not in today[1] else []
        yield f"{keys[0]}={given}" if keys else None
    if is_section and given is None and path[0] == "rewards":
        yield f"'~{key}'"
    is_value = path and not isinstance(last, int) and (is_text or section_at(path) is None)
    if is_value and (field := field_at(path)) is not None and (hint := meant_value(key, field, given)) is not None:
        yield f"{last}: {hint.partition('=')[2]}" if _in_a_list(path) else hint


def _other_source(group: str, given: JsonTree, origins: Origins) -> str | None:
    """Return what to type for `model` or `data` with several sources, or none."""
    file, twin = given.get("path"), {"model": "build", "data": "world"}.get(group, "")
    if file and given.get(twin):
        key = f"{group}.{twin}"
        files = [origin.file for known, origin in origins.by_key.items() if f"{known}.".startswith(f"{key}.")]
        if None in files:
            return f"{group}.path=null"  # a ready-made section would not remove what was typed
        if any(file is not None and file.parent.name == "exp" for file in files):
            return f"{key}=null"  # nor what the experiment says itself
    if group == "model" and bool(file) == bool(given.get("build")):
        return f"model=local model.path={file or 'FOLDER_OR_HUB_ID'}"
    if group == "data" and given.get("mix"):
        return "data=file data.path=null" if file or given.get("world") else None
    return f"data=file {shlex.quote(f'data.path={file}')}" if group == "data" and isinstance(file, str) else None


def _expected(detail: ErrorDetails, path: Path) -> str:
    if detail["type"] in ("model_type", "model_attributes_type") and (keys := valid_keys(path)):
        field = field_at(path)
        or_none = ", or null for none" if field is not None and field.default is None else ""
        or_none = ", indented below it; or not this line" if detail["input"] is None else or_none
        return f"a section with {', '.join(keys)}{or_none}"
    if detail["type"] == "string_pattern_mismatch" and path[0] in _FORMS:
        return _FORMS[str(path[0])]
    if detail["type"] == "dict_type" and path == ["rewards"]:
        return NAMED_REWARDS
    if path[:2] == ["sweep", "space"] and len(path) > 2:
        return "a text: 'interval(0,1)', 'choice(a,b)' or 'range(0,5)'"
    if detail["type"] == "bool_type" and path[0] == "warn":
        return "on or off"
    if detail["type"] == "string_type" and isinstance(detail["input"], bool):
        return "a text; YAML reads yes, no, on and off as true and false: write it in quotes"
    if detail["type"] in ("tuple_type", "missing", "too_long"):
        return "[LOW, HIGH], two numbers"
    return pydantic_words(detail["msg"])


def _in_a_list(path: Path) -> bool:
    return any(isinstance(part, int) for part in path)


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)
