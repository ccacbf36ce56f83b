"""Print the results of `rlhf whatif`: the changes per round and overall."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from rlhf_cli.analysis.comparison.logged_run import value_text
from rlhf_cli.analysis.what_if import LENGTH, OldNew, WhatIf
from rlhf_cli.analysis.whatif_request import KeyChange
from rlhf_cli.config.schema.reward_sections import gate_text
from rlhf_cli.display.terminal import Cell, show_blocks
from rlhf_cli.plan.batches import count
from rlhf_cli.tables.trl_values import TOKENS

_MOST_ROUNDS = 8
_NEITHER: OldNew = (None, None)
_LEGEND = (
    "order: Kendall's tau-b of the totals within groups, 1 if the order stays; best: groups with another best answer;"
    " sign: advantages whose sign changes"
)


def show_what_if(console: Console, run: str, answer: WhatIf) -> None:
    """Print one answer: shares of the rewards, what the advantages push towards, rounds and caveats."""
    for place, change in enumerate(answer.changes):
        lead = "[bold]what if[/]" if place == 0 else "    and"
        console.print(f"{lead}  {escape(_shown(change))}")
    console.print(f"{escape(run)}: {_num_rounds(answer)}\n", style="dim")
    rounds, first = answer.rounds, answer.rounds[0]
    if _has_advantages(answer):
        shares = {}
        for name in dict.fromkeys(name for difference in rounds for name in difference.share):
            old, new = zip(*(difference.share.get(name, _NEITHER) for difference in rounds), strict=True)
            shares[name] = _arrow(_mean(old), _mean(new))
        if shares:  # a function of the user's logs shares only if it returns them
            show_blocks(console, [("reward", [*shares])], [("share of advantages", [*shares.values()])])
            console.print()
        length = TOKENS if TOKENS in first.push else LENGTH  # a reward may be called length
        names = ["length in tokens" if name == length else f"{name}, raw" for name in first.push]
        pushed = [_arrow(*pair, signed=True) for pair in first.push.values()]
        turned = [_direction(*pair) for pair in first.push.values()]
        show_blocks(console, [("push on ...", names)], [(f"step {first.step}", pushed), ("change", turned)])
        console.print()
    lines: list[list[Cell]] = []
    every = max(1, -(-len(rounds) // _MOST_ROUNDS))
    for shown in [*rounds[: len(rounds) - 1 : every], rounds[-1]]:
        answered = shown.num_answered
        groups = f"{answered}" if answered == shown.num_groups else f"{answered}/{shown.num_groups}"
        ranks = _ranks(shown.tau, shown.best_changed, shown.sign_changed)
        lines.append([str(shown.step), *ranks, _arrow(*shown.mean_total), groups])
    if len(rounds) > 1:
        means = [_mean(getattr(one, name) for one in rounds) for name in ("tau", "best_changed", "sign_changed")]
        lines.append([("all", "bold"), *_ranks(*means), "", ""])
    _show(console, ["step", "order", "best changes", "sign changes", "mean total", "groups"], lines)
    push = "push: covariance of the advantages with a raw score, within groups"
    notes = [push, _LEGEND, "A larger total is not better"]
    if first.step > 1:
        notes.append("The first rollouts are not stored; the stored ones come from a trained policy")
    elif len(rounds) > 1:
        notes.append("Step 1 is exact: every run with this seed starts with these rollouts; later ones would be others")
    console.print(f"\n[dim]{'. '.join(notes)}")
    _print_reasons(console, [answer])


def show_alternatives(console: Console, run: str, answers: Sequence[WhatIf]) -> None:
    """Print one line per answer: the changes in the first round."""
    first, *_ = answers
    console.print(f"[bold]{len(answers)} what-ifs[/] of {escape(run)}: {_num_rounds(first)}")
    names = list(first.rounds[0].push) if any(map(_has_advantages, answers)) else []
    rows: list[list[Cell]] = []
    for answer in answers:
        difference = answer.rounds[0]
        cells = [_figure(difference.push.get(name, _NEITHER)[1], signed=True) for name in names]
        ranks = _ranks(difference.tau, difference.best_changed, difference.sign_changed)
        rows.append([_changes(answer), *ranks, *cells])
    pushed = [_figure(first.rounds[0].push[name][0], signed=True) for name in names]
    rows.append([("the run as it was", "dim"), "", "", "", *pushed])
    _show(console, ["what if", "order", "best", "sign", *names], rows)
    pushes = "; other columns: push on each raw score and on the length in tokens" if names else ""
    console.print(f"[dim]step {first.rounds[0].step}. {_LEGEND}{pushes}. --json has every round")
    _print_reasons(console, answers)


def _show(console: Console, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    first, *columns = zip(heads, zip(*rows, strict=True), strict=True)
    show_blocks(console, [first], columns)


def _has_advantages(answer: WhatIf) -> bool:
    return any(pair != _NEITHER for difference in answer.rounds for pair in difference.push.values())


def _num_rounds(answer: WhatIf) -> str:
    first, last = answer.rounds[0].step, answer.rounds[-1].step
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{count(len(answer.rounds), 'stored round')}, {steps}, nothing trained"


def _direction(old: float | None, new: float | None) -> str:
    if old is None or new is None:
        return ""
    if abs(new - old) <= 1e-6 * max(abs(new), abs(old), 1e-6):
        return "none"
    return ("up" if new > old else "down") + (", other sign" if old * new < 0 else "")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _ranks(tau: float | None, best: float | None, sign: float | None) -> list[str]:
    return [_figure(tau), *("-" if share is None else f"{share:.0%}" for share in (best, sign))]


def _print_reasons(console: Console, answers: Sequence[WhatIf]) -> None:
    """Print each reason once, with the changes that it is of unless it is of all."""
    changes_of: dict[str, list[str]] = {}
    for answer in answers:
        reasons = []
        if unknown := [difference for difference in answer.rounds if difference.num_answered < difference.num_groups]:
            groups = sum(difference.num_groups - difference.num_answered for difference in unknown)
            rows = sum(difference.num_unknown for difference in unknown)
            left_out = f"{groups} groups in {len(unknown)} rounds are left out: {rows} of their rows have no score"
            reasons.append(f"{left_out}, because a gate was closed. The remaining groups are a biased sample")
        for why, number in Counter(shown.why for shown in answer.rounds if shown.why is not None).items():
            which = "" if number == len(answer.rounds) else f" ({number} rounds)"
            reasons.append(f"no advantages{which}: {why}")
        for reason in [*reasons, *(f"left out: {text}" for text in answer.left_out)]:
            changes_of.setdefault(reason, []).append(_changes(answer))
    for reason, changes in changes_of.items():
        lead = "" if len(changes) == len(answers) else f"{'; '.join(changes)}: "
        console.print(Text(lead + reason, "yellow"))


def _changes(answer: WhatIf) -> str:
    return ", ".join(_shown(change).removeprefix("rewards.") for change in answer.changes)


def _shown(change: KeyChange) -> str:
    texts = []
    for value in (change.old, change.new):
        entries = value if isinstance(value, list) else [value]
        gates = [
            f"{gate_text(entry)} else {value_text(entry.get('otherwise'))}"
            for entry in entries
            if isinstance(entry, dict) and "by" in entry
        ]
        texts.append(", ".join(gates) or ("none" if value is None else str(value)))
    return f"{change.key} {' → '.join(texts)}"


def _arrow(old: float | None, new: float | None, *, signed: bool = False) -> str:
    texts = [_figure(value, signed=signed) for value in (old, new)]
    return "-" if texts == ["-", "-"] else " → ".join(texts)


def _figure(value: float | None, *, signed: bool = False) -> str:
    return "-" if value is None else f"{value:+.2f}" if signed else f"{value:.2f}"
