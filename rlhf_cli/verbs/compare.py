"""rlhf compare RUN...        runs side by side: what differs, a line a setting, and which is better beyond doubt

RUN is a run folder, a sweep, a folder of runs, a glob in quotes, run:NAME, or wandb:entity/project[/group]. Runs that
differ only in their seed become one line with mean and 95 % interval. Components are raw; a total is shown only where
it is the same sum in all runs. Where one key differs the verdict on each component comes of itself.

--on METRIC        the verdict is about this: correct, kl, length, total or a name of metrics.jsonl; more than one with
                   commas. -kl: less is better
--by KEY           the key whose values it tells apart (its end is enough: weight), where several differ
--baseline VALUE   hold the other values against this one, not each against each: fewer comparisons
--weights a=1,b=2  one total for all runs: the sum of their raw means with these weights
--window WINDOW    last (a tenth of the log events; default), last-K (K of them), best, auc (area per step), first
--estimator iqm    interquartile mean with a bootstrap over seeds instead of the mean with Student's interval
--metrics A,B      show these instead
--front A,B[,C]    the front over these instead of the first components
--runs             each run as well
--json             all of it as JSON
--csv FILE         a row a run; - for the screen
--latex [FILE]     a table for booktabs; on the screen without a file
--png FILE         a picture: intervals, differences and the front (pip install 'rlhf-cli[plot]')
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from rlhf_cli.comparison.comparison import Asked, Comparison, compare, in_common
from rlhf_cli.comparison.logged_run import LoggedRun, named, read_runs
from rlhf_cli.comparison.measures import is_shown
from rlhf_cli.comparison.metric_columns import Wanted, read_columns
from rlhf_cli.comparison.over_seeds import ESTIMATORS, MEAN
from rlhf_cli.comparison.wandb_runs import is_wandb, read_wandb
from rlhf_cli.comparison.windows import parse_window
from rlhf_cli.comparison.written_out import comparison_csv, comparison_json, comparison_latex
from rlhf_cli.errors import EXIT_OK, Problems, RlhfError, RunError, UserError
from rlhf_cli.runs.found_runs import runs_in
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.screen.comparison_shown import show_comparison, show_left_out

_ROOT = "runs"
_BY_NAME = "run:"
_SCREEN = "-"
_PIPE_WIDTH = 200
_WITH_A_MINUS = ("--on", "--metrics", "--front", "--baseline")
_LOOKED_INTO = 3


def run(argv: list[str]) -> int:
    """Compare the runs that `argv` names and print it; returns the exit code.

    A run that cannot be read is left out, and it is said why. Raises RunError where none is named or none has logged
    anything, Problems where none can be read, UserError for what no run has.
    """
    options = _parse(argv)
    asked = Asked(
        on=_names(options.on),
        by=options.by,
        baseline=options.baseline,
        window=parse_window(options.window),
        weights=options.weights,
        estimator=options.estimator,
        metrics=_names(options.metrics),
        front=_names(options.front),
    )
    words = {word.removeprefix("-") for word in (*asked.on, *asked.metrics, *asked.front)}
    runs, problems = _read(options.words, lambda metric: is_shown(metric) or metric in words)
    if not runs:
        raise problems[0] if len(problems) == 1 else Problems([one for one in problems if isinstance(one, UserError)])
    comparison = compare(runs, asked, all_names=_all_names(runs) if words else ())
    _refuse_nothing(comparison, problems)
    _print(comparison, problems, options)
    return EXIT_OK


def _print(comparison: Comparison, problems: Sequence[RlhfError], options: argparse.Namespace) -> None:
    if options.png is not None:
        from rlhf_cli.report.comparison_picture import draw_comparison

        draw_comparison(comparison, options.png)
    texts = {"csv": comparison_csv, "latex": comparison_latex}
    for name, written in texts.items():
        place = getattr(options, name)
        if place not in (None, _SCREEN):
            Path(place).write_text(written(comparison), encoding="utf-8")
    on_screen = [name for name in texts if getattr(options, name) == _SCREEN]
    if options.json:
        print(json.dumps(comparison_json(comparison, problems), indent=2))
    elif on_screen:
        print(texts[on_screen[0]](comparison), end="")
    else:
        # In a pipe nobody sees a table that is folded at 80 columns.
        console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH)
        show_comparison(console, comparison, each_run=options.runs)
        show_left_out(console, problems)
        return
    show_left_out(Console(stderr=True), problems)


def _refuse_nothing(comparison: Comparison, problems: Sequence[RlhfError]) -> None:
    """Raise RunError where no two runs can be held against each other, nor a single one shown."""
    runs = comparison.runs
    if any(run.metrics.num_events for run in runs) and (len(runs) == 1 or in_common(comparison)):
        return
    logged = [f"{run.name} ({run.state}): {', '.join(list(run.metrics)[:4]) or 'nothing'}" for run in runs[:4]]
    error = RunError(
        "the runs have no metric in common" if len(runs) > 1 else "the run has logged nothing",
        got="\n".join([*logged, *(["..."] if len(runs) > 4 else [])]),
        expected="two runs that have logged the same metric" if len(runs) > 1 else "a run that has begun to train",
        hint="rlhf status shows what has become of them",
    )
    raise Problems([error, *(one for one in problems if isinstance(one, UserError))]) if problems else error


def _read(words: Sequence[str], wanted: Wanted) -> tuple[list[LoggedRun], list[RlhfError]]:
    folders: dict[RunFolder, None] = {}
    problems: list[RlhfError] = []
    elsewhere: list[LoggedRun] = []
    for word in words:
        try:
            if is_wandb(word):
                elsewhere += read_wandb(word, wanted=wanted)
            else:
                folders.update(dict.fromkeys(_folders(word)))
        except RlhfError as error:
            problems.append(error)
    runs, unreadable = read_runs(folders, wanted=wanted)
    return (named([*runs, *elsewhere]) if elsewhere else runs), [*problems, *unreadable]


def _folders(word: str) -> Iterable[RunFolder]:
    """Return the runs that a word means. Raises RunError for one that means none."""
    if word.startswith(_BY_NAME):
        from rlhf_cli.jobs.run_names import find_run  # pydantic's classes of all sections come with it

        below = Path(_ROOT) / word.removeprefix(_BY_NAME)
        return runs_in(below) if (below / "sweep.json").is_file() else [find_run(word, _ROOT, where="rlhf compare")]
    path = Path(word).expanduser()
    if path.exists() or not glob.has_magic(word):
        return runs_in(path)
    found = [Path(place) for place in sorted(glob.glob(os.path.expanduser(word))) if Path(place).is_dir()]
    if not found:
        raise RunError("no folder fits this pattern", got=word, expected="a glob of run folders", hint="ls runs/*")
    return [folder for place in found for folder in runs_in(place)]


def _all_names(runs: Sequence[LoggedRun]) -> list[str]:
    """Return every metric that the first runs have logged, to suggest one of them."""
    files = [run.folder.metrics for run in runs if run.folder is not None]
    return list(dict.fromkeys(name for file in files[:_LOOKED_INTO] for name in read_columns(file)))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rlhf compare", add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--on", "--by", "--baseline", "--weights", "--metrics", "--front", "--csv"):
        parser.add_argument(name)
    parser.add_argument("--window", default="last")
    parser.add_argument("--estimator", default=MEAN, choices=ESTIMATORS)
    parser.add_argument("--latex", nargs="?", const=_SCREEN)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--runs", action="store_true")
    parser.add_argument("--json", action="store_true")
    try:
        options, words = parser.parse_known_args(_joined(argv))
    except argparse.ArgumentError as error:
        raise UserError(error.message, where=error.argument_name, hint="rlhf compare --help") from None
    if options.latex not in (None, _SCREEN) and not options.latex.endswith(".tex"):
        words.append(options.latex)  # `--latex RUN`: what follows is no file of LaTeX
        options.latex = _SCREEN
    if unknown := [word for word in words if word.startswith("-")]:
        raise UserError("there is no such option", got=unknown[0], hint="rlhf compare --help")
    if not words:
        raise RunError("no run was named", expected="run folders, a sweep, a glob", hint="rlhf compare runs/quickstart")
    if sum((options.json, options.csv == _SCREEN, options.latex == _SCREEN)) > 1:
        got = "two of --json, --csv -, --latex"
        raise UserError("one thing at a time goes to the screen", got=got, hint="--csv FILE")
    options.words = words
    return options


def _joined(argv: Sequence[str]) -> list[str]:
    """`--on -kl` is one option with a value: argparse would take `-kl` for another option."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] in _WITH_A_MINUS and word.startswith("-") and not word.startswith("--"):
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return joined
