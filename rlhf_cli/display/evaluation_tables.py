"""Print the tables of `rlhf eval` and `rlhf generate`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlhf_cli.display.tables import BlockColumn, Cell, plain_table, show_blocks
from rlhf_cli.display.terminal import cut_end, figure, no_total, one_line
from rlhf_cli.measure.best_of_n import BestOfN, MadeRows
from rlhf_cli.measure.evaluation_files import Evaluation
from rlhf_cli.measure.policy_results import SEEN, UNSEEN, PolicyEvaluation
from rlhf_cli.measure.scored_pairs import LengthBias, RewardModelEvaluation, SliceAccuracy
from rlhf_cli.numerics.intervals import Estimate, attempt_counts

_LONGEST = 40
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


def _show(
    console: Console,
    texts: Sequence[str],
    numbers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    after: Sequence[str] = (),
) -> None:
    console.print()
    console.print(plain_table(texts, numbers, after, rows=rows))


def _reward_model(console: Console, evaluation: RewardModelEvaluation) -> None:
    calibration, rewards = evaluation.calibration, evaluation.rewards
    ties = f", {evaluation.ties} ties" if evaluation.ties else ""
    lines = [("all", _interval(evaluation.accuracy), f"{evaluation.rows}{ties}", figure(rewards.margin.mean))]
    for column, by_value in evaluation.slices.items():
        lines += [_slice(f"{column}={value}", accuracy) for value, accuracy in by_value.items()]
    _show(console, ["accuracy"], ["", "pairs", "mean margin"], lines)
    rows = [
        ("mean of all", _interval(rewards.mean), _centred(rewards.mean)),
        ("deviation", figure(rewards.deviation), ""),
        ("chosen - rejected", _interval(rewards.margin), ""),
        ("calibration error", figure(calibration.ece), "as sure as it is right: 0"),
        ("log loss", figure(calibration.log_loss), "a coin: 0.693"),
        ("Brier score", figure(calibration.brier), "a coin: 0.250"),
    ]
    _show(console, ["rewards"], [""], rows, [""])
    bins = [one for one in calibration.bins if one.accuracy.count]
    shown = [
        (f"{one.start:.2f} to {one.end:.2f}", figure(one.confidence), _interval(one.accuracy), str(one.accuracy.count))
        for one in bins
    ]
    _show(console, ["confidence"], ["mean", "accuracy", "pairs"], shown)
    _length(console, evaluation.length)
    if evaluation.worst:
        worst = [
            (
                *(cut_end(one_line(text), _LONGEST) for text in (one.prompt, one.chosen, one.rejected)),
                f"{one.reward_chosen:.2f} < {one.reward_rejected:.2f}",
                f"{one.confidence:.2f}",
            )
            for one in evaluation.worst
        ]
        _show(console, ["worst disagreements", "chosen", "rejected"], ["rewards", "sure by"], worst)
    if evaluation.truncated:
        console.print(f"[yellow]{evaluation.truncated} texts were longer than the model takes and lost their beginning")


def _slice(name: str, accuracy: SliceAccuracy) -> tuple[str, str, str, str]:
    return name, _interval(accuracy), str(accuracy.count), figure(accuracy.margin)


def _length(console: Console, length: LengthBias) -> None:
    slices = {"chosen longer": length.chosen_longer, "same": length.same, "chosen shorter": length.chosen_shorter}
    rows = [_slice(name, accuracy) for name, accuracy in slices.items() if accuracy is not None]
    _show(console, ["length (tokens)"], ["accuracy", "pairs", "mean margin"], rows)
    console.print(
        f"[dim]difference of rewards with difference of lengths: correlation {figure(length.pearson)}, of ranks "
        f"{figure(length.spearman)}; whoever always takes the longer one is right in {_interval(length.longer_wins)}"
    )


def _policy(console: Console, evaluation: PolicyEvaluation) -> None:
    for name, part in evaluation.parts.items():
        rows = [(reward, _interval(one.raw), _interval(one.weighted)) for reward, one in part.rewards.items()]
        rows += [
            ("total", "", _interval(part.total)),
            ("truncated", _interval(part.truncated), ""),
            ("tokens", _interval(part.tokens), f"at most {part.tokens.max}"),
        ]
        _show(console, [name], ["raw", "weighted"], rows)
    _seen_and_unseen(console, evaluation)
    if evaluation.no_total is not None:
        console.print(no_total(evaluation.no_total))
    for name, attempts in evaluation.attempts.items():
        rows = [
            (f"{kind}@{k}", _interval(estimate), _ATTEMPTS[kind])
            for kind, by_count in attempts.by_name().items()
            for k, estimate in by_count.items()
        ]
        _show(console, [f"{name}: right in k"], [""], rows, [""])
    answers = [
        (cut_end(one_line(one.prompt), _LONGEST), cut_end(one_line(one.completion), _LONGEST), figure(one.total))
        for one in evaluation.shown
    ]
    _show(console, ["prompt", "greedy completion"], ["total"], answers)


def _seen_and_unseen(console: Console, evaluation: PolicyEvaluation) -> None:
    """Print each metric on prompts that were trained on, next to the same metric on unseen prompts."""
    if evaluation.by_prompts is None:
        return
    seen, unseen = evaluation.by_prompts[SEEN], evaluation.by_prompts[UNSEEN]
    rows = []
    for name, part in seen.parts.items():
        other = unseen.parts[name]
        for reward, one in part.rewards.items():
            rows.append((f"{name} {reward}", _interval(one.raw), _interval(other.rewards[reward].raw)))
        rows.append((f"{name} total", _interval(part.total), _interval(other.total)))
    _show(console, ["raw"], [f"{seen.rows} prompts trained on", f"{unseen.rows} unseen"], rows)


def _centred(mean: Estimate) -> str:
    if mean.low is None or mean.high is None:
        return ""
    return "centred" if mean.low <= 0 <= mean.high else "not centred: see offset: auto"


def _interval(one: Estimate) -> str:
    bounds = "" if one.low is None or one.high is None else f" [{one.low:.3f}, {one.high:.3f}]"
    return figure(one.mean) + bounds


def show_best_of_n(console: Console, best: BestOfN) -> None:
    """Print the curve as a table."""
    if best.left_out:
        words = f"{best.left_out} prompts are not in it: an answer of theirs has no {best.by}"
        console.print(Text(words, style="yellow"))
    if not best.curve:
        return
    rows = [best.curve[k - 1] for k in attempt_counts(len(best.curve))]
    columns = [
        BlockColumn("best of", [str(one.k) for one in rows], is_head=True),
        BlockColumn(best.by, [_interval(one.score) for one in rows]),
        *(BlockColumn(name, [figure(one.rewards[name].mean) for one in rows]) for name in rows[0].rewards),
        BlockColumn("cut off", ["-" if one.truncated.mean is None else f"{one.truncated.mean:.0%}" for one in rows]),
        BlockColumn("KL up to", [f"{one.kl_bound:.3f}" for one in rows]),
    ]
    show_blocks(console, columns)


def show_made(console: Console, made: Mapping[str, MadeRows], commands: Mapping[str, str]) -> None:
    """Print how many rows each file got, why some prompts gave none, and a command that reads the file."""
    for name, one in made.items():
        console.print(Text.assemble(("\n" + str(len(one.rows)), "bold"), f" rows in {name}"), highlight=False)
        for reason, count in one.left_out.items():
            console.print(f"[dim]  {count} prompts gave none: {reason}", highlight=False)
        if one.rows:
            console.print(f"  [cyan]{commands[name]}", soft_wrap=True, highlight=False)
