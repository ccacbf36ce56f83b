"""Validate a composed configuration and report every problem at once, each under its full key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlhf_cli.config.accelerate_file import fill_from_accelerate_file
from rlhf_cli.config.compose import Composed
from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.config.nearest import former_name, meant_inside, meant_key, meant_value
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.evaluation_rules import evaluation_problems, expect_problems
from rlhf_cli.config.rules.launch_rules import launch_problems, rollout_problems, slurm_problems, strategy_problems
from rlhf_cli.config.rules.metric_rules import stop_problems, sweep_problems
from rlhf_cli.config.rules.number_rules import number_problems
from rlhf_cli.config.rules.ppo_rules import ppo_problems
from rlhf_cli.config.rules.reward_rules import reward_model_problems, reward_problems, truncation_problems
from rlhf_cli.config.rules.trainer_rules import quantize_problems, trainer_class_problems, trainer_problems
from rlhf_cli.config.schema.experiment import Experiment, field_at, leaves, section_at, valid_keys
from rlhf_cli.config.schema.run_sections import RULE_KEYS
from rlhf_cli.config.trl_args import OWNED
from rlhf_cli.errors import ConfigError, Problems, Prose, UserError
from rlhf_cli.tables.former_names import SPOKEN_KEYS, SPOKEN_VALUES
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, JsonValue
from rlhf_cli.text.redaction import is_secret_key, remember, secret_shape, secret_variable_in
from rlhf_cli.text.suggest import nearest

Path = list[int | str]

_FORMS = {
    "run": "at most 128 letters, digits, '.', '_' and '-', the first a letter or a digit: it names the run's folder",
    "launch": "HOST:PORT, such as node1:29500",
    "rewards": "at most 128 letters, digits and '_', the first no digit: overrides name the reward so",
}
"""Section -> the pattern for its texts, in words."""
_BOUNDS = re.compile(r"`(\w+)` as \[low, high\]")


def schema_problems(error: ValidationError, tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    """Yield an error for every key that pydantic rejects; only one per key, even for a union."""
    by_key: dict[str, tuple[Path, ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        path = _keys_of(detail, tree)
        by_key.setdefault(_dotted(path), (path, detail))
    unknown = {
        key: _unknown(path, tree, origins)
        for key, (path, detail) in by_key.items()
        if detail["type"] == "extra_forbidden"
    }
    meant = {problem.hint for problem in unknown.values()}
    for key, (path, detail) in by_key.items():
        if any(other.startswith(key + ".") for other in by_key):
            continue  # the longer key describes the same problem more precisely
        if key in unknown:
            yield unknown[key]
        elif detail["type"] == "missing" and key in meant:
            continue  # it was given under another name
        elif detail["type"] == "missing":
            yield ConfigError(f"{key} must be given", where=origins.where(key), hint=f"{key}=VALUE")
        else:
            yield _wrong(path, detail, tree, origins)


def _unknown(path: Path, tree: JsonTree, origins: Origins) -> UserError:
    key = _dotted(path)
    where = origins.where(key)
    if "." in str(path[-1]):
        return ConfigError(
            f"{path[-1]!r} is one key with dots in it",
            where=where,
            expected="keys nested in one another: dots are for the command line",
            hint=_nested(path, tree),
        )
    former = former_name(str(path[-1]), tree)
    spoken = _spoken_key(path)
    hint = spoken or _group_choice(path, tree) or _meant(path, tree)
    expected = f"one of {', '.join(sorted(valid_keys(path[:-1])))}"
    if spoken is None and former is not None and (not former[1] or former[1] == hint):
        expected = former[0].why or f"{former[1]}, which {former[0].whose} called {path[-1]}"
    return ConfigError(f"unknown key {key!r}", where=where, expected=expected, hint=hint)


def _nested(path: Path, tree: JsonTree) -> str:
    """Return the YAML for a key that a file wrote with dots, starting at its outermost new key."""
    value: Any = tree
    for part in path:
        value = value[part]
    for name in reversed(str(path[-1]).split(".")):
        value = {name: value}
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).strip()[1:-1]


def _spoken_key(path: Path) -> str | None:
    """Return the key of this section for a common synonym, such as `min` for a gate's `at_least`; else None."""
    sections = [part for part in path[:-1] if isinstance(part, str)]
    if not sections or any(isinstance(part, int) for part in path):
        return None
    meant = SPOKEN_KEYS.get(sections[-1], {}).get(str(path[-1]))
    return _dotted([*path[:-1], meant]) if meant in valid_keys(path[:-1]) else None


def _group_choice(path: Path, tree: JsonTree) -> str | None:
    """Return the group choice meant by a misspelt group such as `trianer=ppo`, recognised by its option."""
    value, known = tree.get(str(path[0])), groups()
    group = nearest(str(path[0]), known) if len(path) == 1 and isinstance(value, str) else None
    if group is None or value not in known[group]:
        return None
    return f"{'+' if group in APPENDED_GROUPS else ''}{group}={value}"


def _meant(path: Path, tree: JsonTree) -> str | None:
    """Return the key that was meant: the full key if one value was given below it, else only the wrong part."""
    whole = _with_all_below(path, tree)
    meant = meant_key(_dotted(whole), tree)
    if meant is None and len(whole) > len(path):
        meant = meant_key(_dotted(path), tree)
    return meant


def _with_all_below(path: Path, tree: JsonTree) -> Path:
    """Return the path extended by the keys below it, as long as there is exactly one."""
    node: Any = tree
    for part in path:
        node = node[part]
    whole = list(path)
    while isinstance(node, dict) and len(node) == 1:
        name, node = next(iter(node.items()))
        whole.append(name)
    return whole


def _wrong(path: Path, detail: ErrorDetails, tree: JsonTree, origins: Origins) -> UserError:
    key = _dotted(path)
    given: JsonValue = detail["input"]
    shown = repr(given) if not isinstance(given, dict) else ", ".join(given) or "{}"
    return ConfigError(
        f"wrong value for {key or 'the experiment'}",
        where=origins.where(key),
        got=shown,
        expected=_expected(detail, path),
        hint=_other_reward(path, tree)
        or _section_choice(path, given, origins)
        or _own_model(path, given)
        or _option(path, given)
        or _in_form(path, detail)
        or _meant_below(path, detail)
        or _meant_instead(path, given, origins),
    )


def _meant_instead(path: Path, given: JsonValue, origins: Origins) -> str | None:
    """Return `key=value` with the value that was meant, or None for a list entry, which cannot be typed alone."""
    if not path or any(isinstance(part, int) for part in path):
        return None
    section, field = section_at(path), field_at(path)
    if section is not None and not isinstance(given, dict | list):
        is_there = any(key.startswith(f"{_dotted(path)}.") for key in origins.by_key)
        return meant_inside(_dotted(path), section, given, is_there=is_there)
    return meant_value(_dotted(path), field, given) if field is not None else None


def _meant_below(path: Path, detail: ErrorDetails) -> str | None:
    """Return a fix for a key that a section's own validator rejects: bounds in order, or the misspelt key of a stop
    rule.
    """
    given = detail["input"]
    if not isinstance(given, dict):
        return None
    match = _BOUNDS.search(detail["msg"])
    if match is not None and isinstance(bounds := given.get(match[1]), list):
        return f"{_dotted(path)}.{match[1]}=[{','.join(str(bound) for bound in sorted(bounds))}]"
    if path == ["stop"]:
        close = [(name, meant) for name in given if (meant := nearest(str(name), RULE_KEYS)) not in (None, name)]
        return f"stop.{close[0][1]}" if close else None
    return None


def _section_choice(path: Path, given: JsonValue, origins: Origins) -> str | None:
    """Return the ready-made section meant by a word or null: `track: null` means track=none."""
    group = _dotted(path)
    options = groups().get(group, {})
    if group in APPENDED_GROUPS or not options or isinstance(given, dict | list | int | float):
        return None
    word = "null" if given is None else str(given)
    close = SPOKEN_VALUES.get(group, {}).get(word.lower()) or nearest(word, options)
    origin = origins.of(group)
    is_typed = origin is None or origin.file is None
    return None if close is None else f"{group}={close}" if is_typed else f"- override /{group}: {close}"


def _option(path: Path, given: JsonValue) -> str | None:
    """Return the ready-made reward that was given as if it were a value: `rewards.short=brevity`."""
    if len(path) != 2 or path[0] != "rewards" or not isinstance(given, str):
        return None
    close = nearest(given, groups().get("reward", {}))
    return f"reward@rewards.{path[1]}={close}" if close is not None else None


def _in_form(path: Path, detail: ErrorDetails) -> str | None:
    """Return a valid name for a run or reward, similar to one that has invalid characters."""
    if detail["type"] != "string_pattern_mismatch":
        return None
    given = str(detail["input"])
    if path == ["run", "name"]:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", given).strip("._-")[:128]
        return f"run.name={name}" if name else None
    name = re.sub(r"\W+", "_", given, flags=re.ASCII).lstrip("0123456789")[:128]
    return f"rewards.{name}" if path[0] == "rewards" and name else None


def _own_model(path: Path, given: JsonValue) -> str | None:
    """Return the group choice that accepts a `path`, if a path was given together with another choice's `build`."""
    if path != ["model"] or not isinstance(given, dict) or bool(given.get("path")) != bool(given.get("build")):
        return None
    return f"model=local model.path={given.get('path') or 'FOLDER_OR_HUB_ID'}"


def _other_reward(path: Path, tree: JsonTree) -> str | None:
    """Return the key of the reward that was meant, if a part of a reward was given under an unknown name."""
    rewards = tree.get("rewards")
    if len(path) != 2 or path[0] != "rewards" or not isinstance(rewards, dict):
        return None
    part = rewards.get(str(path[1]))
    if not isinstance(part, dict) or not part or part.keys() & {"fn", "model"}:
        return None
    return _meant(path, tree)


def _keys_of(detail: ErrorDetails, tree: JsonTree) -> Path:
    """Return the keys in pydantic's location, without the names it inserts for a union's alternatives."""
    keys: Path = []
    node: Any = tree
    for part in detail["loc"]:
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        if inside:
            keys.append(part)
            node = node[part]
    is_absent_key = detail["type"] == "missing" and isinstance(detail["loc"][-1], str)
    return [*keys, detail["loc"][-1]] if is_absent_key else keys


def _expected(detail: ErrorDetails, path: Path) -> str:
    if detail["type"] in ("model_type", "model_attributes_type") and (keys := valid_keys(path)):
        field = field_at(path)
        or_none = ", or null for none" if field is not None and field.default is None else ""
        return f"a section with {', '.join(keys)}{or_none}"
    if detail["type"] == "string_pattern_mismatch" and path[0] in _FORMS:
        return _FORMS[str(path[0])]
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return text.removeprefix("a ").removeprefix("valid ") if text.startswith("a valid") else text


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)


_RULES = (
    *(reward_problems, ppo_problems, truncation_problems, reward_model_problems, quantize_problems),
    *(evaluation_problems, trainer_class_problems, launch_problems, slurm_problems),
    *(strategy_problems, rollout_problems, stop_problems, expect_problems, sweep_problems),
)


def judge(composed: Composed) -> Experiment:
    """Return the experiment that a composed configuration describes.

    Raise Problems, or the UserError itself if there is only one, naming each key with its file and line.
    """
    tree, origins = composed.tree, composed.origins
    # A frozen experiment is already filled, and may be read where the file no longer exists.
    problems: list[UserError] = [] if composed.frozen else [*fill_from_accelerate_file(tree, origins)]
    problems += [*_missing(tree, origins), *_forbidden(composed), *number_problems(tree, origins)]
    experiment: Experiment | None = None
    try:
        experiment = Experiment.model_validate(tree)
    except ValidationError as error:
        places = {problem.where for problem in problems}
        problems += [new for new in schema_problems(error, tree, origins) if new.where not in places]
    places = {problem.where for problem in problems}
    problems += [new for new in trainer_problems(tree, origins) if new.where not in places]
    if experiment is not None and experiment.trainer.trl in TRAINERS:
        for rules in _RULES:
            problems += rules(experiment, origins)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Problems(problems)
    assert experiment is not None
    return experiment


def _missing(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    for key, value in leaves(tree):
        if value == "???":
            yield ConfigError(f"{key} must be given", where=origins.where(key), hint=f"{key}={_example(key, tree)}")


def _example(key: str, tree: JsonTree) -> str:
    """Return an example to type for a missing value."""
    rewards = tree.get("rewards")
    is_objective = key == "sweep.objective" and isinstance(rewards, dict) and rewards
    return f"rewards/{next(iter(rewards))}/mean" if is_objective and isinstance(rewards, dict) else "VALUE"


def _is_trusted(key: str, composed: Composed) -> bool:
    """Return whether the key was typed on the command line, now or when the run was frozen."""
    origin = composed.origins.of(key)
    return origin is not None and (origin.file is None or origin.file == composed.frozen)


def _forbidden(composed: Composed) -> Iterator[UserError]:
    tree, origins = composed.tree, composed.origins
    from_environment = {".".join(str(part) for part in path) for path in composed.references}
    for key, value in leaves(tree):
        name = key.rpartition(".")[2]
        if is_secret_key(name):
            remember(value)  # so that no message prints the value
        if key.removeprefix("trainer.args.") in OWNED or key == f"rewards.{name}":
            continue  # trainer_problems reports where it belongs; the name a user gives a reward is not one of our keys
        if name == "_target_":
            yield ConfigError(
                "`_target_` would call any Python function a configuration names",
                where=origins.where(key),
                got=value,
                expected="`fn: module:function` under a reward, which only ever scores completions",
            )
        elif name == "trust_remote_code" and value is True and not _is_trusted(key, composed):
            yield ConfigError(
                "trust_remote_code runs code from a model repository and is not accepted from a file",
                where=origins.where(key),
                hint=Prose(f"{key}=true on the command line, if you do trust it"),
            )
        elif key in from_environment:
            continue  # the run folder will hold a reference, not the value
        elif value is not None and not isinstance(value, dict) and is_secret_key(name):
            yield ConfigError(
                f"{key} would put a secret into the run folder",
                where=origins.where(key),
                expected="secrets in the environment (HF_TOKEN, WANDB_API_KEY), never in a configuration",
                hint=Prose(f"~{key}, or in single quotes '{key}=${{oc.env:NAME}}', which is read where it is used"),
            )
        elif isinstance(value, str) and (kind := secret_shape(value)) is not None:
            remember(value)
            yield ConfigError(
                f"{key} holds {kind}, which would lie in the run folder for all to read",
                where=origins.where(key),
                expected="the secret in an environment variable, and a reference to it in the configuration",
                hint=Prose(f"export NAME=...; then, in single quotes, '{key}=${{oc.env:NAME}}'"),
            )
        elif isinstance(value, str) and (variable := secret_variable_in(value)) is not None:
            yield ConfigError(
                f"{key} holds what the environment variable {variable} holds, and the run folder would tell it",
                where=origins.where(key),
                expected="a reference, which a shell leaves alone in single quotes",
                hint=f"'{key}=${{oc.env:{variable}}}'",
            )
