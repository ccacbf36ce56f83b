"""Complete a half-typed command line: verbs, flags, keys, files, runs.

A verb's arguments are read from its help: its flags, and from the first lines whether it takes an experiment (`+exp=`)
or runs. TRL is not imported, and Hydra only to complete a key that depends on the words before it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.errors import RlhfError, UserError
from rlhf_cli.jobs.usage import Flag, Usage, usage_of
from rlhf_cli.project.reference.function_source import functions_in
from rlhf_cli.project.reference.reward_reference import ArgumentReference, own_arguments
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

RUN_PREFIX = "run:"
_ROOT = Path("runs")
_MOST_RUNS = 200


def files(typed: str, *, endings: tuple[str, ...] = ()) -> list[str]:
    """Return the paths that start with the typed text, folders with a `/`; files only with one of `endings`, if given.

    Hidden entries are included only if the dot was typed. `~` is kept.
    """
    head, slash, tail = typed.rpartition("/")
    folder = Path(head + slash).expanduser() if slash else Path()
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return []
    found = []
    for entry in entries:
        if not entry.name.startswith(tail) or (entry.name.startswith(".") and not tail.startswith(".")):
            continue
        if entry.is_dir():
            found.append(f"{head}{slash}{entry.name}/")
        elif not endings or entry.name.endswith(endings):
            found.append(f"{head}{slash}{entry.name}")
    return found


def runs_by_name(typed: str) -> list[str]:
    """Return `run:EXPERIMENT` for every folder of runs, or after a `/` its runs."""
    if not typed.startswith(RUN_PREFIX):
        return [RUN_PREFIX] if RUN_PREFIX.startswith(typed) and typed and _ROOT.is_dir() else []
    experiment, slash, _ = typed.removeprefix(RUN_PREFIX).partition("/")
    if slash:
        runs = sorted(_ROOT.glob(f"{experiment}/*/config.yaml"))[-_MOST_RUNS:]
        return [f"{RUN_PREFIX}{experiment}/{run.parent.name}" for run in runs]
    folders = sorted(_ROOT.iterdir()) if _ROOT.is_dir() else []
    return [f"{RUN_PREFIX}{folder.name}" for folder in folders if next(folder.glob("*/config.yaml"), None)]


def functions(typed: str) -> list[str]:
    """Return completions of `./rewards.py:fn`: Python files and folders, or after the colon their functions."""
    module, colon, _ = typed.rpartition(":")
    if not colon:
        found = files(typed, endings=(".py",))
        return [f"{path}:" if path.endswith(".py") else path for path in found]
    try:
        return [f"{module}:{name}" for name in functions_in(f"{module}:")]
    except UserError:
        return []


@cache
def _composed(words: tuple[str, ...]) -> JsonTree:
    """Return the configuration that words compose, leaving out those that do not; of a sweep, the first values."""
    from rlhf_cli.config.compose import compose  # imports Hydra, which takes 0.3 s

    overrides = [word if word.endswith(("]", "}")) else word.partition(",")[0] for word in words if "=" in word]
    choices = [word for word in overrides if word.lstrip("+").partition("=")[0].partition("@")[0] in groups()]
    for attempt in (overrides, choices):
        with contextlib.suppress(RlhfError):
            return compose(attempt).tree
    return {}


def _value(tree: JsonTree, key: str) -> JsonValue:
    """Return the value of a dotted key, the whole tree for '', or None."""
    node: JsonValue = tree
    for part in key.split(".") if key else []:
        node = node.get(part) if isinstance(node, dict) else None
    return node


_REWARD_AT = "reward@rewards."
_FILES = frozenset({"data.path", "data.eval.path", "launch.accelerate_config", "run.root"})
_MODELS = frozenset({"model.path", "critic.init", "model.tokenizer"})


def override_words(current: str, earlier: Sequence[str]) -> list[str]:
    """Return completions of the override `current`; `earlier` are the words before it."""
    key, equals, value = current.partition("=")
    if equals:
        before, comma, last = value.rpartition(",")  # the values of a sweep
        used = before.split(",") if comma else []
        return [f"{key}={before}{comma}{one}" for one in _values(key, last, earlier) if one not in used]
    sign = current[: len(current) - len(current.lstrip("+~"))]
    name = current[len(sign) :]
    if name.startswith("reward@"):
        return [f"{sign}{_REWARD_AT}{reward}=" for reward in [*_rewards(earlier), *groups().get("reward", {})]]
    if "." in name:
        return [f"{sign}{key}" for key in _keys(name.rpartition(".")[0], earlier)]
    return [*_group_words(sign, is_empty=not current), *(f"{sign}{key}" for key in _keys("", earlier))]


def _group_words(sign: str, *, is_empty: bool) -> list[str]:
    plus = "+" if is_empty else ""
    return [
        f"{sign}{_REWARD_AT}" if group == "reward" else f"{sign or (plus if group in APPENDED_GROUPS else '')}{group}="
        for group in groups()
    ]


def _values(key: str, typed: str, earlier: Sequence[str]) -> Iterable[str]:
    """Return completions of the value after `key=`; `typed` is the typed part."""
    key = key.lstrip("+~")
    group = key.partition("@")[0]
    known = groups()
    if group in known:
        return known[group]
    parent, _, name = key.rpartition(".")
    if parent == "trainer.args":
        choices, annotation = _trainer_fields(_composed(tuple(earlier))).get(name, ((), ""))
        return choices or (["true", "false"] if "bool" in annotation else [])
    if name == "by":
        return _rewards(earlier)
    if key == "trainer.class" or (parent.startswith("rewards.") and name == "fn") or key == "aggregate":
        return [*_of_schema(key), *functions(typed)] if ":" not in typed else functions(typed)
    if key in _MODELS or (parent.startswith("rewards.") and name == "model"):
        policy = ["policy"] if key == "critic.init" else []
        folders = [path for path in files(typed) if path.endswith("/")]
        return [*_of_schema(key), *policy, *runs_by_name(typed or RUN_PREFIX), *folders]
    if key in _FILES or typed.startswith((".", "/", "~")):
        return files(typed)
    if parent.startswith("rewards.") and parent.endswith(".args"):
        return _argument_values(parent, name, earlier)
    return _of_schema(key)


def _of_schema(key: str) -> list[str]:
    from rlhf_cli.project.reference.key_reference import key_reference  # importing pydantic takes 0.1 s

    reference = key_reference(key)
    return list(reference.values) if reference is not None else []


def _argument_values(args_key: str, name: str, earlier: Sequence[str]) -> list[str]:
    for argument in _arguments(args_key, earlier):
        if argument.name == name:
            return list(argument.choices) or (["true", "false"] if argument.type == "bool" else [])
    return []


def _keys(parent: str, earlier: Sequence[str]) -> list[str]:
    """Return dotted keys one level below `parent`: sections end in `.` (`rewards.correct.`), values in `=`."""
    tree = _composed(tuple(earlier))
    prefix = f"{parent}." if parent else ""
    if parent == "trainer.args":
        return [f"{prefix}{name}=" for name in _trainer_names(tree)]
    if parent == "rewards":
        return [f"{prefix}{name}." for name in section(tree, "rewards")]
    if parent.startswith("rewards.") and parent.endswith(".args"):
        names = [argument.name for argument in _arguments(parent, earlier)]
        node = _value(tree, parent)
        return [f"{prefix}{name}=" for name in names or (node if isinstance(node, dict) else [])]
    from rlhf_cli.project.reference.key_reference import keys_below

    found = {reference.key: "." if reference.is_branch else "=" for reference in keys_below(parent)}
    node = _value(tree, parent)
    for name, value in node.items() if isinstance(node, dict) else ():
        found.setdefault(f"{prefix}{name}", "." if isinstance(value, dict) and value else "=")
    return [f"{key}{end}" for key, end in found.items()]


def _rewards(earlier: Sequence[str]) -> list[str]:
    return list(section(_composed(tuple(earlier)), "rewards"))


def _arguments(args_key: str, earlier: Sequence[str]) -> Sequence[ArgumentReference]:
    """Return the arguments of a reward's function, or () if it cannot be read."""
    fn = _value(_composed(tuple(earlier)), args_key.removesuffix(".args") + ".fn")
    try:
        return own_arguments(fn) if isinstance(fn, str) else ()
    except UserError:
        return ()


def _trainer_names(tree: JsonTree) -> list[str]:
    from rlhf_cli.config.trl_args import own_key_for

    has_critic = _value(tree, "trainer.baseline") == "critic"
    names = list(_trainer_fields(tree))
    if has_critic:
        from rlhf_cli.config.schema.trainer_sections import PpoArgs

        names += PpoArgs.model_fields
    return [name for name in names if own_key_for(name, has_critic=has_critic) is None]


def _trainer_fields(tree: JsonTree) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return argument -> (allowed values, type) of the chosen trainer."""
    from rlhf_cli.config import trl_args
    from rlhf_cli.tables.trl_trainers import TRAINERS

    name = _value(tree, "trainer.trl")
    fields = trl_args.trainer(name).fields if isinstance(name, str) and name in TRAINERS else {}
    return {name: (field.choices, field.annotation) for name, field in fields.items()}


_OF_RUNS = re.compile(r"\b(RUN|SWEEP|FOLDER|MODEL)\b")
_HELP = ("-h", "--help")


def candidates(words: Sequence[str], verbs: Iterable[str]) -> list[str]:
    """Return the completions of the last of `words`; the first word is the program's name."""
    known = list(verbs)
    if len(words) <= 2:
        return _starting(
            words[-1] if len(words) == 2 else "", [*known, "--help", "--help-all", "--version"] if words[-1:] else known
        )
    verb, current, earlier = words[1], words[-1], list(words[2:-1])
    if verb not in known:
        return []
    return _starting(current, _of_verb(verb, current, earlier))


def _starting(prefix: str, words: Iterable[str]) -> list[str]:
    found = sorted(word for word in dict.fromkeys(words) if word.startswith(prefix))
    return found if prefix.startswith("-") else [word for word in found if not word.startswith("-")]


def _of_verb(verb: str, current: str, earlier: list[str]) -> Iterable[str]:
    usage = usage_of(verb)
    name, equals, value = current.partition("=")
    if equals and name in usage.flags:
        return [f"{name}={one}" for one in _of_flag(usage.flags[name], value)]
    if current.startswith("-"):
        return [*usage.flags, "--help"]
    before = usage.flags.get(earlier[-1]) if earlier else None
    if before is not None and not before.is_switch and not before.may_be_bare:
        return _of_flag(before, current)
    typed = _without_flags(earlier, usage)
    if verb == "list":
        return _of_list(current, typed)
    if verb == "completion":
        return ["bash", "zsh"] if not typed else []
    return _words(usage, current, typed)


def _of_flag(flag: Flag, typed: str) -> list[str]:
    """Return completions of a flag's value: paths, experiments and runs, or [] if unknown."""
    if flag.is_path:
        return files(typed, endings=(flag.ending,) if flag.ending else ())
    if flag.names[0] == "--against":
        return [*groups().get("exp", {}), *runs_by_name(typed), *files(typed)]
    return []


def _words(usage: Usage, current: str, earlier: list[str]) -> Iterable[str]:
    """Return overrides for a verb that takes an experiment, runs and files for one that takes runs, or both."""
    head = usage.text.partition("\n\n")[0]
    found: list[str] = []
    if _OF_RUNS.search(head) and "=" not in current:
        found += [*runs_by_name(current), *files(current)]
    if _OF_RUNS.search(head) and "=" in current:
        found += files(current)  # folders of sweep jobs have a = in their names
    if "+exp=" in head or "overrides" in head or "key=value" in head:
        found += override_words(current, earlier)
    return found


def _of_list(current: str, earlier: list[str]) -> Iterable[str]:
    known = groups()
    if not earlier:
        return [*known, "keys", "metrics"]
    if len(earlier) == 1:
        if earlier[0] == "reward" and current.startswith((".", "/", "~")):
            return functions(current)
        if earlier[0] == "keys":
            return [word.rstrip("=.") for word in override_words(current, []) if "@" not in word and "+" not in word]
        return known.get(earlier[0], {})
    if earlier[0] == "trainer":
        head = "trainer.args."
        return [word[len(head) : -1] for word in override_words(head, [f"trainer={earlier[1]}"])]
    return []


def _without_flags(words: list[str], usage: Usage) -> list[str]:
    """Return the words that are neither flags nor values of flags."""
    left: list[str] = []
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            flag = usage.flags.get(word)
            is_value = flag is not None and not flag.is_switch and not flag.may_be_bare
        else:
            left.append(word)
    return left


_SPECIAL = re.compile(r"([\s\\'\"`$&;|<>(){}\[\]*?!#~])")
_QUOTES = "'\""


@dataclass(frozen=True)
class TypedLine:
    """A line up to the cursor, split into words; the last word may be incomplete.

    `words` have neither quotes nor backslashes; the first is the program. `raw` is the last word as typed.
    """

    words: tuple[str, ...]
    raw: str

    @property
    def quote(self) -> str:
        """Return the open quote at the start of the last word, or ''."""
        first = self.raw[:1]
        return first if first and first in _QUOTES and self.raw.count(first) == 1 else ""


def typed_line(line: str) -> TypedLine:
    """Return the words of a line that ends at the cursor; after a blank, a new word starts."""
    words: list[str] = []
    raw, word = "", ""
    quote = ""
    is_begun = escaped = False
    for sign in line:
        if escaped:
            raw, word, escaped = raw + sign, word + sign, False
        elif sign == "\\" and quote != "'":
            raw, is_begun, escaped = raw + sign, True, True
        elif quote:
            raw += sign
            if sign == quote:
                quote = ""
            else:
                word += sign
        elif sign in _QUOTES:
            raw, quote, is_begun = raw + sign, sign, True
        elif sign.isspace():
            if is_begun:
                words.append(word)
            raw, word, is_begun = "", "", False
        else:
            raw, word, is_begun = raw + sign, word + sign, True
    return TypedLine((*words, word), raw)


def for_bash(candidates: Iterable[str], typed: TypedLine, breaks: str) -> list[str]:
    """Return the text that bash should insert: each candidate's part after the last word break.

    `breaks` is COMP_WORDBREAKS. Inside quotes there are no breaks and no escapes; bash keeps the quote itself.
    """
    if typed.quote:
        return list(candidates)
    signs = set(breaks) - {" ", "\t", "\n", "'", '"', "\\"}
    last = max((place for place, sign in enumerate(typed.raw) if sign in signs), default=-1)
    prefix = typed.raw[: last + 1]
    return [escaped.removeprefix(prefix) for escaped in map(_escaped, candidates)]


def _escaped(text: str) -> str:
    return text if text.startswith("~") and not _SPECIAL.search(text[1:]) else _SPECIAL.sub(r"\\\1", text)
