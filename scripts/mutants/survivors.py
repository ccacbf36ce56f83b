"""What became of mutants, as a page: counts, and a table of the survivors with an explanation that is kept by hand."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants.mutations import Mutant


@dataclass(frozen=True)
class Verdict:
    """`killed`, `timed out` (the tests did not end: killed as well), `survived`, or `unreached`: no test runs it.

    `is_kept`: it is from an earlier run, and the function around has not changed since.
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


@dataclass(frozen=True)
class Explanation:
    """Why a mutant survives; `is_equivalent`: no test can notice it, for nothing that can be seen differs."""

    why: str
    is_equivalent: bool


def explanations(file: Path) -> dict[tuple[str, str, str, str, int], Explanation]:
    """Return the explanations of a TOML file, by the name of their mutant."""
    if not file.exists():
        return {}
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("survivor", [])
    return {
        (one["file"], one["where"], one["before"], one["after"], one.get("nth", 0)): Explanation(
            one["why"], one.get("equivalent", False)
        )
        for one in entries
    }


def page(
    verdicts: Sequence[Verdict],
    explained: Mapping[tuple[str, str, str, str, int], Explanation],
    head: Iterable[str],
    room: Callable[[str], str],
) -> str:
    """Return a Markdown page; `head` are its first lines, `room` maps a file to its room."""
    lines = [
        *head,
        "",
        "| room | mutants | killed | survived | equivalent survivors | killed | killed, equivalent ones aside |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in [*sorted({room(one.mutant.file) for one in verdicts}), ""]:
        some = [one for one in verdicts if name in ("", room(one.mutant.file))]
        alive = [one for one in some if one.lives]
        equivalent = sum(one.mutant.name in explained and explained[one.mutant.name].is_equivalent for one in alive)
        killed = len(some) - len(alive)
        counts = f"{len(some)} | {killed} | {len(alive)} | {equivalent}"
        lines.append(
            f"| {name or 'all'} | {counts} | {_share(killed, len(some))} | {_share(killed, len(some) - equivalent)} |"
        )
    lines += ["", "| survivor | in | before | after | why it survives |", "|---|---|---|---|---|"]
    for one in verdicts:
        if one.lives:
            mutant, note = one.mutant, explained.get(one.mutant.name)
            why = (
                note.why
                if note
                else ("**unexplained**" + (", no test reaches it" if one.outcome == "unreached" else ""))
            )
            kind = "equivalent: " if note and note.is_equivalent else ""
            cells = (
                f"{mutant.file}:{mutant.line}",
                mutant.where,
                _code(mutant.before),
                _code(mutant.after),
                kind + why,
            )
            lines.append("| " + " | ".join(cells) + " |")
    kinds = Counter(one.mutant.kind for one in verdicts)
    lines += ["", "Kinds: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) + ".", ""]
    return "\n".join(lines)


def entry(verdict: Verdict) -> str:
    """Return what to paste into the file of explanations."""
    mutant = verdict.mutant
    nth = f"nth = {mutant.nth}\n" if mutant.nth else ""
    return (
        f'[[survivor]]  # line {mutant.line}, {verdict.outcome}\nfile = "{mutant.file}"\nwhere = "{mutant.where}"\n'
        f'before = {_toml(mutant.before)}\nafter = {_toml(mutant.after)}\n{nth}why = ""\n'
    )


def _toml(text: str) -> str:
    return f"'{text}'" if "'" not in text and "\n" not in text else f"'''\n{text}'''"


def _code(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return f"`{flat}`"


def _share(killed: int, count: int) -> str:
    return f"{100 * killed / count:.1f} %" if count else ""
