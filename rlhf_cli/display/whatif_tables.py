"""Print the results of `rlhf whatif`: the changes per round and overall."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlhf_cli.analysis.whatif.question import gate_in_words
from rlhf_cli.display.tables import Cell, plain_table
from rlhf_cli.text.json_values import JsonValue

if TYPE_CHECKING:
    from rlhf_cli.analysis.whatif.question import KeyChange
    from rlhf_cli.analysis.whatif.what_if import OldNew, RoundDifference, WhatIf

_MOST_ROUNDS = 8
_LENGTH = "length"
_NEITHER: OldNew = (None, None)


def show_what_if(console: Console, run: str, answer: WhatIf) -> None:
    """Print one answer: shares of the rewards, what the advantages push towards, rounds and caveats."""
    for place, change in enumerate(answer.changes):
        lead = "[bold]what if[/]" if place == 0 else "    and"
        console.print(f"{lead}  {escape(_shown(change))}", highlight=False)
    console.print(f"{escape(run)}: {_num_rounds(answer)}\n", style="dim", highlight=False)
    if _has_advantages(answer):
        console.print(_shares(answer))
        console.print()
        console.print(_pushed(answer))
        console.print()
    console.print(_rounds(answer))
    _print_notes(console, answer)


def show_alternatives(console: Console, run: str, answers: Sequence[WhatIf]) -> None:
    """Print one line per answer: the changes in the first round."""
    first, *_ = answers
    console.print(f"[bold]{len(answers)} what-ifs[/] of {escape(run)}: {_num_rounds(first)}", highlight=False)
    names = list(first.rounds[0].push) if any(map(_has_advantages, answers)) else []
    rows: list[list[Cell]] = []
    for answer in answers:
        one = answer.rounds[0]
        changes = ", ".join(_shown(change).removeprefix("rewards.") for change in answer.changes)
        cells = [_figure(one.push.get(name, _NEITHER)[1], signed=True) for name in names]
        rows.append([changes, *_ranks(one.tau, one.best_changed, one.sign_changed), *cells])
    pushed = [_figure(first.rounds[0].push[name][0], signed=True) for name in names]
    rows.append([("the run as it was", "dim"), "", "", "", *pushed])
    table = plain_table(["what if"], ["order", "best", "sign", *names], rows=rows)
    console.print(table)
    pushes = "; then what they push at: their covariance with each raw score, and with the length in tokens"
    console.print(
        f"[dim]of step {first.rounds[0].step}. order: Kendall's tau-b within groups, 1 the same; best: groups whose"
        f" best answer is another; sign: advantages that turn{pushes if names else ''}. --json has every round"
    )
    _print_reasons(console, first)


def _has_advantages(answer: WhatIf) -> bool:
    return any(pair != _NEITHER for one in answer.rounds for pair in one.push.values())


def _num_rounds(answer: WhatIf) -> str:
    first, last = answer.rounds[0].step, answer.rounds[-1].step
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{len(answer.rounds)} stored round{'s' * (len(answer.rounds) > 1)}, {steps}, nothing trained"


def _shares(answer: WhatIf) -> Table:
    names = dict.fromkeys(name for one in answer.rounds for name in one.share)
    rows = [(name, _arrow(*_over([one.share.get(name, _NEITHER) for one in answer.rounds]))) for name in names]
    return plain_table(["reward"], ["share of advantages"], rows=rows)


def _pushed(answer: WhatIf) -> Table:
    first = answer.rounds[0]
    rows = [
        ["length in tokens" if name == _LENGTH else f"{name}, raw", _arrow(*pair, signed=True), _direction(first, name)]
        for name, pair in first.push.items()
    ]
    return plain_table(["push on ..."], [f"step {first.step}"], ["pushed"], rows=rows)


def _direction(one: RoundDifference, name: str) -> str:
    """Return a word for how the push on a score changes in the first round."""
    old, new = one.push.get(name, _NEITHER)
    if old is None or new is None:
        return ""
    if abs(new - old) <= 1e-6 * max(abs(new), abs(old), 1e-6):
        return "as before"
    return ("higher" if new > old else "lower") + (", turned" if old * new < 0 else "")


def _rounds(answer: WhatIf) -> Table:
    rows: list[list[Cell]] = []
    rounds = answer.rounds
    step = max(1, -(-len(rounds) // _MOST_ROUNDS))
    for one in [*rounds[: len(rounds) - 1 : step], rounds[-1]]:
        groups = f"{one.num_answered}" if one.num_answered == one.num_groups else f"{one.num_answered}/{one.num_groups}"
        ranks = _ranks(one.tau, one.best_changed, one.sign_changed)
        rows.append([str(one.step), *ranks, _arrow(*one.mean_total), groups])
    if len(rounds) > 1:
        tau, best = answer.mean(lambda one: one.tau), answer.mean(lambda one: one.best_changed)
        rows.append([("all", "bold"), *_ranks(tau, best, answer.mean(lambda one: one.sign_changed)), "", ""])
    heads = ["step", "order", "best changes", "sign changes", "mean total", "groups"]
    return plain_table([], heads, rows=rows)


def _ranks(tau: float | None, best: float | None, sign: float | None) -> list[str]:
    return [_figure(tau), *("-" if share is None else f"{share:.0%}" for share in (best, sign))]


def _print_notes(console: Console, answer: WhatIf) -> None:
    notes = [
        "push: covariance of the advantages with a raw score, within groups. order: Kendall's tau-b of the totals"
        " within groups, 1 where none changes. best, sign: groups whose best answer is another, advantages that turn."
        " Totals under other settings are in other units: the larger is not the better."
    ]
    if len(answer.rounds) > 1 and answer.rounds[0].step == 1:
        notes.append(
            "Step 1 is exact: any run of this seed begins with these rollouts. From the next round on the rollouts are"
            " those of the policy as it was; with the other setting another policy would have written others."
        )
    elif answer.rounds[0].step > 1:
        notes.append("The first rollouts are not stored: these are of a policy that the run's own setting has taught.")
    console.print()
    for note in notes:
        console.print(f"[dim]{note}", highlight=False)
    _print_reasons(console, answer)


def _print_reasons(console: Console, answer: WhatIf) -> None:
    unknown = sum(one.num_answered < one.num_groups for one in answer.rounds)
    if unknown:
        groups = sum(one.num_groups - one.num_answered for one in answer.rounds)
        rows = sum(one.num_unknown for one in answer.rounds)
        console.print(
            f"[yellow]{groups} groups in {unknown} rounds are left out: of {rows} of their rows the log has no score, a"
            " gate had turned them away. The groups that remain are no fair sample of all",
            highlight=False,
        )
    for why, count in Counter(one.why for one in answer.rounds if one.why is not None).items():
        which = "" if count == len(answer.rounds) else f" ({count} rounds)"
        console.print(f"[yellow]no advantages{which}: {why}", highlight=False)
    for text in answer.left_out:
        console.print(f"[yellow]left out: {escape(text)}", highlight=False)


def _over(rounds: Sequence[OldNew]) -> OldNew:
    """Return the mean old and the mean new value over the rounds in which each is defined."""
    found = [[value for pair in rounds if (value := pair[side]) is not None] for side in (0, 1)]
    old, new = (math.fsum(values) / len(values) if values else None for values in found)
    return old, new


def _shown(change: KeyChange) -> str:
    return f"{change.key} {_value(change.old)} → {_value(change.new)}"


def _value(value: JsonValue) -> str:
    gates = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict) and "by" in one]
    if gates:
        return ", ".join(map(gate_in_words, gates))
    return "none" if value is None else str(value)


def _arrow(old: float | None, new: float | None, *, signed: bool = False) -> str:
    if old is None and new is None:
        return "-"
    return f"{_figure(old, signed=signed)} → {_figure(new, signed=signed)}"


def _figure(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.2f}" if signed else f"{value:.2f}"
