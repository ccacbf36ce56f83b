"""Make the tables of the page: settings, configurations, evaluations, findings, verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_cli.analysis.comparison.comparison import Comparison
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, axes, differences, value_text
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.settings import SettingRuns
from rlhf_cli.analysis.diagnosis.finding import SEVERITIES
from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose_readable
from rlhf_cli.display.comparison_tables import estimate_texts
from rlhf_cli.evaluation.evaluation_files import read_evaluation
from rlhf_cli.text.json_values import JsonValue
from rlhf_cli.text.redaction import HIDDEN, is_secret_key, redacted


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


_MOST_VALUES = 60
_NOT_SHOWN = frozenset({"choices", "overrides", "made_by", "wandb_id"})


@dataclass(frozen=True)
class DifferingValues:
    """A key in which runs differ. `values` maps each value as text -> the runs that have it.

    `follows` is the key that this one changes with, or '' if it changes by itself.
    """

    key: str
    values: dict[str, list[int]]
    follows: str


def differing_values(runs: Sequence[LoggedRun]) -> list[DifferingValues]:
    """Return the keys in which several runs differ. Secrets are hidden, as in every file that is written."""
    if len(runs) < 2:
        return []
    follows = {key: axis.key for axis in axes(runs) for key in axis.others if key != axis.key}
    found = []
    for key in differences(runs):
        values = _runs_by(_shown(key, run.settings[key]) if key in run.settings else "(not set)" for run in runs)
        found.append(DifferingValues(key, values, follows.get(key, "")))
    return found


def common_values(runs: Sequence[LoggedRun]) -> dict[str, str]:
    """Return dotted key -> the value that all runs share, as text with secrets hidden."""
    first: Mapping[str, object] = runs[0].settings if runs else {}
    same = [key for key in first if all(key in run.settings and run.settings[key] == first[key] for run in runs)]
    return {key: _shown(key, first[key]) for key in same}


@dataclass(frozen=True)
class ProvenanceLine:
    """An entry of provenance.json that some runs share. `runs` is None if all runs share it."""

    what: str
    says: str
    runs: list[int] | None


def provenance_lines(runs: Sequence[LoggedRun]) -> list[ProvenanceLine]:
    """Return what provenance.json says of the runs: commands, versions, machines, hashes. List a shared value once."""
    lines = []
    for what in dict.fromkeys(key for run in runs for key in run.provenance if key not in _NOT_SHOWN):
        for says, places in _runs_by(redacted(_entry_text(run.provenance.get(what))) for run in runs).items():
            if says:
                lines.append(ProvenanceLine(what, says, None if len(places) == len(runs) else places))
    return lines


def _entry_text(entry: JsonValue) -> str:
    """Return an entry of a file in one line: of a section its keys with their values, of a list its entries."""
    if isinstance(entry, dict):
        return ", ".join(f"{name} {value}" for name, value in entry.items() if value is not None)
    return "; ".join(map(_entry_text, entry)) if isinstance(entry, list) else "" if entry is None else str(entry)


def _runs_by(texts: Iterable[str]) -> dict[str, list[int]]:
    """Return text -> the runs that have it, for the first sixty texts."""
    found: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        found.setdefault(text, []).append(place)
    return dict(list(found.items())[:_MOST_VALUES])


def _shown(key: str, value: object) -> str:
    """Return a value as text, with secrets hidden. A `${...}` reference is shown, because it holds no secret itself."""
    text = value_text(value)
    is_hidden = is_secret_key(key) and isinstance(value, str) and not value.startswith("${")
    return HIDDEN if is_hidden and value else redacted(text)


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
