"""Collect the content of the page: for each section its values, or a sentence why it is empty."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.comparison.comparison import Comparison, compare, total_in_words
from rlhf_cli.comparison.logged_run import LoggedRun
from rlhf_cli.errors import RlhfError
from rlhf_cli.redaction import redacted, redacted_tree
from rlhf_cli.report.page.completion_pages import CompletionPages, completion_pages
from rlhf_cli.report.page.configurations import Configurations, Origin, configurations, link_to, origins
from rlhf_cli.report.page.evaluation_table import EvaluationTable, evaluation_tables
from rlhf_cli.report.page.noticed import Noticed, noticed
from rlhf_cli.report.page.palette import colours
from rlhf_cli.report.page.plotted_curves import Plot, plots_of
from rlhf_cli.report.page.plotted_metrics import HEALTH, SHARES, plotted_metrics
from rlhf_cli.report.page.setting_table import SettingTable, setting_table, shown_name
from rlhf_cli.report.page.time_by_setting import TimeBySetting, time_by_setting
from rlhf_cli.report.page.trade_offs import front_of, parallel_of
from rlhf_cli.report.page.verdict_lines import VerdictLine, verdict_lines


@dataclass(frozen=True)
class RunCard:
    """A run in the page's list. `link` leads to its folder, or is None if it has no local folder."""

    name: str
    place: str
    state: str
    reason: str | None
    progress: str
    setting: int
    counts: bool
    why_not: str | None
    link: str | None
    trainer: str


@dataclass(frozen=True)
class PageContent:
    """Everything on the page. `problems` lists the errors of folders that could not be read."""

    title: str
    lead: str
    verdict: list[VerdictLine]
    notes: list[str]
    comparison: Comparison
    table: SettingTable
    plots: list[Plot]
    constants: list[Plot]
    front: dict[str, object] | str
    parallel: dict[str, object] | str
    evaluations: list[EvaluationTable]
    times: TimeBySetting | None
    noticed: list[Noticed]
    completions: CompletionPages
    configurations: Configurations
    origins: list[Origin]
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

    def plots_in(self, section: str) -> list[Plot]:
        """Return the plots of one section."""
        return [plot for plot in self.plots if plot.metric.section == section]

    def constants_in(self, section: str) -> str:
        """Return the metrics of a section that never changed, as text.

        They are not plotted. Return '' if there are none.
        """
        constant = [plot for plot in self.constants if plot.metric.section == section]
        return ", ".join(f"{plot.metric.title} {plot.constant:.4g}" for plot in constant)

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
            "parallel": self.parallel if isinstance(self.parallel, dict) else None,
            "completions": {"beside": self.completions.side_by_side, "extremes": self.completions.extremes},
        }
        return redacted_tree(of_texts, values_only=True)

    def curve_data(self) -> list[dict[str, object]]:
        """Return the plots for the page's scripts.

        They are separate from `script_data` because they hold many numbers.
        """
        return [plot.as_json() for plot in self.plots]


def page_content(runs: Sequence[LoggedRun], problems: Sequence[RlhfError], *, title: str, out: Path) -> PageContent:
    """Return the content of a page to be written to `out`, for runs that were read together."""
    comparison = compare(runs)
    evaluations, unread = evaluation_tables(runs)
    completions = completion_pages(runs)
    metrics = plotted_metrics(runs, no_total=comparison.no_total)
    total = total_in_words(comparison)
    plots = plots_of(runs, comparison.grouped.settings, metrics)
    constants = [plot for plot in plots if plot.constant is not None and plot.metric.section in (SHARES, HEALTH)]
    return PageContent(
        title=redacted(runs[0].name if len(runs) == 1 else title),
        lead=_lead(comparison),
        verdict=verdict_lines(comparison),
        notes=[*comparison.notes, *([total] if total else []), *unread],
        comparison=comparison,
        table=setting_table(comparison),
        plots=[plot for plot in plots if plot not in constants],
        constants=constants,
        front=front_of(comparison),
        parallel=parallel_of(comparison),
        evaluations=evaluations,
        times=time_by_setting(comparison.grouped.settings),
        noticed=noticed(runs),
        completions=completions,
        configurations=configurations(runs),
        origins=origins(runs),
        cards=_cards(comparison, out),
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


def _cards(comparison: Comparison, out: Path) -> list[RunCard]:
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
            link=link_to(run, out),
            trainer=run.trainer,
        )
        for run in comparison.runs
    ]
