"""Determine the target of `rlhf generate RUN | MODEL`: the model, the rewards and the rows. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.config.origins import COMMAND_LINE, Origins
from rlhf_cli.errors import ConfigError, RunError
from rlhf_cli.evaluate.evaluation_target import Target, file_source, find_target
from rlhf_cli.json_values import JsonTree
from rlhf_cli.models.model_folders import describe_model
from rlhf_cli.plan.checks.hub_checks import require_on_hub
from rlhf_cli.remote.hub_lookup import Question
from rlhf_cli.runs.evaluations import POLICY, run_of
from rlhf_cli.runs.run_folder import RunFolder

_FOLDER = "generated"


def run_to_sample(path: Path) -> Target:
    """Return the policy of a run, scored by the run's own rewards. Raise RunError if there is no run or no policy."""
    path = path.expanduser()
    if not (path / "config.yaml").is_file() and not (path.parent / "config.yaml").is_file():
        raise RunError(
            "completions are scored by the rewards of an experiment",
            where=str(path),
            got="a model without a run" if path.is_dir() else "no such folder here, perhaps a model of the hub",
            expected="a run folder, or a model and an experiment",
            hint=f"rlhf generate {path} +exp=NAME",
        )
    target = find_target(path)
    if target.kind != POLICY:
        raise _no_policy(target.label)
    assert target.run is not None
    return Target(POLICY, target.model, target.label, target.run.path / _FOLDER, target.run)


def model_to_sample(named: str, run: RunFolder | None) -> Target:
    """Return a model to be scored by an experiment's rewards: a folder, a hub id, or the model of `run`.

    Its completions go into the current folder, because the model's folder may belong to someone else. Raise ModelError
    if there is no such model, RunError for a reward model and for a run without a model.
    """
    if run is not None:
        target = find_target(run.path)
        if target.kind != POLICY:
            raise _no_policy(target.label)
        model, label = target.model, target.label
    else:
        describe_model(named, where="rlhf generate")
        if not Path(named).expanduser().exists():
            require_on_hub(Question("model", named), where="rlhf generate", local="rlhf generate FOLDER +exp=NAME")
        model, label = Path(named).expanduser(), named
        model = model.resolve() if model.is_dir() else model
        run = run_of(model)
    name = model.name if run is None else f"{run.path.parent.name}-{run.path.name}"
    return Target(POLICY, model, label, Path(_FOLDER, name).resolve())


def _no_policy(label: str) -> RunError:
    return RunError("a reward model writes no completions", got=label, expected="the run of a policy")


@dataclass(frozen=True)
class SampledRows:
    """A callback that sets the model and rows in a composed tree. With `data` None, the configured rows are kept."""

    target: Target
    data: str | None

    def __call__(self, tree: JsonTree, origins: Origins) -> None:
        """Change `tree` in place."""
        model, section = tree.get("model"), tree.get("data")
        if not isinstance(model, dict) or not isinstance(section, dict):
            return  # config validation reports what is wrong
        if self.target.run is None:
            model["path"] = str(self.target.model)
        if self.target.run is None or str(origins.by_key.get("model.path")) == COMMAND_LINE:
            model["build"] = None  # it would build the experiment's own model
        if self.data is not None:
            section["eval"] = file_source(section, self.data)


def refuse_without_scores(rewards: list[str], by: str | None, label: str) -> None:
    """Raise ConfigError if there are no rewards, or no reward with the name `by`."""
    if not rewards:
        raise ConfigError(
            "there is no reward to score the completions by",
            where="rewards",
            got=f"{label}, which has none",
            expected="the run of an experiment with rewards, or such an experiment beside the model",
            hint="rlhf generate MODEL +exp=NAME",
        )
    if by is not None and by not in rewards:
        raise ConfigError(
            f"there is no reward {by!r} to pick by", where="--by", expected="one of " + ", ".join(rewards)
        )


def refuse_greedy(temperature: object) -> None:
    """Raise ConfigError for a temperature of 0 or less, which makes all completions of a prompt equal."""
    if isinstance(temperature, int | float) and temperature <= 0:
        raise ConfigError(
            "without a temperature all completions of a prompt are one and the same",
            where="trainer.args.temperature",
            got=temperature,
            expected="a temperature above 0",
            hint="rlhf eval RUN",
        )
