"""Make the tables of the page: settings, configurations, evaluations, findings, verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, axes, differences, value_text
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.settings import SettingRuns
from rlhf_cli.analysis.diagnosis.finding import SEVERITIES
from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose_readable
from rlhf_cli.display.comparison_tables import estimate_texts
from rlhf_cli.evaluation.evaluation_files import read_evaluation
from rlhf_cli.text.json_values import section
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
        estimate_texts([comparison.estimates[one.name][measure.label] for one in settings]) for measure in measures
    ]
    return [
        SettingLine(place, shown_name(one), len(one.by_seed), [column[place] for column in columns], dict(one.left_out))
        for place, one in enumerate(settings)
    ]


def shown_name(setting: SettingRuns) -> str:
    """Return a setting's display name. If it has only one run with a shorter name, return the run's name."""
    names = [run.name for run in setting.runs] + list(setting.left_out)
    return min(setting.name, names[0], key=len) if len(names) == 1 else setting.name


_MOST_VALUES = 60


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
    """Return the commands, versions, commits, machines and starting models of the runs.

    List a value shared by all once.
    """
    entries = [_provenance_of(run) for run in runs]
    lines = []
    for what in entries[0] if entries else ():
        for says, places in _runs_by(redacted(str(of_run[what] or "")) for of_run in entries).items():
            if says:
                lines.append(ProvenanceLine(what, says, None if len(places) == len(runs) else places))
    return lines


def _provenance_of(run: LoggedRun) -> dict[str, object]:
    known = run.provenance
    git, resumed = section(known, "git"), known.get("resumed")
    again = [str(one.get("command")) for one in resumed if isinstance(one, dict)] if isinstance(resumed, list) else []
    return {
        "command": known.get("command"),
        "in folder": known.get("cwd"),
        "resumed by": "; ".join(again),
        "versions": _pairs(section(known, "versions")),
        "git": f"{git.get('commit')}{', with changes' if git.get('dirty') else ''}" if git else "",
        "machine": _pairs(section(known, "host")),
        "device": known.get("device"),
        "processes": known.get("world_size"),
        "starting model": run.starting_model,
        "hashes": _pairs({name: value for name, value in section(known, "sha256").items() if name != "config"}),
    }


def _runs_by(texts: Iterable[str]) -> dict[str, list[int]]:
    """Return text -> the runs that have it, for the first sixty texts."""
    found: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        found.setdefault(text, []).append(place)
    return dict(list(found.items())[:_MOST_VALUES])


def _pairs(tree: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in tree.items())


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
        for one in diagnose_readable(run.folder).diagnosis.findings if run.folder is not None else ():
            change, reason = (one.changes[0].words, one.changes[0].reason) if one.changes else ("", "")
            shared = SharedFinding(one.severity, one.what, change, reason, [])
            found.setdefault((one.severity, one.kind, one.subject), shared).runs.append(place)
    return sorted(found.values(), key=lambda one: (SEVERITIES.index(one.severity), -len(one.runs)))


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
            heading = evaluation.heading
            name = evaluation.rows_in_words
            table = tables.setdefault(name, EvaluationTable(name, heading.data, [], {}))
            figures = dict(evaluation.figures())
            line = {of: estimate_texts([one])[0] for of, one in figures.items() if not of.endswith("/total")}
            table.lines[place] = line
            table.figures.extend(figure for figure in line if figure not in table.figures)
    return list(tables.values()), notes


_MOST_KEYS = 4


def verdict_lines(comparison: Comparison) -> list[tuple[str, str]]:
    """Return (what a verdict is about, its text) for each measure.

    If several keys differ, judge each key as its own family, or say why it cannot be judged. Return no line if every
    setting has one seed: `comparison.no_verdict` then explains it once for all.
    """
    grouped = comparison.grouped
    if len(grouped.axes) > 1 and not comparison.verdicts and any(len(one.by_seed) > 1 for one in grouped.settings):
        keys = [axis.key for axis in grouped.axes[:_MOST_KEYS]]
        return [line for key in keys for line in _lines(compare(comparison.runs, ComparisonOptions(by=key)), key)]
    return _lines(comparison, grouped.axes[0].key) if len(grouped.axes) == 1 else []


def _lines(comparison: Comparison, key: str) -> list[tuple[str, str]]:
    if comparison.no_verdict is None:
        return [(f"{one.key}, by {one.measure.label}", one.text) for one in comparison.verdicts]
    (short,) = (axis.short for axis in comparison.grouped.axes if axis.key == key)
    about, _, why = comparison.no_verdict.partition(": ")
    return [(f"{short}: no verdict", f"{why}.")] if about.endswith(short) else []
