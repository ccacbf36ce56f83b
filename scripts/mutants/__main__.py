"""Plant small mistakes in the code, one at a time, and report which of them no test notices.

    python -m scripts.mutants                                     # writes docs/development/mutants.md
    python -m scripts.mutants --file rlhf_cli/numerics/ppo.py     # every mutant of one file
    python -m scripts.mutants --list                              # print the sample

First, the tests of each file run on the unchanged code; if one fails, the command ends. Then each mutant is written
into a copy of the project, and the tests that reach its statement run, the nearest first. A mutant is killed if a test
fails or takes too long.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.mutants.forked import Chosen, copied, run_tests, warm
from scripts.mutants.kills import Kills
from scripts.mutants.mutations import Mutant, drawn, mutants_of
from scripts.mutants.project import OURS, Project
from scripts.mutants.reach import ControlFailed, MeasuredTest, chosen, measured
from scripts.mutants.survivors import Verdict, entry, explanations, key, page


def main(argv: Sequence[str], project: Project = OURS) -> int:
    """Judge mutants; return 0 if every survivor is explained, 1 if one is not, 2 if an unmutated test fails."""
    arguments = _arguments(argv)
    mutants = _mutants(project, arguments)
    if arguments.list:
        for mutant in mutants:
            print(_line(mutant))
        print(f"{len(mutants)} mutants")
        return 0
    warm(project.warm)
    commit = _commit(project.root)
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = copied(project.root, project.copied, Path(place))
        try:
            verdicts = _verdicts(project, copy, mutants, arguments)
        except ControlFailed as error:
            print(error, file=sys.stderr)
            return 2
    explained = explanations(project.root / project.explanations)
    unexplained = [verdict for verdict in verdicts if verdict.lives and key(verdict.mutant) not in explained]
    for verdict in unexplained:
        print(entry(verdict))
    text = page(verdicts, explained, _head(project, arguments, verdicts, commit), project.room)
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
    parser.add_argument("--keep-kills", action="store_true", help="judge no function again that has not changed")
    parser.add_argument("--list", action="store_true", help="print the mutants and judge none")
    parser.add_argument("--budget-s", type=float, default=100, help="unmutated seconds of tests a mutant (%(default)s)")
    return parser.parse_args(argv)


def _mutants(project: Project, arguments: argparse.Namespace) -> list[Mutant]:
    by_room: dict[str, list[Mutant]] = {room: [] for room in project.tests}
    lines = dict.fromkeys(project.tests, 0)
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
    return [mutant for mutant in mutants if any(text in _line(mutant) for text in wanted)]


def _verdicts(project: Project, copy: Path, mutants: Sequence[Mutant], arguments: argparse.Namespace) -> list[Verdict]:
    targets, cache = list(project.mutated_files()), project.root / project.cache
    explained = explanations(project.root / project.explanations)
    killed = Kills(cache / "kills.json", copy, {name for name, is_equivalent in explained.items() if is_equivalent})
    by_file: dict[str, list[MeasuredTest]] = {}
    verdicts = []
    for place, mutant in enumerate(mutants, 1):
        verdict = killed.verdict(mutant) if arguments.keep_kills else None
        if verdict is None and arguments.keep_kills and (file := killed.killers_file(mutant)):
            again = _judge(copy, mutant, measured(copy, [file], targets, cache), arguments.budget_s)
            verdict = None if again.lives else again
        if verdict is None:
            if mutant.file not in by_file:
                by_file[mutant.file] = measured(copy, project.test_files(mutant.file, copy), targets, cache)
            verdict = _judge(copy, mutant, by_file[mutant.file], arguments.budget_s)
        killed.note(verdict)
        verdicts.append(verdict)
        print(
            f"{place}/{len(mutants)} {verdict.outcome:9} {verdict.seconds:5.1f} s  {_line(mutant)}  {verdict.by}",
            flush=True,
        )
    return verdicts


def _judge(copy: Path, mutant: Mutant, tests: Sequence[MeasuredTest], budget_s: float) -> Verdict:
    file = copy / mutant.file
    source = file.read_text(encoding="utf-8")
    start, outcome, by = time.monotonic(), "unreached", ""
    try:
        mutated = mutant.applied(source)
        compile(mutated, mutant.file, "exec")
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()
        file.write_text(mutated, encoding="utf-8")
        for helping in chosen(mutant, tests, budget_s):
            timeout_s = 20 + 5 * sum(test.seconds for test in helping)
            files = list(dict.fromkeys(test.file for test in helping))
            ended = run_tests(copy, files, Chosen([test.node for test in helping]), timeout_s, keep_bytecode=False)
            outcome = "survived"
            if ended.code is None:
                outcome = "timed out"
            elif ended.code == 5:
                raise RuntimeError(f"no test was collected for {_line(mutant)}:\n{ended.output[-2000:]}")
            elif ended.code != 0:
                outcome, by = "killed", _killer(ended.output)
            if outcome != "survived":
                break
    finally:
        file.write_text(source, encoding="utf-8")
    return Verdict(mutant, outcome, time.monotonic() - start, by)


def _killer(output: str) -> str:
    failed = [line.split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return next((line for line in failed if line.split()[1].split("::")[0].endswith(".py")), "")


def _line(mutant: Mutant) -> str:
    before, after = (" ".join(text.split()) for text in (mutant.before, mutant.after))
    return f"{mutant.file}:{mutant.line} [{mutant.kind}] {before}  ->  {after}"


def _head(project: Project, arguments: argparse.Namespace, verdicts: Sequence[Verdict], commit: str) -> list[str]:
    minutes = sum(verdict.seconds for verdict in verdicts) / 60
    drawn_as = f"{len(verdicts)} mutants, seed {arguments.seed}{commit}"
    kept = sum(verdict.is_kept for verdict in verdicts)
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
