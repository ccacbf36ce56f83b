"""Build the tables of evaluations: the `rlhf eval` results of each run, with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlhf_cli.comparison.logged_run import LoggedRun
from rlhf_cli.measure.evaluation_files import read_evaluation
from rlhf_cli.measure.policy_results import PolicyEvaluation
from rlhf_cli.measure.reward_model_results import RewardModelEvaluation
from rlhf_cli.numerics.intervals import Estimate


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
            line = {figure: _text(estimate) for figure, estimate in _figures(evaluation.measured)}
            table.lines[place] = line
            table.figures.extend(figure for figure in line if figure not in table.figures)
    return list(tables.values()), notes


def _figures(measured: RewardModelEvaluation | PolicyEvaluation) -> Iterator[tuple[str, Estimate]]:
    if isinstance(measured, RewardModelEvaluation):
        yield "accuracy", measured.accuracy
        yield "reward", measured.rewards.mean
        return
    for name, part in measured.parts.items():
        for reward, estimates in part.rewards.items():
            yield f"{name} {reward}", estimates.raw
        yield f"{name} truncated", part.truncated
        yield f"{name} tokens", part.tokens
    for reward, attempts in measured.attempts.items():
        for kind, by_k in attempts.by_name().items():
            if by_k:
                yield f"{reward} {kind}@{max(by_k)}", by_k[max(by_k)]
    if measured.win_rate is not None:
        yield f"wins against {measured.win_rate.against}", measured.win_rate.greedy


def _text(estimate: Estimate) -> str:
    if estimate.mean is None:
        return "–"
    bounds = "" if estimate.low is None or estimate.high is None else f" [{estimate.low:.3g}, {estimate.high:.3g}]"
    return f"{estimate.mean:.4g}{bounds}"
