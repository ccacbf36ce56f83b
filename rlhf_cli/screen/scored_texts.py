"""Print completions with their parts coloured by reward, for `rlhf score --show N`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from rlhf_cli.measure.scored_rows import CompletionScores, ScoredPart, ScoredReward
from rlhf_cli.screen.one_line import figure

_GAIN, _LOSS, _NONE = "black on green", "black on red", "black on white"


def show_parts(console: Console, rows: Sequence[Mapping[str, object]], scores: CompletionScores) -> None:
    """Print the scores of each row, and its text once per reward that scored parts of it.

    `rows` are the completions in the order of their scores. The reward of a part follows it in brackets, so that it is
    readable without colours and cannot be confused with digits of the text.
    """
    for number, (row, scored) in enumerate(zip(rows, scores.rows, strict=False)):
        said = ", ".join(f"{name} {figure(one.raw)}" for name, one in scored.rewards.items())
        console.print(Text.assemble((f"row {number}  ", "bold"), f"total {figure(scored.total)}  ({said})"))
        text = _text(row["completion"])
        by_part = {name: one for name, one in scored.rewards.items() if one.parts is not None}
        if not by_part:
            console.print(Text(text), soft_wrap=True)
        for name, one in by_part.items():
            console.print(Text(name, style="dim"))
            console.print(_coloured(text, one), soft_wrap=True)
        console.print()


def _coloured(text: str, reward: ScoredReward) -> Text:
    """Return the text with its parts coloured. Where parts overlap, the earlier one's colour wins."""
    shown, reached = Text(), 0
    for part in reward.parts or []:
        shown.append(text[reached : part.start])
        begin = max(reached, part.start)
        shown.append(text[begin : part.end], style=_style(part))
        shown.append(f"[{part.reward:+g}]", style="bold")
        reached = max(reached, part.end)
    shown.append(text[reached:])
    return shown


def _style(part: ScoredPart) -> str:
    return _GAIN if part.reward > 0 else _LOSS if part.reward < 0 else _NONE


def _text(completion: object) -> str:
    """Return a text unchanged; for a conversation, return the last message."""
    if isinstance(completion, list):
        return str(completion[-1]["content"]) if completion else ""
    return str(completion)
