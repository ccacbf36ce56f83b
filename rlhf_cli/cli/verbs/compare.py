"""rlhf compare RUN...        runs side by side: what differs, a line per setting, and which is significantly better

RUN is a run folder, a sweep, a folder of runs, a glob in quotes, run:NAME, or wandb:entity/project[/group]. For a
folder with more than 12 runs, the newest sweep or the newest single runs are shown, and the others are listed. Runs
that differ only in their seed become one line with mean and 95 % interval. Components are raw; a total is shown only if
it is the same sum in all runs. If one key differs, there is a verdict on each component.

--on METRIC        give the verdict on this: correct, kl, length, total or a name of metrics.jsonl; several with
                   commas. -kl: less is better
--by KEY           if several keys differ: compare the values of this one (its end is enough: weight)
--baseline VALUE   compare the other values with this one, not all pairs: fewer comparisons
--window WINDOW    last (a tenth of the log events; default) or last-K (K of them)
--metrics A,B      show these instead, and take the Pareto front over the first three of them
--runs             show each run as well
--json             print all of it as JSON
--png FILE.png     draw intervals and differences (pip install 'rlhf-cli[plot]')
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare, comparison_json
from rlhf_cli.analysis.comparison.measures import is_shown
from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import none_named, read_by_words
from rlhf_cli.display.comparison_tables import draw_comparison, show_comparison, show_left_out, show_other_groups
from rlhf_cli.display.terminal import Screen, wide_console
from rlhf_cli.errors import EXIT_OK, RunError, UserError, raise_any, writing
from rlhf_cli.runs.metric_arrays import parse_window, read_columns
from rlhf_cli.runs.run_status import groups_of, newest_of

_LOOKED_INTO = 3


def run(options: Options) -> int:
    """Compare the named runs, print the comparison and return the exit code; name the runs that cannot be read."""
    if not options.words:
        raise none_named("rlhf compare", "run folders, a sweep, a glob", all_of_it=True)
    asked = ComparisonOptions(
        on=options.names("--on"),
        by=options.text("--by"),
        baseline=options.text("--baseline"),
        window=parse_window(options.text("--window") or "last"),
        metrics=options.names("--metrics"),
    )
    words = {word.removeprefix("-") for word in (*asked.on, *asked.metrics)}
    is_whole = asked != ComparisonOptions() or any(map(options.on, ("--json", "--png", "--runs")))
    groups = groups_of(options.words[0]) if len(options.words) == 1 and not is_whole else []
    runs, problems = read_by_words(
        newest_of(groups[0]) if groups else options.words,
        wanted=lambda metric: is_shown(metric) or metric in words,
        where="rlhf compare",
    )
    if not runs:
        raise_any(problems)
    logs = [run.folder.metrics for run in runs if run.folder is not None][:_LOOKED_INTO] if words else []
    all_names = list(dict.fromkeys(name for log in logs for name in read_columns(log)))  # for suggestions
    comparison = compare(runs, asked, all_names=all_names)
    _refuse_nothing(comparison, problems)
    if (png := options.path("--png")) is not None:
        with writing("the picture", "--png"):
            png.parent.mkdir(parents=True, exist_ok=True)
            draw_comparison(comparison, png)
    if options.as_json:
        print_json(comparison_json(comparison, problems))
        show_left_out(Screen(stderr=True), problems)
    else:
        console = wide_console()
        show_comparison(console, comparison, each_run=options.on("--runs"))
        show_left_out(console, problems)
        if png is not None:
            console.print(f"picture: {png}", markup=False, soft_wrap=True)
    if groups:
        show_other_groups(wide_console(), options.words[0].rstrip("/"), groups, len(runs))
    return EXIT_OK


def _refuse_nothing(comparison: Comparison, problems: Sequence[UserError]) -> None:
    """Raise RunError if no two runs can be compared, nor a single one shown."""
    runs = comparison.runs
    num_logged = sum(run.metrics.num_events > 0 for run in runs)
    if num_logged == 1 or (num_logged and comparison.in_common):
        return
    shared = sorted(set.intersection(*(set(run.metrics) for run in runs)))
    got = [f"{run.name} ({run.trainer}, {run.state}): {', '.join(list(run.metrics)[:4]) or 'nothing'}" for run in runs]
    if len(runs) == 1:
        what, expected, hint = "the run has logged nothing", "a run that has begun to train", "rlhf status"
    elif shared:
        metrics = ",".join(shared[:3])
        what = f"the runs are scored by different rewards, so their {metrics} cannot be compared"
        expected = "runs that are scored by a reward of the same name, or of the same trainer"
        hint = f"rlhf compare ... --metrics {metrics}, or rlhf eval RUN"
    else:
        what, expected = "the runs have no metric in common", "two runs that have logged the same metric"
        hint = "rlhf status"
    shown = "\n".join([*got[:4], *(["..."] if len(got) > 4 else [])])
    raise_any([RunError(what, got=shown, expected=expected, hint=hint), *problems])
