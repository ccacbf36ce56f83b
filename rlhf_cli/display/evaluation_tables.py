"""Print the tables of `rlhf eval` and `rlhf generate`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import plotext
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.display.comparison_tables import Column, show_blocks
from rlhf_cli.display.terminal import figure, no_total, one_line
from rlhf_cli.measure.best_of_n import BestOfN, MadeRows
from rlhf_cli.measure.evaluation_files import Evaluation
from rlhf_cli.measure.policy_results import SEEN, UNSEEN, PolicyEvaluation
from rlhf_cli.measure.scored_pairs import (
    Calibration,
    Disagreement,
    LengthBias,
    MarginAgreement,
    RewardModelEvaluation,
    SliceAccuracy,
)
from rlhf_cli.numerics.intervals import Estimate, attempt_counts

_ATTEMPTS = {"pass": "one of the k", "maj": "the most frequent answer of the k"}


def show_evaluation(console: Console, evaluation: Evaluation, files: list[Path]) -> None:
    """Print the results of an evaluation, then the files they were written to."""
    heading, measured = evaluation.heading, evaluation.measured
    what = measured.kind.replace("_", " ")
    console.print(f"[bold]{what} {heading.model}[/] on {heading.data}: {measured.rows} rows", highlight=False)
    if isinstance(measured, RewardModelEvaluation) and measured.with_eos:
        console.print("[dim]plain texts end with the end-of-sequence token")
    for warning in heading.warnings:
        console.print(Text(f"warning: {warning}", style="bold yellow"))
    if isinstance(measured, RewardModelEvaluation):
        _reward_model(console, measured)
    else:
        _policy(console, measured)
    console.print("\n[dim]in brackets: 95 % intervals; Wilson's for proportions, Student's for means")
    for file in files:
        console.print(
            os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file), soft_wrap=True, highlight=False
        )


def _reward_model(console: Console, evaluation: RewardModelEvaluation) -> None:
    _accuracies(console, evaluation)
    calibration, rewards = evaluation.calibration, evaluation.rewards
    table = _table("rewards", "", "")
    table.columns[2].justify, table.columns[2].no_wrap = "left", False
    table.add_row("mean of all", _with_interval(rewards.mean), _centred(rewards.mean))
    table.add_row("deviation", figure(rewards.deviation), "")
    table.add_row("chosen - rejected", _with_interval(rewards.margin), "")
    table.add_row("calibration error", figure(calibration.ece), "as sure as it is right: 0")
    table.add_row("log loss", figure(calibration.log_loss), "a coin: 0.693")
    table.add_row("Brier score", figure(calibration.brier), "a coin: 0.250")
    _print(console, table)
    _confidences(console, calibration)
    _length(console, evaluation.length)
    if evaluation.margins is not None:
        _margins(console, evaluation.margins)
    _worst(console, evaluation.worst)
    if evaluation.truncated:
        console.print(f"[yellow]{evaluation.truncated} texts were longer than the model takes and lost their beginning")


def _accuracies(console: Console, evaluation: RewardModelEvaluation) -> None:
    table = _table("accuracy", "", "pairs", "mean margin")
    ties = f", {evaluation.ties} ties" if evaluation.ties else ""
    margin = evaluation.rewards.margin.mean
    table.add_row("all", _with_interval(evaluation.accuracy), f"{evaluation.rows}{ties}", figure(margin))
    for column, by_value in evaluation.slices.items():
        for value, accuracy in by_value.items():
            _slice(table, Text(f"{column}={value}"), accuracy)
    _print(console, table)
    bench = evaluation.rewardbench
    if bench is not None:
        sections = _table("RewardBench", "", "pairs")
        for name, one in bench.sections.items():
            sections.add_row(name, _with_interval(one), str(one.count))
        if bench.score is not None:
            sections.add_row("score", figure(bench.score), "")
        _print(console, sections)


def _slice(table: Table, name: str | Text, accuracy: SliceAccuracy) -> None:
    table.add_row(name, _with_interval(accuracy), str(accuracy.count), figure(accuracy.margin))


def _confidences(console: Console, calibration: Calibration) -> None:
    table = _table("confidence", "mean", "accuracy", "pairs")
    for one in calibration.bins:
        if one.accuracy.count:
            span = f"{one.start:.2f} to {one.end:.2f}"
            table.add_row(span, figure(one.confidence), _with_interval(one.accuracy), str(one.accuracy.count))
    _print(console, table)


def _length(console: Console, length: LengthBias) -> None:
    table = _table("length (tokens)", "accuracy", "pairs", "mean margin")
    slices = {
        "chosen longer": length.chosen_longer,
        "same": length.same,
        "chosen shorter": length.chosen_shorter,
    }
    for name, accuracy in slices.items():
        if accuracy is not None:
            _slice(table, name, accuracy)
    for one in length.bins:
        _slice(table, f"{one.start:+d} to {one.end:+d}", one)
    _print(console, table)
    console.print(
        f"[dim]difference of rewards with difference of lengths: correlation {figure(length.pearson)}, of ranks "
        f"{figure(length.spearman)}; whoever always takes the longer one is right in "
        f"{_with_interval(length.longer_wins)}"
    )


def _margins(console: Console, margins: MarginAgreement) -> None:
    table = _table("margin in the data", "accuracy", "pairs", "mean margin")
    for one in margins.bins:
        _slice(table, f"{one.start:.2f} to {one.end:.2f}", one)
    _print(console, table)
    ranks, linear = figure(margins.spearman), figure(margins.pearson)
    console.print(f"[dim]margin agreement: correlation of ranks {ranks}, linear {linear}")


def _worst(console: Console, worst: list[Disagreement]) -> None:
    if not worst:
        return
    table = _table("worst disagreements", "chosen", "rejected", "rewards", "sure by")
    for column in table.columns[:3]:
        column.justify, column.no_wrap = "left", False
    for one in worst:
        rewards = f"{one.reward_chosen:.2f} < {one.reward_rejected:.2f}"
        texts = [Text(_shortened(text)) for text in (one.prompt, one.chosen, one.rejected)]
        table.add_row(*texts, rewards, f"{one.confidence:.2f}")
    _print(console, table)


def _policy(console: Console, evaluation: PolicyEvaluation) -> None:
    for name, part in evaluation.parts.items():
        table = _table(name, "raw", "weighted")
        for reward, one in part.rewards.items():
            table.add_row(reward, _with_interval(one.raw), _with_interval(one.weighted))
        table.add_row("total", "", _with_interval(part.total))
        table.add_row("truncated", _with_interval(part.truncated), "")
        table.add_row("tokens", _with_interval(part.tokens), f"at most {part.tokens.max}")
        _print(console, table)
    _seen_and_unseen(console, evaluation)
    if evaluation.no_total is not None:
        console.print(no_total(evaluation.no_total))
    for name, attempts in evaluation.attempts.items():
        table = _table(f"{name}: right in k", "", "")
        table.columns[2].justify = "left"
        for kind, by_count in attempts.by_name().items():
            for k, estimate in by_count.items():
                table.add_row(f"{kind}@{k}", _with_interval(estimate), _ATTEMPTS[kind])
        _print(console, table)
    wins = evaluation.win_rate
    if wins is not None:
        table = _table("win rate", "")
        for name, estimate in wins.by_part().items():
            table.add_row(name, _with_interval(estimate))
        _print(console, table)
        console.print(
            f"[dim]prompts on which the total beats that of {wins.against}; ties count a half", highlight=False
        )
    shown = _table("prompt", "greedy completion", "total")
    shown.columns[1].justify = "left"
    for answer in evaluation.shown:
        shown.add_row(Text(_shortened(answer.prompt)), Text(_shortened(answer.completion)), figure(answer.total))
    _print(console, shown)


def _seen_and_unseen(console: Console, evaluation: PolicyEvaluation) -> None:
    """Print each metric on prompts that were trained on, next to the same metric on unseen prompts."""
    if evaluation.by_prompts is None:
        return
    seen, unseen = evaluation.by_prompts[SEEN], evaluation.by_prompts[UNSEEN]
    table = _table("raw", f"{seen.rows} prompts trained on", f"{unseen.rows} unseen")
    for name, part in seen.parts.items():
        other = unseen.parts[name]
        for reward, one in part.rewards.items():
            raw = other.rewards[reward].raw
            table.add_row(f"{name} {reward}", _with_interval(one.raw), _with_interval(raw))
        table.add_row(f"{name} total", _with_interval(part.total), _with_interval(other.total))
    _print(console, table)


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _print(console: Console, table: Table) -> None:
    console.print()
    console.print(table)


def _centred(mean: Estimate) -> str:
    if mean.low is None or mean.high is None:
        return ""
    return "centred" if mean.low <= 0 <= mean.high else "not centred: see offset: auto"


def _shortened(value: object) -> str:
    text = one_line(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _with_interval(one: Estimate) -> str:
    if one.mean is None or one.low is None or one.high is None:
        return figure(one.mean)
    return f"{one.mean:.3f} \\[{one.low:.3f}, {one.high:.3f}]"


_PLOT_COLUMNS, _PLOT_ROWS = 64, 10


def show_best_of_n(console: Console, best: BestOfN) -> None:
    """Print the curve as a table, and plot it if it has more than one point."""
    if best.left_out:
        words = f"{best.left_out} prompts are not in it: an answer of theirs has no {best.by}"
        console.print(Text(words, style="yellow"))
    if not best.curve:
        return
    rows = [best.curve[k - 1] for k in attempt_counts(len(best.curve))]
    columns = [
        Column("best of", [str(one.k) for one in rows], is_head=True),
        Column(best.by, [_best_with_interval(one.score) for one in rows]),
        *(Column(name, [figure(one.rewards[name].mean) for one in rows]) for name in rows[0].rewards),
        Column("cut off", ["-" if one.truncated.mean is None else f"{one.truncated.mean:.0%}" for one in rows]),
        Column("KL up to", [f"{one.kl_bound:.3f}" for one in rows]),
    ]
    show_blocks(console, columns, ["" for _ in rows])
    if len(best.curve) > 1:
        console.print(Text(f"\n{best.by} of the best of k, by k", style="dim"))
        console.print(Text.from_ansi(_curve(best, console.width)), soft_wrap=True)


def show_made(console: Console, made: Mapping[str, MadeRows], commands: Mapping[str, str]) -> None:
    """Print how many rows each file got, why some prompts gave none, and a command that reads the file."""
    for name, one in made.items():
        console.print(Text.assemble(("\n" + str(len(one.rows)), "bold"), f" rows in {name}"), highlight=False)
        for reason, count in one.left_out.items():
            console.print(f"[dim]  {count} prompts gave none: {reason}", highlight=False)
        if one.rows:
            console.print(f"  [cyan]{commands[name]}", soft_wrap=True, highlight=False)


def _curve(best: BestOfN, room: int) -> str:
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(_PLOT_COLUMNS, room), _PLOT_ROWS)
    counts = [one.k for one in best.curve]
    plotext.plot(counts, [one.score.mean or 0.0 for one in best.curve], marker="braille")
    plotext.yfrequency(4)
    plotext.xticks(attempt_counts(len(counts)))
    built: str = plotext.build()
    return built.rstrip("\n")


def _best_with_interval(one: Estimate) -> str:
    bounds = "" if one.low is None or one.high is None else f" [{one.low:.3f}, {one.high:.3f}]"
    return figure(one.mean) + bounds
