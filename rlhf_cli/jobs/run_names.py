"""Replace `run:NAME` by a model folder: of the newest finished run of that experiment, or of the run at that path.

A critic starts from that run's critic if it has one (a PPO run), else from its model (a reward model). `offset: auto`
of a reward model becomes its measured mean, `with_eos: auto` the way it was trained.
"""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import Reward
from rlhf_cli.errors import RunError
from rlhf_cli.runs.newest_run import newest_run
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, read_status
from rlhf_cli.runs.text_endings import trained_with_eos
from rlhf_cli.suggest import nearest

_PREFIX = "run:"
_CRITIC = "critic"


def resolve_runs(experiment: Experiment) -> Experiment:
    """Return the experiment with model folders instead of `run:NAME`, and numbers instead of `auto` offsets.

    Raises RunError, naming the command that helps, if no run of a name has finished or has been evaluated.
    """
    root = Path(experiment.run.root).expanduser()
    rewards = {name: _reward(name, reward, root) for name, reward in experiment.rewards.items()}
    policy = experiment.model
    policy = policy.model_copy(update={"path": _model(policy.path, root, "model.path")})
    critic = experiment.critic
    if critic is not None:
        critic = critic.model_copy(update={"init": _critic(critic.init, root)})
    return experiment.model_copy(update={"rewards": rewards, "model": policy, "critic": critic})


def find_run(named: str, root: str, *, where: str) -> RunFolder:
    """Return the run that `run:NAME` means. Raises RunError if no run of that name has finished."""
    return _run(named, Path(root).expanduser(), where)


def is_run_name(named: str) -> bool:
    """Return whether a word has the form `run:NAME`."""
    return named.startswith(_PREFIX)


def _reward(name: str, reward: Reward, root: Path) -> Reward:
    model = _model(reward.model, root, f"rewards.{name}.model")
    if model is None:
        return reward
    with_eos = trained_with_eos(model) is True if reward.with_eos == "auto" else reward.with_eos
    offset = reward.offset
    if isinstance(offset, str):
        from rlhf_cli.measure.measured_mean import mean_reward  # pydantic's classes of all evaluations come with it

        offset = mean_reward(model, with_eos=with_eos, where=f"rewards.{name}.offset")
    return reward.model_copy(update={"model": model, "with_eos": with_eos, "offset": offset})


def _model(named: str | None, root: Path, where: str) -> str | None:
    if named is None or not named.startswith(_PREFIX):
        return named
    return str(_run(named, root, where).model)


def _critic(named: str, root: Path) -> str:
    if named == "policy":
        return named
    if not named.startswith(_PREFIX):
        # Freezing makes paths under `path` and `model` absolute; the critic's path is made absolute here.
        local = Path(named).expanduser()
        return str(local.resolve()) if local.exists() else named
    run = _run(named, root, "critic.init")
    return str(critic if (critic := run.path / _CRITIC).is_dir() else run.model)


def _run(named: str, root: Path, where: str) -> RunFolder:
    name = named.removeprefix(_PREFIX)
    candidates = [RunFolder(path.parent.resolve()) for path in (root / name).glob("*/config.yaml")]
    if (root / name / "config.yaml").is_file():
        candidates.append(RunFolder((root / name).resolve()))
    states_of = {run: _state(run) for run in sorted(candidates, key=lambda run: run.path)}
    finished = [run for run, state in states_of.items() if state == FINISHED and run.model.is_dir()]
    if not finished:
        states = ", ".join(f"{run.path.name} {state}" for run, state in states_of.items())
        raise RunError(
            f"no run of {name!r} has finished",
            where=where,
            got=states or f"no runs in {root / name}{_but_sweeps(root / name)}",
            expected="run:EXPERIMENT, whose newest finished run is taken, or run:EXPERIMENT/RUN",
            hint=_instead(name, root),
        )
    return max(finished, key=lambda run: read_status(run).updated_at)


def _instead(name: str, root: Path) -> str:
    """Return the nearest existing run name, else the command that trains the experiment."""
    there = [folder.name for folder in root.iterdir() if any(folder.glob("*/config.yaml"))] if root.is_dir() else []
    known = groups().get("exp", {})
    experiment, slash, run = name.partition("/")
    is_known = experiment in known or experiment in there
    if not is_known and (close := nearest(experiment, there)) is not None:
        return f"{_PREFIX}{close}{slash}{run}"
    if is_known:
        return f"rlhf train +exp={experiment}"
    if (close := nearest(experiment, known)) is None:
        newest = newest_run(root, finished=True)
        return "rlhf list exp" if newest is None else newest.shown
    return f"rlhf train +exp={close}  # then {_PREFIX}{close}"


def _but_sweeps(folder: Path) -> str:
    """Return a clause that points at the sweeps in a folder; their runs are named by path only."""
    sweeps = sorted(path.parent.name for path in folder.glob("*/sweep.json"))
    return f" but those of sweeps, such as {folder / sweeps[-1]}" if sweeps else ""


def _state(run: RunFolder) -> str:
    """Return the state of a run, also if its status.json is unreadable: another run may still be found."""
    try:
        return read_status(run).state
    except RunError:
        return "with an unreadable status.json"
