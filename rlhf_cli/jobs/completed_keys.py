"""Complete configuration: groups and their options, keys of every section, values from a fixed set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.errors import UserError
from rlhf_cli.jobs.completed_files import files, folders, functions, runs_by_name
from rlhf_cli.json_values import JsonTree, JsonValue, section
from rlhf_cli.reference.reward_reference import ArgumentReference, own_arguments
from rlhf_cli.reference.typed_so_far import tree_so_far, value_so_far

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
        return _trainer_values(name, earlier)
    if name == "by":
        return _rewards(earlier)
    if key == "trainer.class" or (parent.startswith("rewards.") and name == "fn") or key == "aggregate":
        return [*_of_schema(key), *functions(typed)] if ":" not in typed else functions(typed)
    if key in _MODELS or (parent.startswith("rewards.") and name == "model"):
        return [*_of_schema(key), *(["policy"] if key == "critic.init" else []), *_runs(typed), *folders(typed)]
    if key in _FILES or typed.startswith((".", "/", "~")):
        return files(typed)
    if parent.startswith("rewards.") and parent.endswith(".args"):
        return _argument_values(parent, name, earlier)
    return _of_schema(key)


def _runs(typed: str) -> list[str]:
    return runs_by_name(typed) if typed else runs_by_name("run:")


def _of_schema(key: str) -> list[str]:
    from rlhf_cli.reference.key_reference import key_reference  # importing pydantic takes 0.1 s

    reference = key_reference(key)
    if reference is None:
        return []
    return list(reference.values)


def _trainer_values(name: str, earlier: Sequence[str]) -> list[str]:
    field = _trainer_fields(tree_so_far(earlier)).get(name)
    if field is None:
        return []
    choices, annotation = field
    return list(choices) or (["true", "false"] if "bool" in annotation else [])


def _argument_values(args_key: str, name: str, earlier: Sequence[str]) -> list[str]:
    for argument in _arguments(args_key, earlier):
        if argument.name == name:
            return list(argument.choices) or (["true", "false"] if argument.type == "bool" else [])
    return []


def _keys(parent: str, earlier: Sequence[str]) -> list[str]:
    """Return dotted keys one level below `parent`: sections end in `.` (`rewards.correct.`), values in `=`."""
    tree = tree_so_far(earlier)
    prefix = f"{parent}." if parent else ""
    if parent == "trainer.args":
        return [f"{prefix}{name}=" for name in _trainer_names(tree)]
    if parent == "rewards":
        return [f"{prefix}{name}." for name in section(tree, "rewards")]
    if parent.startswith("rewards.") and parent.endswith(".args"):
        names = [argument.name for argument in _arguments(parent, earlier)]
        return [f"{prefix}{name}=" for name in names or _below(value_so_far(tree, parent))]
    from rlhf_cli.reference.key_reference import keys_below

    found: dict[str, str] = {}
    for reference in keys_below(parent):
        found[reference.key] = "." if reference.is_branch else "="
    node = value_so_far(tree, parent)
    for name in _below(node):
        value = node.get(name) if isinstance(node, dict) else None
        found.setdefault(f"{prefix}{name}", "." if isinstance(value, dict) and value else "=")
    return [f"{key}{end}" for key, end in found.items()]


def _below(node: JsonValue) -> list[str]:
    return list(node) if isinstance(node, dict) else []


def _rewards(earlier: Sequence[str]) -> list[str]:
    return list(section(tree_so_far(earlier), "rewards"))


def _arguments(args_key: str, earlier: Sequence[str]) -> Sequence[ArgumentReference]:
    """Return the arguments of a reward's function, or () if it cannot be read."""
    fn = value_so_far(tree_so_far(earlier), args_key.removesuffix(".args") + ".fn")
    try:
        return own_arguments(fn) if isinstance(fn, str) else ()
    except UserError:
        return ()


def _trainer_names(tree: JsonTree) -> list[str]:
    from rlhf_cli.config.owned import home_of

    has_critic = value_so_far(tree, "trainer.baseline") == "critic"
    names = list(_trainer_fields(tree))
    if has_critic:
        from rlhf_cli.config.schema.ppo_sections import PpoArgs

        names += PpoArgs.model_fields
    return [name for name in names if home_of(name, has_critic=has_critic) is None]


def _trainer_fields(tree: JsonTree) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return argument -> (allowed values, type) of the chosen trainer."""
    from rlhf_cli.config import trl_args
    from rlhf_cli.tables.trl_trainers import TRAINERS

    name = value_so_far(tree, "trainer.trl")
    fields = trl_args.trainer(name).fields if isinstance(name, str) and name in TRAINERS else {}
    return {name: (field.choices, field.annotation) for name, field in fields.items()}
