"""Plant small mistakes in the code, one at a time, and report which of them no test notices.

    python -m scripts.mutants                                     # writes docs/development/mutants.md
    python -m scripts.mutants --file rlhf_cli/numerics/ppo.py     # every mutant of one file
    python -m scripts.mutants --file rlhf_cli/numerics/ppo.py --tests tests/numerics/test_ppo.py    # in a minute
    python -m scripts.mutants --list                              # print the sample

First, all tests run on the unchanged code; if one fails, the command ends. Then each mutant is written into a copy of
the project, and the tests that reach its statement run, the nearest first. A mutant is killed if a test fails or takes
too long.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scripts.mutants.forked import warm
from scripts.mutants.judging import verdicts
from scripts.mutants.kills import Kills
from scripts.mutants.mutations import Mutant, drawn, mutants_of
from scripts.mutants.project import OURS, Project
from scripts.mutants.reach import ControlFailed
from scripts.mutants.survivors import Verdict, entry, explanations, key, page


def main(argv: Sequence[str], project: Project = OURS) -> int:
    """Judge mutants; return 0 if every survivor is explained, 1 if one is not, 2 if an unmutated test fails."""
    arguments = _arguments(argv)
    project = replace(project, judging=tuple(arguments.tests))
    mutants = _mutants(project, arguments)
    if arguments.list:
        for mutant in mutants:
            print(mutant.in_words)
        print(f"{len(mutants)} mutants")
        return 0
    warm(project.warm)
    commit = _commit(project.root)
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        try:
            judged = _verdicts(project, mutants, Path(place), arguments)
        except ControlFailed as error:
            print(error, file=sys.stderr)
            return 2
    explained = explanations(project.root / project.explanations)
    unexplained = [verdict for verdict in judged if verdict.lives and key(verdict.mutant) not in explained]
    for verdict in unexplained:
        print(entry(verdict))
    text = page(judged, explained, _head(project, arguments, judged, commit), project.room)
    if arguments.file or arguments.grep:
        print(text)
    else:
        (project.root / project.page).write_text(text, encoding="utf-8")
    return 1 if unexplained else 0


_FEWEST = 12
"""The smallest sample of a room."""


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--lines", type=int, default=60, help="draw one mutant per this many lines (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", action="append", default=[], help="every mutant of this file; prints, writes no page")
    parser.add_argument("--grep", action="append", default=[], help="only where the line of --list holds it; as --file")
    parser.add_argument("--tests", action="append", default=[], help="judge by this file of tests alone; with --file")
    parser.add_argument("--keep-kills", action="store_true", help="judge no function again that has not changed")
    parser.add_argument("--list", action="store_true", help="print the mutants and judge none")
    parser.add_argument("--budget-s", type=float, default=60, help="CPU seconds of tests a mutant (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that judge (%(default)s)")
    return parser.parse_args(argv)


def _mutants(project: Project, arguments: argparse.Namespace) -> list[Mutant]:
    by_room: dict[str, list[Mutant]] = {room: [] for room in project.rooms}
    lines = dict.fromkeys(project.rooms, 0)
    for file in arguments.file or project.mutated_files():
        source = (project.root / file).read_text(encoding="utf-8")
        by_room[project.room(file)] += mutants_of(source, file)
        lines[project.room(file)] += source.count("\n")
    if arguments.file:
        mutants = [mutant for mutants in by_room.values() for mutant in mutants]
    else:
        counts = [max(_FEWEST, lines[room] // arguments.lines) for room in by_room]
        mutants = drawn(list(by_room.values()), counts, arguments.seed)
    wanted = arguments.grep or [""]
    return [mutant for mutant in mutants if any(text in mutant.in_words for text in wanted)]


def _verdicts(project: Project, mutants: Sequence[Mutant], place: Path, arguments: argparse.Namespace) -> list[Verdict]:
    explained = explanations(project.root / project.explanations)
    equivalent = {name for name, is_equivalent in explained.items() if is_equivalent}
    killed = Kills(project.root / project.cache / "kills.json", project.root, equivalent)
    kept = [verdict for mutant in mutants if arguments.keep_kills and (verdict := killed.verdict(mutant))]
    found = {verdict.mutant: verdict for verdict in kept}
    waiting = [mutant for mutant in mutants if mutant not in found]
    judged = verdicts(project, waiting, place, arguments.jobs, arguments.budget_s) if waiting else ()
    for number, verdict in enumerate(itertools.chain(kept, judged), 1):
        found[verdict.mutant] = verdict
        killed.note(verdict)
        told = f"{verdict.outcome:9} {verdict.seconds:5.1f} s  {verdict.mutant.in_words}  {verdict.by}"
        print(f"{number}/{len(mutants)} {told}", flush=True)
    return [found[mutant] for mutant in mutants]


def _head(project: Project, arguments: argparse.Namespace, judged: Sequence[Verdict], commit: str) -> list[str]:
    minutes = sum(verdict.seconds for verdict in judged) / 60
    drawn_as = f"{len(judged)} mutants, seed {arguments.seed}{commit}"
    kept = sum(verdict.is_kept for verdict in judged)
    note = f" {kept} of the verdicts are from earlier commits; those functions have not changed since." if kept else ""
    time_taken = f"{minutes:.0f} minutes of tests, the unmutated ones aside."
    return ["# Mutants", project.about, f"{drawn_as}: {time_taken}{note}"]


def _commit(root: Path) -> str:
    """Return ", commit ..." for the page, empty outside git."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%h of %cs"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return f", commit {asked.stdout.strip()}" if asked.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
