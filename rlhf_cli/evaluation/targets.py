"""Find the model and rows that `rlhf eval` or `rlhf generate` is about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_cli.config.origins import COMMAND_LINE, Origins
from rlhf_cli.config.schema.model_and_data import Eval
from rlhf_cli.data.peeking import peek
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ConfigError, RunError
from rlhf_cli.models.cache import model_folder
from rlhf_cli.models.model_folders import describe_model, is_reward_model
from rlhf_cli.plan.checks.machine_checks import require_on_hub
from rlhf_cli.plan.prepare import Prepared
from rlhf_cli.runs.reward_records import BY_REWARDS_OF
from rlhf_cli.runs.run_folder import (
    POLICY,
    REWARD_MODEL,
    SWEEP,
    RunFolder,
    evaluations_of,
    open_run,
    run_of,
    typed_path,
)
from rlhf_cli.runs.run_status import command_to_finish, describe_state, read_status
from rlhf_cli.services.hub_lookup import HubQuestion
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.json_values import section as section_of


@dataclass(frozen=True)
class Target:
    """A model to evaluate. `run` is None for a folder without a run; `folder` receives the results."""

    kind: str
    model: Path
    label: str
    folder: Path
    run: RunFolder | None = None


def find_target(path: Path) -> Target:
    """Return the model in a run folder or a model folder.

    Raise RunError for a folder that is neither, for a run without a model, and for a policy without a run, whose
    rewards would be in the run's configuration.
    """
    path = path.expanduser().resolve()
    if (around := run_of(path)) is not None:
        path = around.path
    has_model = any((path / name).is_file() for name in ("config.json", "adapter_config.json"))
    if has_model and not (path / "config.yaml").is_file():
        if not is_reward_model(str(path), where="rlhf eval"):
            what, got = "a policy needs the rewards of its run", "a model folder without a run"
            expected = "the folder of the run, with config.yaml in it"
            hint = f"rlhf eval run:EXPERIMENT model.path={typed_path(path)}"  # RUN would become `path` itself
            raise RunError(what, where=str(path), got=got, expected=expected, hint=hint)
        return Target(REWARD_MODEL, path, path.name, evaluations_of(path))
    run = open_run(path)
    if not run.model.is_dir():
        status = read_status(run)
        got, hint = "no folder model/, which a run writes after its last step", command_to_finish(run, status)
        got = f"{got}; it is {describe_state(status.state, status.reason)} at step {status.step}"
        raise RunError("this run has no model yet", where=str(run.path), got=got, hint=hint)
    model_folder(str(run.model), where=str(run.model))  # makes an adapter's base in the cache again
    kind = REWARD_MODEL if is_reward_model(str(run.model), where=str(run.model)) else POLICY
    return Target(kind, run.model, run.label, evaluations_of(run.model), run)


def with_typed_model(target: Target, prepared: Prepared) -> Target:
    """Return the target with the model that was set over the run's own, if one was.

    Raise ConfigError for one that is built, ModelError if neither this machine nor the hub has it.
    """
    composed, path = prepared.composed, prepared.experiment.model.path
    other_keys = (key for key, origin in composed.origins.by_key.items() if origin.file != composed.frozen)
    is_typed = target.run is None or any(key.startswith(("model.path", "model.build")) for key in other_keys)
    if not is_typed or path == str(target.model):
        return target
    if path is None:
        what, got = "a model that is built has not been trained", "the settings of a new model"
        raise ConfigError(what, where="model.build", got=got, expected="a model that exists", hint="model.path=FOLDER")
    other = Path(path)
    if not other.expanduser().exists():
        require_on_hub(HubQuestion("model", path), where="model.path", local="model.path=FOLDER")
    return replace(target, model=other, label=f"{other.name}{BY_REWARDS_OF}{target.label}")


def set_rows(target: Target, data: str | None, tree: JsonTree, origins: Origins) -> None:
    """Set the target's model, and the rows of `--data` if given, in a composed `tree`.

    Raise ConfigError if two models are named, or if a reward model has no rows to be evaluated on.
    """
    model, section = tree.get("model"), tree.get("data")
    if not isinstance(model, dict) or not isinstance(section, dict):
        return  # config validation reports what is wrong
    for name in ("metric_for_best_model", "load_best_model_at_end"):  # of the evaluations during a training
        section_of(section_of(tree, "trainer"), "args").pop(name, None)
    run, is_policy = target.run, target.kind == POLICY
    is_alone = run is None
    typed = {key for key, origin in origins.by_key.items() if str(origin) == COMMAND_LINE}
    set_keys = typed & {"model.path", "model.tokenizer"}
    if is_alone and is_policy and "model.path" in typed:
        got, hint = f"{target.label} and {model['path']}", "rlhf generate MODEL +exp=NAME"
        raise ConfigError("two models are named", where="model.path", got=got, expected="one model", hint=hint)
    if (is_alone and is_policy) or set_keys == {"model.tokenizer"}:  # the tokenizer is for the trained model
        model["path"] = str(target.model)
    if is_alone or set_keys:
        model["build"] = None  # it would build the run's own model
        if run is None or model["path"] != section_of(run.read_config(), "model").get("path"):
            model |= {name: None for name in ("revision", "tokenizer") if f"model.{name}" not in typed}
    if data is not None:
        given = section.get("rename")
        renames = given if isinstance(given, dict) else {}
        section["eval"] = {"path": data, "rename": renames_in(data, renames, name="--data")[1]}
    if is_policy:
        return
    if not section.get("eval"):
        got = "a model folder without a run" if run is None else "a run that held out no rows"
        expected = "--data FILE, or data.eval.path=FILE, data.eval.world=NAME"
        hint = f"rlhf eval {typed_path(target.model if run is None else run.path)} --data FILE"
        what = "there are no rows to evaluate on"
        raise ConfigError(what, where="data.eval", got=got, expected=expected, hint=hint)
    if is_alone and isinstance(section["eval"], dict):
        section.pop("path", None)
        rows = section["eval"]
        named = next((part for name, part in rows.items() if name not in Eval.model_fields), None)
        # An experiment needs training rows, but they are not read here.
        section.update(named if isinstance(named, dict) else rows)


def renames_in(path: str, renames: Mapping[str, Any], *, name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the columns of a file, and those of the renames whose columns it has; none for a hub dataset.

    A path into a column gives way to a column that has the new name already.
    """
    source = DataSource(path=path, name=name, is_read=lambda _: False)
    if source.is_hub:
        require_on_hub(HubQuestion("dataset", path), where=name, local=f"{name} FILE")
    columns = peek(source, limit=1).columns
    paths = {old for new, old in renames.items() if new not in columns and old.partition(".")[0] in columns}
    return columns, {new: old for new, old in renames.items() if old in columns or old in paths}


_FOLDER = "generated"


def run_to_sample(path: Path) -> Target:
    """Return the policy of a run, scored by the run's own rewards. Raise RunError if there is no run or no policy."""
    path = path.expanduser()
    has_run = any((folder / "config.yaml").is_file() for folder in (path, path.parent))
    if not has_run and not (path / SWEEP).is_file():  # `open_run` says what a sweep is
        got = "a model without a run" if path.is_dir() else "no such folder here, perhaps a model of the hub"
        what, expected = "completions need the rewards of an experiment", "a run folder, or a model and an experiment"
        hint = f"rlhf generate {shlex.quote(str(path))} +exp=NAME"
        raise RunError(what, where=str(path), got=got, expected=expected, hint=hint)
    target = _policy_of(path)
    assert target.run is not None
    return replace(target, folder=target.run.path / _FOLDER)


def model_to_sample(named: str, run: RunFolder | None) -> Target:
    """Return a model to be scored by an experiment's rewards: a folder, a hub id, or the model of `run`.

    Its completions go into the current folder, because the model's folder may belong to someone else.
    """
    if run is not None:
        target = _policy_of(run.path)
        model, label = target.model, target.label
    else:
        label, named = named, str(model_folder(named, where="rlhf generate"))
        describe_model(named, where="rlhf generate")
        model = Path(named).expanduser()
        if not model.exists():
            require_on_hub(HubQuestion("model", named), where="rlhf generate", local="rlhf generate FOLDER +exp=NAME")
        model = model.resolve() if model.is_dir() else model
        run = run_of(model)
    name = model.name if run is None else f"{run.path.parent.name}-{run.path.name}"
    return Target(POLICY, model, label, Path(_FOLDER, name).resolve())


def _policy_of(path: Path) -> Target:
    target = find_target(path)
    if target.kind != POLICY:
        raise RunError("a reward model does not write completions", got=target.label, expected="the run of a policy")
    return target


def refuse_without_scores(rewards: list[str], by: str | None, label: str) -> None:
    """Raise ConfigError if there are no rewards, or no reward with the name `by`."""
    if not rewards:
        what, got = "there is no reward to score the completions", f"{label}, which has none"
        expected = "the run of an experiment with rewards, or such an experiment beside the model"
        raise ConfigError(what, where="rewards", got=got, expected=expected, hint="rlhf generate MODEL +exp=NAME")
    if by is not None and by not in rewards:
        raise ConfigError(f"no reward {by!r} to pick by", where="--by", expected="one of " + ", ".join(rewards))
