"""The tables of `rlhf eval`: what a reward model or a policy is worth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.runs.evaluations import REWARD_MODEL
from rlhf_cli.screen.one_line import figure, one_line

Content = dict[str, Any]


def show_evaluation(console: Console, content: Content, files: list[Path]) -> None:
    """Everything worth reading of an evaluation, then where it is written."""
    what = content["kind"].replace("_", " ")
    console.print(f"[bold]{what} {content['model']}[/] on {content['data']}: {content['rows']} rows", highlight=False)
    if content.get("with_eos"):
        console.print("[dim]plain texts end with the end-of-sequence token")
    for warning in content["warnings"]:
        console.print(Text(f"warning: {warning}", style="bold yellow"))
    if content["kind"] == REWARD_MODEL:
        _reward_model(console, content)
    else:
        _policy(console, content)
    console.print("\n[dim]in brackets: 95 % intervals; Wilson's for proportions, Student's for means")
    for file in files:
        console.print(
            os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file), soft_wrap=True, highlight=False
        )


def _reward_model(console: Console, content: Content) -> None:
    _accuracies(console, content)
    calibration, rewards = content["calibration"], content["rewards"]
    table = _table("rewards", "", "")
    table.columns[2].justify, table.columns[2].no_wrap = "left", False
    table.add_row("mean of all", _with_interval(rewards["mean"]), _centred(rewards["mean"]))
    table.add_row("deviation", figure(rewards["deviation"]), "")
    table.add_row("chosen - rejected", _with_interval(rewards["margin"]), "")
    table.add_row("calibration error", figure(calibration["ece"]), "as sure as it is right: 0")
    table.add_row("log loss", figure(calibration["log_loss"]), "a coin: 0.693")
    table.add_row("Brier score", figure(calibration["brier"]), "a coin: 0.250")
    _print(console, table)
    _confidences(console, calibration)
    _length(console, content["length"])
    if content["margins"] is not None:
        _margins(console, content["margins"])
    _worst(console, content["worst"])
    if content["truncated"]:
        console.print(f"[yellow]{content['truncated']} texts were longer than the model takes and lost their beginning")


def _accuracies(console: Console, content: Content) -> None:
    table = _table("accuracy", "", "pairs", "mean margin")
    ties = f", {content['ties']} ties" if content["ties"] else ""
    margin = content["rewards"]["margin"]["mean"]
    table.add_row("all", _with_interval(content["accuracy"]), f"{content['rows']}{ties}", figure(margin))
    for column, found in content["slices"].items():
        for name, one in found.items():
            table.add_row(Text(f"{column}={name}"), _with_interval(one), str(one["count"]), figure(one["margin"]))
    _print(console, table)
    bench = content.get("rewardbench")
    if bench:
        sections = _table("RewardBench", "", "pairs")
        for name, one in bench["sections"].items():
            sections.add_row(name, _with_interval(one), str(one["count"]))
        if bench["score"] is not None:
            sections.add_row("score", figure(bench["score"]), "")
        _print(console, sections)


def _confidences(console: Console, calibration: Content) -> None:
    table = _table("confidence", "mean", "accuracy", "pairs")
    for one in calibration["bins"]:
        if one["accuracy"]["count"]:
            span = f"{one['from']:.2f} to {one['to']:.2f}"
            accuracy = one["accuracy"]
            table.add_row(span, figure(one["confidence"]), _with_interval(accuracy), str(accuracy["count"]))
    _print(console, table)


def _length(console: Console, length: Content) -> None:
    table = _table("length (tokens)", "accuracy", "pairs", "mean margin")
    for name in ("chosen_longer", "same", "chosen_shorter"):
        if length[name] is not None:
            one = length[name]
            table.add_row(name.replace("_", " "), _with_interval(one), str(one["count"]), figure(one["margin"]))
    for one in length["bins"]:
        span = f"{one['from']:+d} to {one['to']:+d}"
        table.add_row(span, _with_interval(one), str(one["count"]), figure(one["margin"]))
    _print(console, table)
    console.print(
        f"[dim]difference of rewards with difference of lengths: correlation {figure(length['pearson'])}, of ranks "
        f"{figure(length['spearman'])}; whoever always takes the longer one is right in "
        f"{_with_interval(length['longer_wins'])}"
    )


def _margins(console: Console, margins: Content) -> None:
    table = _table("margin in the data", "accuracy", "pairs", "mean margin")
    for one in margins["bins"]:
        span = f"{one['from']:.2f} to {one['to']:.2f}"
        table.add_row(span, _with_interval(one), str(one["count"]), figure(one["margin"]))
    _print(console, table)
    ranks, linear = figure(margins["spearman"]), figure(margins["pearson"])
    console.print(f"[dim]margin agreement: correlation of ranks {ranks}, linear {linear}")


def _worst(console: Console, worst: list[Content]) -> None:
    if not worst:
        return
    table = _table("worst disagreements", "chosen", "rejected", "rewards", "sure by")
    for column in table.columns[:3]:
        column.justify, column.no_wrap = "left", False
    for one in worst:
        rewards = f"{one['reward_chosen']:.2f} < {one['reward_rejected']:.2f}"
        texts = [Text(_shortened(one[name])) for name in ("prompt", "chosen", "rejected")]
        table.add_row(*texts, rewards, f"{one['confidence']:.2f}")
    _print(console, table)


def _policy(console: Console, content: Content) -> None:
    for name, part in content["parts"].items():
        table = _table(name, "raw", "weighted")
        for reward, one in part["rewards"].items():
            table.add_row(reward, _with_interval(one["raw"]), _with_interval(one["weighted"]))
        table.add_row("total", "", _with_interval(part["total"]))
        table.add_row("truncated", _with_interval(part["truncated"]), "")
        table.add_row("tokens", _with_interval(part["tokens"]), f"at most {part['tokens']['max']}")
        _print(console, table)
    for name, one in content["attempts"].items():
        table = _table(f"{name}: right in k", "", "")
        table.columns[2].justify = "left"
        for kind, what in (("pass", "one of the k"), ("maj", "the most frequent answer of the k")):
            for k, found in one[kind].items():
                table.add_row(f"{kind}@{k}", _with_interval(found), what)
        _print(console, table)
    if content["win_rate"] is not None:
        wins = dict(content["win_rate"])
        table = _table("win rate", "")
        opponent = wins.pop("against")
        for part, one in wins.items():
            table.add_row(part, _with_interval(one))
        _print(console, table)
        console.print(f"[dim]prompts on which the total beats that of {opponent}; ties count a half", highlight=False)
    shown = _table("prompt", "greedy completion", "total")
    shown.columns[1].justify = "left"
    for one in content["shown"]:
        shown.add_row(Text(_shortened(one["prompt"])), Text(_shortened(one["completion"])), figure(one["total"]))
    _print(console, shown)


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _print(console: Console, table: Table) -> None:
    console.print()
    console.print(table)


def _centred(mean: Content) -> str:
    if mean["low"] is None:
        return ""
    return "centred" if mean["low"] <= 0 <= mean["high"] else "not centred: see offset: auto"


def _shortened(value: Any) -> str:
    text = one_line(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _with_interval(one: Content) -> str:
    if one["low"] is None or one["high"] is None:
        return figure(one["mean"])
    return f"{one['mean']:.3f} \\[{one['low']:.3f}, {one['high']:.3f}]"
