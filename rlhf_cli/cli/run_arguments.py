"""Read the runs and experiments that words of a command line mean."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlhf_cli.analysis.comparison.frames import is_wandb, read_wandb
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, named, read_runs
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.schema.experiment import valid_keys
from rlhf_cli.errors import ConfigError, RunError, UserError
from rlhf_cli.plan.prepare import Prepared, find_run, is_run_name, prepare, prepare_from
from rlhf_cli.runs.metric_arrays import Wanted
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, names_a_run, open_run, runs_in
from rlhf_cli.runs.run_status import with_newest
from rlhf_cli.text.json_values import leaves
from rlhf_cli.text.suggest import nearest

_ROOT = "runs"


def read_by_words(
    words: Sequence[str], *, wanted: Wanted | None, where: str
) -> tuple[list[LoggedRun], list[UserError]]:
    """Return the readable runs, each once, and the errors for the others; `wanted` selects the metrics to read."""
    folders: dict[RunFolder, None] = {}
    problems: list[UserError] = []
    elsewhere: dict[str, LoggedRun] = {}
    for word in words:
        try:
            if is_wandb(word):
                read = read_wandb(word, wanted=wanted or (lambda metric: True))
                elsewhere |= {run.place: run for run in read}
            else:
                folders.update(dict.fromkeys(folders_of(word, where=where)))
        except UserError as error:
            problems.append(error)
    runs, unreadable = read_runs(folders, wanted=wanted)
    return (named([*runs, *elsewhere.values()]) if elsewhere else runs), [*problems, *unreadable]


def folders_of(word: str, *, where: str) -> Iterable[RunFolder]:
    """Return the runs that a word names. Raise RunError if it names none."""
    path = place_of(word, where=where)
    if path.exists() or not glob.has_magic(word):
        return runs_in(path)
    found = [Path(place) for place in sorted(glob.glob(os.path.expanduser(word))) if Path(place).is_dir()]
    if not found:
        raise RunError("no folder fits this pattern", got=word, expected="a glob of run folders", hint="ls runs/*")
    return [folder for place in found for folder in runs_in(place)]


def place_of(word: str, *, where: str) -> Path:
    """Return the folder that a word names, a sweep of `run:NAME` too. Raise RunError if no run of it has finished."""
    if not is_run_name(word):
        return Path(word).expanduser()
    below = Path(_ROOT, word.partition(":")[2])
    return below if (below / SWEEP).is_file() else find_run(word, _ROOT, where=where).path


def one_named(words: list[str], verb: str, expected: str, *, more: str = "", finished: bool = False) -> str:
    """Remove the one word that names a run from `words` and return it. Raise RunError if there is not one."""
    named = [word for word in words if names_a_run(word)]
    if len(named) != 1:
        raise none_named(verb, expected, got=" ".join(named), hint=with_newest(verb, more, finished=finished))
    words.remove(named[0])
    return named[0]


def none_named(
    verb: str, expected: str, *, got: str = "", hint: str | None = None, all_of_it: bool = False
) -> RunError:
    """Return the error for a command line without a run; `got` are the runs, where it has too many."""
    problem = "one run at a time" if got else "no run was named"
    hint = hint or with_newest(verb, all_of_it=all_of_it)
    return RunError(problem, got=got or None, expected=expected, hint=hint)


def run_at(named: str, words: list[str], *, where: str) -> RunFolder:
    """Return the run at a path or of `run:NAME`; a word `run.root=FOLDER` sets the folder of runs."""
    if not is_run_name(named):
        return open_run(Path(named))
    root = next((word.partition("=")[2] for word in words if word.lstrip("+").startswith("run.root=")), _ROOT)
    return find_run(named, root, where=where)


def named_experiment(words: list[str]) -> tuple[Prepared, list[str]]:
    """Return the experiment that words mean, and the keys typed beside it.

    A word without `=` is a run or a key. Raise ConfigError for a word that is neither, and without an experiment.
    """
    overrides = [word for word in words if word.startswith("~") or ("=" in word and not Path(word).is_dir())]
    others = [word for word in words if word not in overrides]
    runs = [word for word in others if is_run_name(word) or (Path(word) / "config.yaml").is_file()]
    keys = [word.strip(".") for word in others if word not in runs]
    for folder in (key for key in keys if "/" in key):
        open_run(Path(folder))  # it raises: no key has such a name
    if len(runs) > 1:
        raise none_named("rlhf show", "one run", got=" ".join(runs))
    run = run_at(runs[0], overrides, where="command line") if runs else None
    if run is None and not overrides:
        named = nearest(keys[0], groups().get("exp", {})) if keys and keys[0] not in valid_keys([]) else None
        hint = " ".join([f"+exp={named}", *keys[1:]] if named else ["+exp=quickstart", *keys])
        what, expected = "which experiment?", "+exp=NAME, a run folder or run:NAME"
        hint = f"{hint}, or rlhf list exp"
        raise ConfigError(what, where="command line", got=" ".join(keys) or "no words", expected=expected, hint=hint)
    prepared = prepare(overrides, keep_run_names=True) if run is None else prepare_from(run, overrides)
    known = [key for key, _ in leaves(prepared.as_written.model_dump(mode="json"))]
    for key in (key for key in keys if key not in known):
        ends = {name.rpartition(".")[2]: name for name in known}
        close = ends.get(key) or nearest(key, [*known, *ends])
        what = f"there is no key {key!r} in this configuration"
        expected = "a section or key, such as " + ", ".join(name for name in known if "." not in name)
        raise ConfigError(what, where="command line", expected=expected, hint=ends.get(close or "", close))
    return prepared, keys
