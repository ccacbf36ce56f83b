"""Gather what the page shows, and write it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_cli.analysis.comparison.comparison import Comparison, compare
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, read_runs
from rlhf_cli.display.page.completion_pages import completion_pages
from rlhf_cli.display.page.curves import front_of, plots_of, plotted_metrics
from rlhf_cli.display.page.embedding import colours, deflated, own_file, plotly_bundle, policy, script_json, sha256
from rlhf_cli.display.page.first_and_last_answers import first_and_last_answers
from rlhf_cli.display.page.tables import (
    common_values,
    differing_values,
    evaluation_tables,
    provenance_lines,
    setting_lines,
    shared_findings,
    shown_name,
    verdict_lines,
)
from rlhf_cli.errors import Problems, RlhfError, UserError
from rlhf_cli.runs.run_folder import RunFolder, runs_in, write_text
from rlhf_cli.text.redaction import redacted, redacted_tree

_MOST_COLUMNS = 16


def page_content(runs: Sequence[LoggedRun], problems: Sequence[RlhfError], *, title: str) -> dict[str, Any]:
    """Return everything on the page, by the names that its template uses, for runs that were read together.

    A run's index is its number on the page. jinja redacts every text that it writes.
    """
    comparison = compare(runs)
    settings, measures = comparison.grouped.settings, comparison.measures[:_MOST_COLUMNS]
    evaluations, unread = evaluation_tables(runs)
    setting_of: dict[str, int] = {}
    why_not: dict[str, str] = {}
    for number, setting in enumerate(settings):
        setting_of |= dict.fromkeys([*(run.name for run in setting.runs), *setting.left_out], number)
        why_not |= setting.left_out
    return {
        "title": runs[0].name if len(runs) == 1 else title,
        "lead": _lead(comparison),
        "verdict": verdict_lines(comparison),
        "notes": [*comparison.notes, *([comparison.no_total] if comparison.no_total else []), *unread],
        "comparison": comparison,
        "is_comparison": len(runs) > 1,
        "has_rewards": any(run.weights for run in runs),
        "measures": measures,
        "lines": setting_lines(comparison, measures),
        "plots": plots_of(runs, settings, plotted_metrics(runs, no_total=comparison.no_total)),
        "front": front_of(comparison),
        "evaluations": evaluations,
        "first_and_last": first_and_last_answers(runs[0].folder) if len(runs) == 1 else None,
        "noticed": shared_findings(runs),
        "completions": completion_pages(runs),
        "differing": differing_values(runs),
        "common": common_values(runs),
        "origins": provenance_lines(runs),
        "cards": [{"run": one, "setting": setting_of[one.name], "why_not": why_not.get(one.name)} for one in runs],
        "problems": [str(problem) for problem in problems],
    }


def _script_data(content: Mapping[str, Any]) -> dict[str, object]:
    """Return the data that the page's scripts read, except the curves."""
    settings, cards = content["comparison"].grouped.settings, content["cards"]
    front, completions = content["front"], content["completions"]
    of_texts: dict[str, object] = {
        "settings": [
            {
                "name": shown_name(one),
                "runs": [place for place, card in enumerate(cards) if card["setting"] == number],
                "colours": colour,
            }
            for number, (one, colour) in enumerate(zip(settings, colours(len(settings)), strict=True))
        ],
        "runs": [{"name": card["run"].name, "setting": card["setting"]} for card in cards],
        "front": front if isinstance(front, dict) else None,
        "completions": {"beside": completions.side_by_side, "extremes": completions.extremes},
    }
    return redacted_tree(of_texts, values_only=True)


def _lead(comparison: Comparison) -> str:
    runs, settings = comparison.runs, comparison.grouped.settings
    states = Counter(run.state for run in runs)
    trainers = ", ".join(dict.fromkeys(run.trainer for run in runs))
    said = [f"{len(runs)} run{'s' if len(runs) != 1 else ''}"]
    if len(settings) > 1:
        said.append(f"{len(settings)} settings")
    said.append(", ".join(f"{count} {state}" if len(states) > 1 else state for state, count in states.items()))
    return " · ".join([*said, trainers, time.strftime("written %Y-%m-%d %H:%M %Z").strip()])


NAME = "report.html"
"""File name of the report in the folder of its run or sweep."""

_SCRIPTS = ("state.js", "plots.js", "trade_offs.js", "completions.js", "start.js")


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of the runs in these folders to `out` and return its path. A folder may be a run or hold runs.

    A sweep calls this at its end with its own folder. Raise RunError if no run can be read, OSError if `out` cannot be
    written.
    """
    found = {folder: None for place in folders for folder in runs_in(place)}
    runs, problems = read_runs(found)
    report_on(runs, problems, out, title=title_of([place.resolve() for place in folders]))
    return out


def report_at_the_end(folder: Path) -> str:
    """Write the report of a sweep or run into its folder and return a line that says where it is.

    If that fails, the line says why. No error is raised, because the training itself succeeded.
    """
    try:
        write_report([folder], folder / NAME)
        return f"report: {RunFolder(folder).shown}/{NAME}"
    except Exception as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        return f"no report: {said}; rlhf report {RunFolder(folder).shown} tries again"


def report_on(runs: Sequence[LoggedRun], problems: Sequence[RlhfError], out: Path, *, title: str) -> dict[str, Any]:
    """Write the report of runs that were read together to `out`, including the problems of other folders.

    Return what `rlhf report --json` prints of it. Raise the problems if there are no runs, OSError if `out` cannot be
    written.
    """
    if not runs:
        raise problems[0] if len(problems) == 1 else Problems([one for one in problems if isinstance(one, UserError)])
    content = page_content(runs, problems, title=title)
    html = render(content)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html)
    return {
        "num_bytes": len(html.encode()),
        "runs": len(runs),
        "settings": len(content["comparison"].grouped.settings),
        "plots": len(content["plots"]),
        "completion_steps": content["completions"].num_steps,
        "left_out": [redacted(text) for text in content["problems"]],
    }


def render(content: Mapping[str, Any]) -> str:
    """Return the page. jinja escapes every text; data for scripts is embedded as escaped JSON."""
    import jinja2
    from markupsafe import Markup

    def without_secrets(value: object) -> object:
        """Redact texts, except Markup: the hashes in the policy must stay intact."""
        return redacted(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rlhf_cli.display.page"),
        autoescape=True,
        finalize=without_secrets,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = '"use strict";\n' + "\n".join(own_file(name) for name in _SCRIPTS)
    plotly, plotly_hash = plotly_bundle()
    return environment.get_template("page.html.jinja").render(
        page=content,
        policy=Markup(policy([sha256(f"\n{script}\n"), plotly_hash])),
        css=Markup(own_file("page.css")),
        script=Markup(script),
        data=Markup(script_json(_script_data(content))),
        curves=Markup(deflated(script_json([plot.as_json() for plot in content["plots"]]))),
        plotly=Markup(plotly),
    )


def title_of(folders: Sequence[Path]) -> str:
    """Return a page title: the last two parts of the first folder's path, and the number of other folders."""
    names = ["/".join(folder.parts[-2:]) for folder in folders]
    return "runs" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
