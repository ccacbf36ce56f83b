"""What `rlhf eval RUN` is about: which model, of which kind, with which configuration, and on which rows. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from rlhf_cli.config.schema import Experiment
from rlhf_cli.data.files import peek
from rlhf_cli.data.locate import is_hub
from rlhf_cli.data.source import Source
from rlhf_cli.errors import ConfigError, RunError
from rlhf_cli.models.locate import is_reward_model
from rlhf_cli.runs.evaluations import HELD_OUT, POLICY, REWARD_MODEL, evaluations_of, run_of
from rlhf_cli.runs.folder import RunFolder, open_run
from rlhf_cli.suggest import nearest

_ALONE: dict[str, Any] = {
    "seed": 0,
    "trainer": {"name": "reward", "trl": "RewardTrainer"},
    "launch": {},
    "track": {},
    "run": {},
}
"""What is assumed around a model folder without a run."""


@dataclass(frozen=True)
class Target:
    """A model to evaluate. `config` is the run's, None for a folder that stands alone; `folder` takes the results."""

    kind: str
    model: Path
    label: str
    folder: Path
    config: dict[str, Any] | None
    run: RunFolder | None = None


def find_target(path: Path) -> Target:
    """The model in a run folder, or in a model folder.

    Raises RunError for a folder that is neither or a run without a model, ModelError for a model of another kind, and
    for a policy that stands alone: its rewards are in a run's configuration.
    """
    path = path.expanduser().resolve()
    if (around := run_of(path)) is not None:
        path = around.path
    is_alone = not (path / "config.yaml").is_file() and any(
        (path / name).is_file() for name in ("config.json", "adapter_config.json")
    )
    if is_alone:
        if not is_reward_model(str(path), where="rlhf eval"):
            raise RunError(
                "a policy is evaluated by the rewards of its run",
                where=str(path),
                got="a model folder without a run",
                expected="the folder of the run, with config.yaml in it",
                hint="rlhf eval RUN model.path=FOLDER takes the rewards and data of RUN",
            )
        return Target(REWARD_MODEL, path, path.name, evaluations_of(path), None)
    run = open_run(path)
    if not run.model.is_dir():
        raise RunError(
            "this run has no model yet",
            where=str(run.path),
            got="no folder model/ in it, which a run writes when it has reached its last step",
            hint=f"rlhf resume {run.shown}",
        )
    kind = REWARD_MODEL if is_reward_model(str(run.model), where=str(run.model)) else POLICY
    return Target(kind, run.model, run.label, evaluations_of(run.model), run.read_config(), run)


def experiment_of(target: Target, overrides: Sequence[str], data: str | None) -> Experiment:
    """The experiment as the run had it, with `overrides` (key=value), its evaluation rows from `data` where given.

    Raises ConfigError for a word that is none, a key there is not, a value that is wrong.
    """
    config = target.config or {**_ALONE, "model": {"path": str(target.model)}, "data": {}}
    tree: Any = OmegaConf.create(config)
    for word in overrides:
        equals = word.partition("=")[1]
        if not equals or word.startswith(("-", "~")):
            raise ConfigError(
                "this is no override",
                where="command line",
                got=word,
                expected="key=value, a key of the run's own configuration such as data.eval.path=FILE",
                hint="rlhf eval --help",
            )
        try:
            tree = OmegaConf.merge(tree, OmegaConf.from_dotlist([word.lstrip("+")]))
        except OmegaConfBaseException as error:
            raise ConfigError("this override does not fit", where="command line", got=f"{word}: {error}") from None
    plain: Any = OmegaConf.to_container(tree)
    if any(word.lstrip("+").startswith("model.path=") for word in overrides):
        plain["model"]["build"] = None  # what the run was made from
    section = plain["data"]
    if data is not None:
        section["eval"] = _file(section, data)
    if target.config is None:
        if not section.get("eval"):
            raise no_rows(target)
        section.update(section["eval"])  # an experiment has training rows; nobody reads them here
    try:
        return Experiment.model_validate(plain)
    except ValidationError as error:
        raise _refused(error) from None


def no_rows(target: Target) -> ConfigError:
    """The error of an evaluation that was given nothing to evaluate on."""
    return ConfigError(
        "evaluate on which rows?",
        where="data.eval",
        got="a model folder without a run" if target.config is None else "a run that held out no rows",
        expected="--data FILE, or data.eval.path=FILE, data.eval.world=NAME",
        hint=f"rlhf eval {target.run.shown if target.run else target.model} --data FILE",
    )


def rows_name(data: str | None) -> str:
    """What the evaluation is called: `held_out`, or the file's name."""
    if data is None:
        return HELD_OUT
    stem = Path(data).name.partition(".")[0]
    return stem if stem and stem != HELD_OUT else f"{stem}_file"


def _file(section: dict[str, Any], data: str) -> dict[str, Any]:
    """The source that --data means; renaming is the run's, as far as the file has these columns."""
    source = Source(path=data, name="--data")
    renames = section.get("rename") or {}
    columns = () if is_hub(source) else peek(source, limit=1).columns
    return {"path": data, "rename": {new: old for new, old in renames.items() if old in columns}}


def _refused(error: ValidationError) -> ConfigError:
    found = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in found["loc"])
    close = None
    if found["type"] == "extra_forbidden":
        parent: Any = Experiment
        for part in found["loc"][:-1]:
            field = getattr(parent, "model_fields", {}).get(str(part))
            parent = field.annotation if field is not None else None
        close = nearest(str(found["loc"][-1]), list(getattr(parent, "model_fields", {})))
    return ConfigError(
        f"{key} is not accepted",
        where=f"{key} (the run's configuration, or command line)",
        got=found["msg"],
        hint=close,
    )
