"""Write the page of mutants: counts, and the survivors without an explanation in survivors.toml."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants.mutations import Mutant


@dataclass(frozen=True)
class Verdict:
    """The outcome of a mutant: `killed`, `timed out` (counts as killed), `survived`, or `unreached` by any test.

    is_kept: from an earlier run; the function has not changed since.
    """

    mutant: Mutant
    outcome: str
    seconds: float
    by: str = ""
    is_kept: bool = False

    @property
    def lives(self) -> bool:
        """Whether no test noticed the mutation."""
        return self.outcome in ("survived", "unreached")


def explanations(file: Path) -> dict[tuple[str, str, int], bool]:
    """Return the `key` of every explained mutant -> whether it is equivalent, which no test can notice."""
    if not file.exists():
        return {}
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("survivor", [])
    return {(entry["in"], entry["change"], entry.get("nth", 0)): "equivalent" in entry for entry in entries}


def key(mutant: Mutant) -> tuple[str, str, int]:
    """Return the place, the change and its number, which identify a mutant in the file of explanations."""
    place = f"{mutant.file}: {mutant.where}" if mutant.where else mutant.file
    return place, f"{mutant.before} -> {mutant.after}", mutant.nth


def page(
    verdicts: Sequence[Verdict],
    explained: Mapping[tuple[str, str, int], bool],
    head: Iterable[str],
    room: Callable[[str], str],
) -> str:
    """Return the page in Markdown; `head` are its first lines, `room` maps a file to its room."""
    lines = [
        *head,
        "",
        "| room | mutants | killed | survived | equivalent survivors | killed | killed, equivalent ones aside |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in [*sorted({room(verdict.mutant.file) for verdict in verdicts}), ""]:
        some = [verdict for verdict in verdicts if name in ("", room(verdict.mutant.file))]
        alive = [verdict for verdict in some if verdict.lives]
        equivalent = sum(explained.get(key(verdict.mutant), False) for verdict in alive)
        killed = len(some) - len(alive)
        counts = f"{len(some)} | {killed} | {len(alive)} | {equivalent}"
        lines.append(
            f"| {name or 'all'} | {counts} | {_share(killed, len(some))} | {_share(killed, len(some) - equivalent)} |"
        )
    unexplained = [verdict for verdict in verdicts if verdict.lives and key(verdict.mutant) not in explained]
    if unexplained:
        lines += ["", "| unexplained survivor | in | before | after |", "|---|---|---|---|"]
    for verdict in unexplained:
        mutant = verdict.mutant
        where = f"{mutant.where}, no test reaches it" if verdict.outcome == "unreached" else mutant.where
        lines.append(f"| {mutant.file}:{mutant.line} | {where} | {_code(mutant.before)} | {_code(mutant.after)} |")
    kinds = Counter(verdict.mutant.kind for verdict in verdicts)
    lines += ["", "Kinds: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) + ".", ""]
    return "\n".join(lines)


def entry(verdict: Verdict) -> str:
    """Return the entry to paste into the file of explanations."""
    place, change, number = key(verdict.mutant)
    nth = f"nth = {number}\n" if number else ""
    text = f"'{change}'" if "'" not in change and "\n" not in change else f"'''\n{change}'''"
    comment = f"  # line {verdict.mutant.line}, {verdict.outcome}"
    return f'[[survivor]]{comment}\nin = "{place}"\nchange = {text}\n{nth}why = ""\n'


def _code(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return f"`{flat}`"


def _share(killed: int, count: int) -> str:
    return f"{100 * killed / count:.1f} %" if count else ""
