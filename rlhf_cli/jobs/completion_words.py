"""Completes a half-typed command line: verbs, groups, options, keys of the configuration, TRL arguments."""

from __future__ import annotations

from collections.abc import Iterable

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import compose
from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.config.owned import home_of
from rlhf_cli.config.schema.ppo_sections import PpoArgs
from rlhf_cli.errors import UserError
from rlhf_cli.json_values import JsonTree, JsonValue

_VERBS_WITH_OVERRIDES = ("train", "check", "show", "score")
_OF_SWEEPS = ("-j", "--watch", "-v")
_OPTIONS = {
    "compare": (
        *("--on", "--by", "--baseline", "--weights", "--window", "--estimator", "--metrics", "--front", "--runs"),
        *("--json", "--csv", "--latex", "--png", "--wandb-view"),
    ),
    "report": ("--out", "--json"),
    "status": ("--json",),
    "sync": ("--dry-run", "--json"),
    "whatif": ("--recompute", "--show", "--trust", "--json"),
    "why": ("--json",),
    "train": ("-m", "--multirun", "--dry-run", "--allow", "--take-over"),
    "resume": ("--failed", "--dry-run", "--allow", "--take-over", "--trust", *_OF_SWEEPS),
}
"""Verb -> its options; those of a sweep are offered to train where one is typed."""


def candidates(line: str, verbs: Iterable[str]) -> list[str]:
    """Return whole words that the last word of `line` (up to the cursor) may become.

    Empty means: let the shell try files.
    """
    words = line.split()
    if line.endswith((" ", "\t")) or not words:
        words.append("")
    words = words[1:]  # the program's own name
    if len(words) <= 1:
        return _starting(words[0] if words else "", list(verbs))
    verb, current = words[0], words[-1]
    if verb == "list":
        return _starting(current, list(groups()))
    if verb == "completion":
        return _starting(current, ["bash", "zsh"])
    if current.startswith("-") and verb in _OPTIONS:
        return _starting(current, [*_OPTIONS[verb], *(_OF_SWEEPS if verb == "train" and "-m" in words else ())])
    if verb not in _VERBS_WITH_OVERRIDES:
        return []
    key, equals, value = current.partition("=")
    if equals:
        earlier, comma, _ = value.rpartition(",")  # of a sweep's values
        left = [option for option in _values(key, words[1:-1]) if option not in earlier.split(",")]
        return _starting(current, [f"{key}={earlier}{comma}{option}" for option in left])
    if "." not in current.lstrip("+~"):
        has_plus = not current or current.startswith("+")
        chosen = [f"{'+' if group in APPENDED_GROUPS and has_plus else ''}{group}=" for group in groups()]
        return _starting(current, [*chosen, *_keys(current, words[1:-1])])
    return _starting(current, _keys(current, words[1:-1]))


def _starting(prefix: str, words: list[str]) -> list[str]:
    return sorted(word for word in dict.fromkeys(words) if word.startswith(prefix))


def _values(key: str, overrides: list[str]) -> list[str]:
    group = key.lstrip("+").partition("@")[0]
    if group in groups():
        return list(groups()[group])
    name = key.removeprefix("trainer.args.")
    fields = _trainer_fields(overrides)
    if name in fields and name != key:
        field = fields[name]
        return list(field.choices) or (["true", "false"] if "bool" in field.annotation else [])
    return []


def _keys(current: str, overrides: list[str]) -> list[str]:
    """Return dotted keys one level below what is typed: `rewards.` -> `rewards.correct.`, leaves end in `=`."""
    parent = current.rpartition(".")[0]
    if parent == "trainer.args":
        has_critic = _value_at("trainer.baseline", overrides) == "critic"
        names = [*_trainer_fields(overrides), *(PpoArgs.model_fields if has_critic else ())]
        return [f"trainer.args.{name}=" for name in names if home_of(name, has_critic=has_critic) is None]
    node = _value_at(parent, overrides)
    prefix = f"{parent}." if parent else ""
    entries = node.items() if isinstance(node, dict) else ()
    return [f"{prefix}{name}{'.' if isinstance(value, dict) and value else '='}" for name, value in entries]


def _value_at(key: str, overrides: list[str]) -> JsonValue:
    """Return what stands under a dotted key of the configuration, the whole of it for ''; None for nothing."""
    node: JsonValue = _tree(overrides)
    for part in key.split(".") if key else []:
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _tree(overrides: list[str]) -> JsonTree:
    try:
        return compose([word for word in overrides if not word.startswith("-")]).tree
    except UserError:
        return compose([]).tree  # a word typed earlier is wrong; that is for the command to say


def _trainer_fields(overrides: list[str]) -> dict[str, trl_args.TrlField]:
    name = _value_at("trainer.trl", overrides)
    return trl_args.trainer(name).fields if isinstance(name, str) and name in trl_args.trainers() else {}
