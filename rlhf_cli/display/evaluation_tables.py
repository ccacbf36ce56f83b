"""Print the tables of `rlhf eval`, `generate` and `score`, and the pairs that a reward model scores in training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.display.terminal import GAP, Cell, Column, cut_end, figure, one_line, plain_table, show_blocks, width_of
from rlhf_cli.evaluation.evaluation_results import SEEN, UNSEEN, BestOfN, Evaluation, MadeRows, PolicyEvaluation
from rlhf_cli.evaluation.score_bench import ScoreBench
from rlhf_cli.evaluation.scored_pairs import RewardModelEvaluation, ScoredPair, SliceAccuracy
from rlhf_cli.numerics.intervals import Estimate, attempt_counts
from rlhf_cli.plan.batches import count
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, ScoredReward
from rlhf_cli.runs.run_folder import as_typed

_LONGEST = 40
_NO_TOTAL = "rows have no total of their own: {}"
_ATTEMPTS = {"pass": "one of the k", "maj": "the most frequent answer of the k"}


def show_evaluation(console: Console, evaluation: Evaluation, files: list[Path]) -> None:
    """Print the results of an evaluation, then the files they were written to."""
    heading, measured = evaluation.heading, evaluation.measured
    what = measured.kind.replace("_", " ")
    console.print(f"[bold]{what} {heading.model}[/] on {heading.data}: {measured.rows} rows")
    if isinstance(measured, RewardModelEvaluation) and measured.with_eos:
        console.print("[dim]plain texts end with the end-of-sequence token")
    for warning in heading.warnings:
        console.print(Text(f"warning: {warning}", style="bold yellow"))
    if isinstance(measured, RewardModelEvaluation):
        _reward_model(console, measured)
    else:
        _policy(console, measured)
    console.print("\n[dim]in brackets: 95 % intervals (Wilson where every score is 0 or 1, else Student)")
    for file in files:
        console.print(as_typed(file), soft_wrap=True)


def _show(console: Console, *heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    console.print("", plain_table(*heads, rows=rows), sep="\n")


def _reward_model(console: Console, evaluation: RewardModelEvaluation) -> None:
    calibration, rewards, centred = evaluation.calibration, evaluation.rewards, ""
    if (low := rewards.mean.low) is not None and (high := rewards.mean.high) is not None:
        centred = "centred" if low <= 0 <= high else "not centred: set offset: auto"
    ties = f", {evaluation.ties} ties" if evaluation.ties else ""
    lines = [("all", _interval(evaluation.accuracy), f"{evaluation.rows}{ties}", figure(rewards.margin.mean))]
    for column, by_value in evaluation.slices.items():
        lines += [_slice(f"{column}={value}", accuracy) for value, accuracy in by_value.items()]
    _show(console, ["accuracy"], ["", "pairs", "mean margin"], rows=lines)
    rows = [
        ("mean of all", _interval(rewards.mean), centred),
        ("deviation", figure(rewards.deviation), ""),
        ("chosen - rejected", _interval(rewards.margin), ""),
        ("calibration error", figure(calibration.ece), "0 if confidence equals accuracy"),
        ("log loss", figure(calibration.log_loss), "0.693 for a coin"),
        ("Brier score", figure(calibration.brier), "0.250 for a coin"),
    ]
    _show(console, ["rewards"], [""], [""], rows=rows)
    bins = [
        (f"{part.start:.2f} to {part.end:.2f}", figure(part.confidence), _interval(part.accuracy), str(count))
        for part in calibration.bins
        if (count := part.accuracy.count)
    ]
    _show(console, ["confidence"], ["mean", "accuracy", "pairs"], rows=bins)
    length = evaluation.length
    slices = {"chosen longer": length.chosen_longer, "same": length.same, "chosen shorter": length.chosen_shorter}
    lines = [_slice(name, accuracy) for name, accuracy in slices.items() if accuracy is not None]
    _show(console, ["length (tokens)"], ["accuracy", "pairs", "mean margin"], rows=lines)
    console.print(
        f"[dim]correlation of reward difference and length difference: {figure(length.pearson)}, of their ranks "
        f"{figure(length.spearman)}; always choosing the longer text is right in {_interval(length.longer_wins)}"
    )
    worst = []
    for pair in evaluation.worst:
        texts = [cut_end(one_line(text), _LONGEST) for text in (pair.prompt, pair.chosen, pair.rejected)]
        worst.append([*texts, f"{pair.reward_chosen:.2f} < {pair.reward_rejected:.2f}", f"{pair.confidence:.2f}"])
    if worst:
        _show(console, ["worst disagreements", "chosen", "rejected"], ["rewards", "confidence"], rows=worst)
    if evaluation.truncated:
        console.print(f"[yellow]{evaluation.truncated} texts were too long for the model: their beginning was cut off")


def _slice(name: str, accuracy: SliceAccuracy) -> tuple[str, str, str, str]:
    return name, _interval(accuracy), str(accuracy.count), figure(accuracy.margin)


def _policy(console: Console, evaluation: PolicyEvaluation) -> None:
    for part_name, part in evaluation.parts.items():
        rows = [(name, _interval(reward.raw), _interval(reward.weighted)) for name, reward in part.rewards.items()]
        rows += [
            ("total", "", _interval(part.total)),
            ("truncated", _interval(part.truncated), ""),
            ("tokens", _interval(part.tokens), f"at most {part.tokens.max}"),
        ]
        names, raw, weighted = zip(*rows, strict=True)
        _by_name(console, part_name, names, {"raw": raw, "weighted": weighted})
    if evaluation.by_prompts is not None:
        seen, unseen = evaluation.by_prompts[SEEN], evaluation.by_prompts[UNSEEN]
        rows = []
        for name, part in seen.parts.items():
            other = unseen.parts[name]
            for reward, values in part.rewards.items():
                rows.append((f"{name} {reward}", _interval(values.raw), _interval(other.rewards[reward].raw)))
            rows.append((f"{name} total", _interval(part.total), _interval(other.total)))
        names, trained_on, new = zip(*rows, strict=True)
        _by_name(console, "raw", names, {f"{seen.rows} prompts trained on": trained_on, f"{unseen.rows} unseen": new})
    if evaluation.no_total is not None:
        console.print(Text(_NO_TOTAL.format(evaluation.no_total), style="yellow"))
    for name, attempts in evaluation.attempts.items():
        rows = [
            (f"{kind}@{k}", _interval(estimate), _ATTEMPTS[kind])
            for kind, by_count in attempts.by_name().items()
            for k, estimate in by_count.items()
        ]
        _show(console, [f"{name}: right in k answers"], [""], [""], rows=rows)
    answers = [
        (*(cut_end(one_line(text), _LONGEST) for text in (answer.prompt, answer.completion)), figure(answer.total))
        for answer in evaluation.shown
    ]
    _show(console, ["prompt", "greedy completion"], ["total"], rows=answers)


def _interval(estimate: Estimate) -> str:
    low, high = estimate.low, estimate.high
    return figure(estimate.mean) + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def show_best_of_n(console: Console, best: BestOfN) -> None:
    """Print what the best of n answers scores, for several n."""
    if best.left_out:
        console.print(Text(f"left out: {best.left_out} prompts with an answer that has no {best.by}", style="yellow"))
    if not best.curve:
        return
    rows = [best.curve[k - 1] for k in attempt_counts(len(best.curve))]
    columns = [
        (best.by, [_interval(row.score) for row in rows]),
        *((name, [figure(row.rewards[name].mean) for row in rows]) for name in rows[0].rewards),
        ("truncated", ["-" if (cut := row.truncated.mean) is None else f"{cut:.0%}" for row in rows]),
        ("KL at most", [f"{row.kl_bound:.3f}" for row in rows]),
    ]
    show_blocks(console, [("best of", [str(row.k) for row in rows])], columns)


def show_made(console: Console, made: Mapping[str, MadeRows], commands: Mapping[str, str]) -> None:
    """Print how many rows each file got, why some prompts gave none, and a command that reads the file."""
    for name, file in made.items():
        number, _, rows = count(len(file.rows), "row").partition(" ")
        console.print(Text.assemble((f"\n{number}", "bold"), f" {rows} in {name}"))
        for reason, prompts in file.left_out.items():
            console.print(f"[dim]  {count(prompts, 'prompt')} gave no row: {reason}")
        if file.rows:
            console.print(f"  [cyan]{commands[name]}", soft_wrap=True)


_MAX_ROWS = 20
_COMPLETION, _LEAST_COMPLETION = 40, 16
Rows = Sequence[Mapping[str, object]]
"""The completions, in the order of their scores."""


def show_bench(console: Console, rows: Rows, scores: CompletionScores, bench: ScoreBench) -> None:
    """Print the result of `rlhf score`: scores, their distributions, and the rank correlations of all columns."""
    show_scores(console, rows, scores)
    spreads = bench.distributions.values()
    facts: dict[str, list[Cell]] = {"deviation": [figure(spread.deviation) for spread in spreads]}
    for column, share in {"least": "0", "5 %": "0.05", "median": "0.5", "95 %": "0.95", "most": "1"}.items():
        facts[column] = [f"{spread.quantiles[share]:.4g}" if spread.quantiles else "-" for spread in spreads]
    _by_name(console, "raw scores", list(bench.distributions), facts)
    ranks = {frozenset((pair.first, pair.second)): pair.ranks for pair in bench.correlations}
    names = list(dict.fromkeys(name for pair in bench.correlations for name in (pair.first, pair.second)))
    facts = {}
    for place, other in enumerate(names[1:], 1):
        above = [ranks[frozenset((name, other))] for name in names[:place]]
        shown = ["-" if value is None else f"{value:+.2f}" for value in above]
        facts[other] = [*shown, *[""] * (len(names) - 1 - place)]
    if facts:
        _by_name(console, "rank correlation", names[:-1], facts)


def show_scores(console: Console, rows: Rows, scores: CompletionScores) -> None:
    """Print the first rows with the raw score of each component (`gate` if closed), then a summary of all rows."""
    shown = list(zip(rows[:_MAX_ROWS], scores.rows, strict=False))

    def cell(score: ScoredReward) -> Cell:
        if score.error is not None:
            return "error", "red"
        return figure(score.raw) if score.open else ("gate", "yellow")

    columns: list[Column] = [(name, [cell(scored.rewards[name]) for _, scored in shown]) for name in scores.summary]
    columns.append(("total", [figure(scored.total) for _, scored in shown]))
    width = max(_LEAST_COMPLETION, min(_COMPLETION, console.width - width_of([("row", []), *columns]) - GAP))
    texts = [cut_end(one_line(row["completion"]), width) for row, _ in shown]
    show_blocks(console, [("row", [(str(row), "dim") for row in range(len(shown))]), ("completion", texts)], columns)
    if len(rows) > _MAX_ROWS:
        console.print(f"[dim]... {len(rows) - _MAX_ROWS} more rows; --json prints all")
    if scores.no_total is not None:
        console.print(Text(_NO_TOTAL.format(scores.no_total), style="yellow"))
    rewards = scores.summary.values()
    facts: dict[str, list[Cell]] = {
        "mean": [figure(reward.mean) for reward in rewards],
        "effective": [figure(reward.effective_mean) for reward in rewards],
        "weighted": [figure(reward.weighted_mean) for reward in rewards],
        "open": [f"{reward.open_fraction:.0%}" for reward in rewards],
        **{name: [str(getattr(reward, name)) for reward in rewards] for name in ("excluded", "errors", "calls")},
    }
    _by_name(console, f"all {len(rows)} rows", list(scores.summary), facts)
    console.print("[dim]rows and mean: raw scores; effective: after offset, clip, normalise and gate")


def _by_name(console: Console, title: str, names: Sequence[str], facts: Mapping[str, Sequence[Cell]]) -> None:
    """Print one row per name under `title`. Columns that do not fit continue in another table."""
    console.print()
    show_blocks(console, [(title, names)], facts.items())


_GAIN, _LOSS, _NONE = "black on green", "black on red", "black on white"


def show_parts(console: Console, rows: Rows, scores: CompletionScores) -> None:
    """Print each row's scores, and its text once per reward that scored parts of it, each part's reward behind it."""
    for number, (row, scored) in enumerate(zip(rows, scores.rows, strict=False)):
        rewards = ", ".join(f"{name} {figure(score.raw)}" for name, score in scored.rewards.items())
        console.print(Text.assemble((f"row {number}  ", "bold"), f"total {figure(scored.total)}  ({rewards})"))
        completion = row["completion"]
        text = text_of(completion) if isinstance(completion, list) else str(completion or "")
        by_part = {name: score.parts for name, score in scored.rewards.items() if score.parts is not None}
        if not by_part:
            console.print(Text(text), soft_wrap=True)
        for name, parts in by_part.items():
            console.print(Text(name, style="dim"))
            shown, reached = Text(), 0
            for part in parts:
                shown.append(text[reached : part.start])
                style = _GAIN if part.reward > 0 else _LOSS if part.reward < 0 else _NONE
                # A bare call has no place in the text.
                shown.append(text[max(reached, part.start) : part.end] or part.text, style=style)
                shown.append(f"[{part.reward:+g}]", style="bold")
                reached = max(reached, part.end)
            shown.append(text[reached:])
            console.print(shown, soft_wrap=True)
        console.print()


_PROMPT_WIDTH, _WIDTH = 24, 40
_STYLE = {"right": "green", "wrong": "red", "tie": "yellow"}


def pair_table(pairs: Sequence[ScoredPair]) -> Table:
    """Return a table of scored pairs of one step. The title counts the pairs in the right order."""
    right = sum(pair.verdict == "right" for pair in pairs)
    has_margin = any(pair.margin is not None for pair in pairs)
    rows: list[list[Cell]] = []
    for pair in pairs:
        texts = (pair.prompt.rstrip().removesuffix("Assistant:"), pair.chosen, pair.rejected)
        prompt, *answers = (one_line(" ".join(text.split())) for text in texts)
        prompt = prompt if len(prompt) <= _PROMPT_WIDTH else "…" + prompt[1 - _PROMPT_WIDTH :]
        numbers = [pair.score_chosen, pair.score_rejected, *([pair.margin] if has_margin else [])]
        rows.append([prompt, *answers, *map(figure, numbers), (pair.verdict, _STYLE[pair.verdict])])
    scores = ["score chosen", "score rejected", *(["margin"] if has_margin else [])]
    table = plain_table(
        ["prompt", "chosen", "rejected"], scores, ["order"], rows=rows, gap=1, widths=(_PROMPT_WIDTH, _WIDTH, _WIDTH)
    )
    table.title = f"step {pairs[0].step}: {right} of {len(pairs)} pairs in the right order"
    table.title_justify = "left"
    return table
