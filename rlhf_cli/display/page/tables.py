"""Make the tables of the page: settings, evaluations, findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.analysis.comparison.comparison import Comparison
from rlhf_cli.analysis.comparison.logged_run import LoggedRun
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.settings import SettingRuns
from rlhf_cli.analysis.diagnosis.finding import SEVERITIES
from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose_readable
from rlhf_cli.display.comparison_tables import estimate_texts
from rlhf_cli.evaluation.evaluation_files import read_evaluation


@dataclass(frozen=True)
class SettingLine:
    """A line of the table for one setting. `place` is its index; `seeds` is the number of seeds."""

    place: int
    name: str
    seeds: int
    cells: list[str]
    left_out: dict[str, str]


def setting_lines(comparison: Comparison, measures: Sequence[RunMeasure]) -> list[SettingLine]:
    """Return the lines of a comparison's settings, in their order, with a cell for each of the measures."""
    settings = comparison.grouped.settings
    columns = [
        estimate_texts([comparison.estimates[setting.name][measure.label] for setting in settings])
        for measure in measures
    ]
    return [
        SettingLine(place, shown_name(setting), len(setting.by_seed), list(cells), dict(setting.left_out))
        for place, (setting, cells) in enumerate(zip(settings, zip(*columns, strict=True), strict=True))
    ]


def shown_name(setting: SettingRuns) -> str:
    """Return a setting's display name. If it has only one run with a shorter name, return the run's name."""
    names = [run.name for run in setting.runs] + list(setting.left_out)
    return min(setting.name, names[0], key=len) if len(names) == 1 else setting.name


@dataclass(frozen=True)
class SharedFinding:
    """A finding. `says` is its headline in the first of the `runs` that have it; `change` is what to type, or ''."""

    severity: str
    says: str
    change: str
    reason: str
    runs: list[int]


def shared_findings(runs: Sequence[LoggedRun]) -> list[SharedFinding]:
    """Return the findings of all runs, the most severe first; among equals, those of the most runs first."""
    found: dict[tuple[str, str, str], SharedFinding] = {}
    for place, run in enumerate(runs):
        for finding in diagnose_readable(run.folder).diagnosis.findings if run.folder is not None else ():
            change, reason = (finding.changes[0].words, finding.changes[0].reason) if finding.changes else ("", "")
            shared = SharedFinding(finding.severity, finding.what, change, reason, [])
            found.setdefault((finding.severity, finding.kind, finding.subject), shared).runs.append(place)
    return sorted(found.values(), key=lambda finding: (SEVERITIES.index(finding.severity), -len(finding.runs)))


@dataclass(frozen=True)
class EvaluationTable:
    """The table of one named evaluation. `figures` are its columns; `lines` maps run index -> figure -> text."""

    name: str
    data: str
    figures: list[str]
    lines: dict[int, dict[str, str]]


def evaluation_tables(runs: Sequence[LoggedRun]) -> tuple[list[EvaluationTable], list[str]]:
    """Return one table per evaluation name, and notes about files that could not be read."""
    tables: dict[str, EvaluationTable] = {}
    notes = []
    for place, run in enumerate(runs):
        files = sorted((run.folder.path / "eval").glob("*.json")) if run.folder is not None else []
        for file in files:
            try:
                evaluation = read_evaluation(file)
            except (OSError, ValueError) as error:
                notes.append(f"{run.name}: eval/{file.name} cannot be read ({type(error).__name__})")
                continue
            name = evaluation.rows_in_words
            table = tables.setdefault(name, EvaluationTable(name, evaluation.heading.data, [], {}))
            figures = dict(evaluation.figures()).items()
            table.lines[place] = {
                figure: estimate_texts([value])[0] for figure, value in figures if not figure.endswith("/total")
            }
            table.figures.extend(figure for figure in table.lines[place] if figure not in table.figures)
    return list(tables.values()), notes
