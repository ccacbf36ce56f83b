"""Lead from typed words, or a run and words, to a checked experiment: compose, validate, expand `primary` into gates,
spell out the truncation policy's mode, replace `run:NAME`, `package:NAME` and GGUF files by model folders. Every verb
prepares its experiment here, so all verbs accept and refuse the same input.

A critic starts from that run's critic if it has one (a PPO run), else from its model (a reward model). `offset: auto`
of a reward model becomes its measured mean, `with_eos: auto` the way it was trained.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.config.compose import Composed, compose
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.expand import expanded
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import NOT_GIVEN
from rlhf_cli.config.validate import validate
from rlhf_cli.errors import RunError, looking
from rlhf_cli.models.tokenizer_files import JINJA_FILES, chat_template_text
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, runs_below, typed_path
from rlhf_cli.runs.run_status import FINISHED, newest_run, read_status
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.suggest import nearest

_MISSING = "???"
Adjust = Callable[[JsonTree, Origins], None]  # changes a composed tree in place before validation, as `--data` does
_PREFIX = "run:"
_MOST_SHOWN = 8


def resolve_runs(experiment: Experiment) -> Experiment:
    """Return the experiment with folders for `run:NAME`, `package:NAME` and GGUF files, a number for an `auto` offset,
    and a chat template's text for its file. Raise RunError, naming the command that helps, if no run of a name has
    finished or has been evaluated, and ModelError if a packaged model, a GGUF file or a template cannot be had.
    """
    root = experiment.run.root
    rewards = dict(experiment.rewards)
    for name, reward in experiment.rewards.items():
        model = _model(reward.model, root, f"rewards.{name}.model")
        if model is None:
            continue
        from rlhf_cli.runs.reward_records import mean_reward, trained_with_eos

        with_eos = trained_with_eos(model) is True if reward.with_eos == "auto" else reward.with_eos
        offset = reward.offset
        if isinstance(offset, str):
            offset = mean_reward(model, with_eos=with_eos, where=f"rewards.{name}.offset")
        rewards[name] = reward.model_copy(update={"model": model, "with_eos": with_eos, "offset": offset})
    policy = experiment.model
    named = {"path": policy.path, "tokenizer": policy.tokenizer}
    policy = policy.model_copy(update={key: _model(name, root, f"model.{key}") for key, name in named.items()})
    critic, trainer, teacher = experiment.critic, experiment.trainer, experiment.teacher
    if teacher is not None:
        teacher = teacher.model_copy(update={"path": _model(teacher.path, root, "teacher.path")})
    if critic is not None:
        critic = critic.model_copy(update={"init": _critic(critic.init, root)})
    named_template, args = policy.chat_template, dict(trainer.args)
    if isinstance(template := args.get("chat_template_path"), str):
        if template.endswith(JINJA_FILES):  # TRL, too, only reads its text; a frozen text needs no file on resume
            named_template = str(args.pop("chat_template_path"))
        else:
            args["chat_template_path"] = _model(template, root, "trainer.args.chat_template_path")
        trainer = trainer.model_copy(update={"args": args})
    if named_template is not None:
        text = chat_template_text(named_template, where="model.chat_template")
        policy = policy.model_copy(update={"chat_template": text})
    found = {"rewards": rewards, "model": policy, "critic": critic, "teacher": teacher, "trainer": trainer}
    return experiment.model_copy(update=found)


def is_run_name(named: str) -> bool:
    """Return whether a word has the form `run:NAME`."""
    return named.startswith(_PREFIX)


def _model(named: str | None, root: str, where: str) -> str | None:
    if named is None:
        return None
    from rlhf_cli.models.cache import model_folder

    return model_folder(str(find_run(named, root, where=where).model) if is_run_name(named) else named, where=where)


def _critic(named: str, root: str) -> str:
    if named == "policy":
        return named
    if not is_run_name(named):
        # Freezing makes paths under `path` and `model` absolute; the critic's path is made absolute here.
        named = str(_model(named, root, "critic.init"))
        local = Path(named).expanduser()
        return str(local.resolve()) if local.exists() else named
    run = find_run(named, root, where="critic.init")
    return str(run.critic if run.critic.is_dir() else run.model)


def find_run(named: str, root: str, *, where: str) -> RunFolder:
    """Return the run that `run:NAME` means, the newest. Raise RunError if no run of that name has finished."""
    name, below = named.removeprefix(_PREFIX), Path(root).expanduser()
    sweeps = [file.parent for pattern in (SWEEP, f"*/{SWEEP}") for file in sorted((below / name).glob(pattern))]
    configs = [*(below / name).glob("*/config.yaml"), *(below / name).glob("config.yaml")]
    configs = [] if below / name in sweeps else configs  # a sweep is not represented by one of its runs
    states: dict[RunFolder, str] = {}
    for run in sorted((RunFolder(file.parent.resolve()) for file in configs), key=lambda run: run.path):
        try:
            states[run] = read_status(run).state
        except RunError:  # look at the other runs
            states[run] = "with an unreadable status.json"
    finished = [run for run, state in states.items() if state == FINISHED and run.model.is_dir()]
    if not finished and (jobs := [run for sweep in sweeps for run in runs_below(sweep)]):
        what, got = f"{named} is a sweep", "\n".join(run.shown for run in jobs[:_MOST_SHOWN])
        expected = "one of its runs" + f"; the first {_MOST_SHOWN} are above" * (len(jobs) > _MOST_SHOWN)
        hint = shlex.quote(jobs[-1].shown if " " in where else f"{where}={jobs[-1].shown}/model")
        raise RunError(what, where=where, got=got, expected=expected, hint=hint)
    if not finished:
        what = f"no run of {name!r} has finished"
        expected = "run:EXPERIMENT for its newest finished run, or run:EXPERIMENT/RUN"
        got = ", ".join(f"{run.path.name} {state}" for run, state in states.items()) or f"no runs in {below / name}"
        is_run = (below / name / "config.yaml").is_file()
        hint = f"rlhf why {typed_path(below / name)}" if is_run else _nearest_run(name, below)
        raise RunError(what, where=where, got=got, expected=expected, hint=hint)
    return max(finished, key=lambda run: read_status(run).updated_at)


def _nearest_run(name: str, root: Path) -> str:
    """Return the nearest existing run name, the command that trains the experiment, or the one that shows its runs."""
    there = [folder.name for folder in root.iterdir() if any(folder.glob("*/config.yaml"))] if root.is_dir() else []
    (experiment, slash, run), known = name.partition("/"), groups().get("exp", {})
    if experiment in known:
        return f"rlhf train +exp={experiment}"
    if experiment in there:
        return f"rlhf status {typed_path(root / experiment)}"
    if (close := nearest(experiment, there)) is not None:
        return f"{_PREFIX}{close}{slash}{run}"
    if inside := sorted(root.glob(f"*/{glob.escape(name)}/config.yaml")):
        return f"{_PREFIX}{inside[-1].parent.relative_to(root)}"
    if (close := nearest(experiment, known)) is not None:
        return f"rlhf train +exp={close}  # then {_PREFIX}{close}"
    newest = newest_run(root, finished=True)
    return "rlhf list exp" if newest is None else newest.shown


@dataclass(frozen=True)
class Prepared:
    """A checked experiment, the origin of each value, and the experiment before `run:NAME` and `auto` are resolved."""

    experiment: Experiment
    composed: Composed
    as_written: Experiment


def prepare(words: list[str], *, adjust: Adjust | None = None, keep_run_names: bool = False) -> Prepared:
    """Return the experiment that the overrides in `words` describe, checked.

    `adjust` changes the composed tree before it is validated. `keep_run_names` leaves `run:NAME` unresolved, for
    display. Raise ConfigError, Problems with all mistakes at once, and RunError if no run of a name has finished.
    """
    return _checked(compose(words), adjust, keep_run_names=keep_run_names)


def prepare_from(run: RunFolder, words: list[str], *, adjust: Adjust | None = None) -> Prepared:
    """Return the experiment frozen in a run, with the overrides in `words` on top. Raise as `prepare` does."""
    return _checked(compose(words, (run.read_config(), run.config)), adjust, keep_run_names=False)


def _checked(composed: Composed, adjust: Adjust | None, *, keep_run_names: bool) -> Prepared:
    if adjust is not None:
        adjust(composed.tree, composed.origins)
    experiment = expanded(validate(composed))
    with looking():
        return Prepared(experiment if keep_run_names else resolve_runs(experiment), composed, experiment)


def fill_in_policy(tree: JsonTree, origins: Origins) -> None:
    """Fill in a policy that is not given, or a policy or critic of a run that does not exist yet: scoring has none."""
    model, critic = section(tree, "model"), section(tree, "critic")
    if model.get("path") == _MISSING or _is_unfinished_run(model.get("path"), tree):
        model["path"] = NOT_GIVEN
    if _is_unfinished_run(critic.get("init"), tree):
        critic["init"] = "policy"


def fill_in_policy_and_data(tree: JsonTree, origins: Origins) -> None:
    """Do the same, and fill in a `data.path` that is not given: the rows come from a file of completions."""
    fill_in_policy(tree, origins)
    data = section(tree, "data")
    if data.get("path") == _MISSING:
        data["path"] = NOT_GIVEN


def _is_unfinished_run(named: object, tree: JsonTree) -> bool:
    with suppress(RunError):
        if isinstance(named, str) and is_run_name(named):
            find_run(named, str(section(tree, "run").get("root")), where="model.path")
        return False
    return True
