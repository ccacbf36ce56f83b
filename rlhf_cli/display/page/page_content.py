"""Gather what the page shows, and write it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.analysis.comparison.comparison import Comparison, compare
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, read_runs
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.display.page.completion_pages import CompletionPages, completion_pages
from rlhf_cli.display.page.curves import Plot, front_of, plots_of, plotted_metrics
from rlhf_cli.display.page.embedding import colours, deflated, own_file, plotly_bundle, policy, script_json, sha256
from rlhf_cli.display.page.first_and_last_answers import FirstAndLastAnswers, first_and_last_answers
from rlhf_cli.display.page.tables import (
    DifferingValues,
    EvaluationTable,
    ProvenanceLine,
    SettingLine,
    SharedFinding,
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


@dataclass(frozen=True)
class RunCard:
    """A run in the page's list."""

    name: str
    place: str
    state: str
    reason: str | None
    progress: str
    setting: int
    counts: bool
    why_not: str | None
    trainer: str


@dataclass(frozen=True)
class PageContent:
    """Everything on the page. `problems` lists the errors of folders that could not be read."""

    title: str
    lead: str
    verdict: list[tuple[str, str]]
    notes: list[str]
    comparison: Comparison
    lines: list[SettingLine]
    plots: list[Plot]
    front: dict[str, object] | str
    evaluations: list[EvaluationTable]
    first_and_last: FirstAndLastAnswers | None
    noticed: list[SharedFinding]
    completions: CompletionPages
    differing: list[DifferingValues]
    common: dict[str, str]
    origins: list[ProvenanceLine]
    cards: list[RunCard]
    problems: list[str]

    @property
    def runs(self) -> list[LoggedRun]:
        """Return the runs in order. A run's index is its number on the page."""
        return self.comparison.runs

    @property
    def is_comparison(self) -> bool:
        """Return whether there is more than one run. If not, the page leaves out the comparisons."""
        return len(self.cards) > 1

    @property
    def has_rewards(self) -> bool:
        """Return whether any run learns from rewards."""
        return any(run.weights for run in self.runs)

    @property
    def measures(self) -> list[RunMeasure]:
        """Return the measures of the table of settings: the first sixteen."""
        return self.comparison.measures[:_MOST_COLUMNS]

    def plots_in(self, section: str) -> list[Plot]:
        """Return the plots of one section."""
        return [plot for plot in self.plots if plot.metric.section == section]

    def script_data(self) -> dict[str, object]:
        """Return the data that the page's scripts read, except the curves."""
        settings = self.comparison.grouped.settings
        members = [
            [place for place, card in enumerate(self.cards) if card.setting == number]
            for number in range(len(settings))
        ]
        of_texts = {
            "settings": [
                {"name": shown_name(one), "runs": runs, "colours": colour}
                for one, runs, colour in zip(settings, members, colours(len(settings)), strict=True)
            ],
            "runs": [{"name": card.name, "setting": card.setting} for card in self.cards],
            "front": self.front if isinstance(self.front, dict) else None,
            "completions": {"beside": self.completions.side_by_side, "extremes": self.completions.extremes},
        }
        return redacted_tree(of_texts, values_only=True)


def page_content(runs: Sequence[LoggedRun], problems: Sequence[RlhfError], *, title: str) -> PageContent:
    """Return the content of a page for runs that were read together."""
    comparison = compare(runs)
    evaluations, unread = evaluation_tables(runs)
    completions = completion_pages(runs)
    metrics = plotted_metrics(runs, no_total=comparison.no_total)
    plots = plots_of(runs, comparison.grouped.settings, metrics)
    return PageContent(
        title=redacted(runs[0].name if len(runs) == 1 else title),
        lead=_lead(comparison),
        verdict=verdict_lines(comparison),
        notes=[*comparison.notes, *([comparison.no_total] if comparison.no_total else []), *unread],
        comparison=comparison,
        lines=setting_lines(comparison, comparison.measures[:_MOST_COLUMNS]),
        plots=plots,
        front=front_of(comparison),
        evaluations=evaluations,
        first_and_last=first_and_last_answers(runs[0].folder) if len(runs) == 1 else None,
        noticed=shared_findings(runs),
        completions=completions,
        differing=differing_values(runs),
        common=common_values(runs),
        origins=provenance_lines(runs),
        cards=_cards(comparison),
        problems=[redacted(str(problem)) for problem in problems],
    )


def _lead(comparison: Comparison) -> str:
    runs, settings = comparison.runs, comparison.grouped.settings
    states = Counter(run.state for run in runs)
    trainers = ", ".join(dict.fromkeys(run.trainer for run in runs))
    said = [f"{len(runs)} run{'s' if len(runs) != 1 else ''}"]
    if len(settings) > 1:
        said.append(f"{len(settings)} settings")
    said.append(", ".join(f"{count} {state}" if len(states) > 1 else state for state, count in states.items()))
    return " · ".join([*said, trainers, time.strftime("written %Y-%m-%d %H:%M %Z").strip()])


def _cards(comparison: Comparison) -> list[RunCard]:
    setting_of: dict[str, int] = {}
    why_not: dict[str, str] = {}
    for number, setting in enumerate(comparison.grouped.settings):
        setting_of.update(dict.fromkeys([run.name for run in setting.runs], number))
        setting_of.update(dict.fromkeys(setting.left_out, number))
        why_not.update(setting.left_out)
    return [
        RunCard(
            name=run.name,
            place=run.place,
            state=run.state,
            reason=redacted(run.reason) if run.reason else None,
            progress=f"step {run.step}" + (f" of {run.max_steps}" if run.max_steps is not None else ""),
            setting=setting_of[run.name],
            counts=run.name not in why_not,
            why_not=redacted(why_not[run.name]) if run.name in why_not else None,
            trainer=run.trainer,
        )
        for run in comparison.runs
    ]


NAME = "report.html"
"""File name of the report in the folder of its run or sweep."""

_SCRIPTS = ("state.js", "plots.js", "trade_offs.js", "completions.js", "start.js")


@dataclass(frozen=True)
class WrittenReport:
    """The location and size of a report. `left_out` lists the errors of folders that could not be read."""

    path: Path
    num_bytes: int
    runs: int
    settings: int
    plots: int
    completion_steps: int
    left_out: list[str]


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of the runs in these folders to `out` and return its path. A folder may be a run or hold runs.

    A sweep calls this at its end with its own folder. Raise RunError if no run can be read, OSError if `out` cannot be
    written.
    """
    found = {folder: None for place in folders for folder in runs_in(place)}
    runs, problems = read_runs(found)
    return report_on(runs, problems, out, title=title_of([place.resolve() for place in folders])).path


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


def report_on(runs: Sequence[LoggedRun], problems: Sequence[RlhfError], out: Path, *, title: str) -> WrittenReport:
    """Write the report of runs that were read together to `out`, including the problems of other folders.

    Raise the problems if there are no runs, OSError if `out` cannot be written.
    """
    if not runs:
        raise problems[0] if len(problems) == 1 else Problems([one for one in problems if isinstance(one, UserError)])
    content = page_content(runs, problems, title=title)
    html = render(content)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html)
    settings, steps = content.comparison.grouped.settings, content.completions.num_steps
    return WrittenReport(out, len(html.encode()), len(runs), len(settings), len(content.plots), steps, content.problems)


def render(content: PageContent) -> str:
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
        data=Markup(script_json(content.script_data())),
        curves=Markup(deflated(script_json([plot.as_json() for plot in content.plots]))),
        plotly=Markup(plotly),
    )


def title_of(folders: Sequence[Path]) -> str:
    """Return a page title: the last two parts of the first folder's path, and the number of other folders."""
    names = ["/".join(folder.parts[-2:]) for folder in folders]
    return "runs" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
