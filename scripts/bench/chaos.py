"""Break runs at random moments and compare them with an undisturbed run.

    python -m scripts.bench.chaos kill|stop|table ... [--count N] [--blows 4] [--cases grpo-2 ...] [--seed 0]
                                  [--place DIR] [--results FILE]

`kill` sends kill -9, `stop` sends SIGTERM to runs of two processes, `table` writes a section of
docs/development/reliability.md. `--count` is the number of blows in the results at the end, so that they can be
collected in portions. Exit code 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rlhf_cli.errors import EXIT_CRASH, EXIT_OK
from scripts.chaos import small_experiment
from scripts.chaos.broken_runs import Reference, break_run, refer
from scripts.chaos.judgement import problems
from scripts.chaos.outcomes import Broken, read_lines, write_line
from scripts.chaos.page import page
from scripts.chaos.process_tree import adopt_orphans
from scripts.chaos.strikes import Case, draw, killed_cases, stopped_cases, track_of
from scripts.reliability.page import KILLED

_KINDS = {"kill": (signal.SIGKILL, killed_cases()), "stop": (signal.SIGTERM, stopped_cases())}
_PAGE = Path(__file__).parents[2] / "docs" / "development" / "reliability.md"
_BLOWS = 4
"""Largest number of blows to one run."""


def main(argv: list[str]) -> int:
    """Run the subcommands and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=[*_KINDS, "table"])
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--blows", type=int, default=_BLOWS)
    parser.add_argument("--cases", nargs="+", metavar="TRAINER-PROCESSES", help="only these, as grpo-2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path)
    parser.add_argument("--results", type=Path, default=Path("chaos.jsonl"))
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that its processes end with it
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        place = (options.place or Path(temporary)).resolve()
        small_experiment.prepare(place)
        os.environ.setdefault("RLHF_CACHE", str(place / "cache"))
        references: dict[Case, Reference] = {}
        return max(_do(what, options, place, references) for what in options.what)


def _do(what: str, options: argparse.Namespace, place: Path, references: dict[Case, Reference]) -> int:
    if what == "table":
        _write_page(options.results)
        return EXIT_OK
    adopt_orphans()
    return _break(what, options, place, references)


def _write_page(results: Path) -> None:
    found = list(read_lines(results))
    killed, stopped = ([run for run in found if run.blows[0].signal == kind.name] for kind, _ in _KINDS.values())
    seeds = sorted({run.seed for run in found})
    faults = _PAGE.read_text(encoding="utf-8").partition(KILLED)[0]
    _PAGE.write_text(faults + page(killed, stopped, seeds), encoding="utf-8")
    for run in found:
        print("".join(f"{run.case} {run.number}: {line}\n" for line in problems(run)), end="")


def _break(what: str, options: argparse.Namespace, place: Path, references: dict[Case, Reference]) -> int:
    """Break runs until the results hold `count` blows of this kind; add undisturbed runs to `references` when
    needed.
    """
    kind, cases = _KINDS[what]
    cases = [case for case in cases if not options.cases or case.name in options.cases]
    known = [broken for broken in read_lines(options.results) if _is_same(broken, kind, options.seed)]
    num_blows = sum(len(broken.blows) for broken in known)
    run = max((broken.number for broken in known), default=-1) + 1
    num_failed = 0
    while num_blows < options.count:
        case = cases[run % len(cases)]
        if case not in references:
            references[case] = refer(case, place, f"whole-{what}-{run}")
            whole = references[case]
            print(f"{case.name}: {whole.duration_s:.1f} s, a save {whole.save_s * 1000:.0f} ms", flush=True)
        num = min(options.blows, options.count - num_blows)
        strikes = [draw(case, kind, seed=options.seed, run=run, blow=blow) for blow in range(num)]
        track = track_of(kind, seed=options.seed, run=run)
        broken = break_run(run, case, strikes, references[case], place, track=track, seed=options.seed)
        run += 1
        if not broken.blows:
            continue  # it ended before the first strike
        write_line(options.results, broken)
        num_blows += len(broken.blows)
        num_failed += bool(_say(broken))
        if not problems(broken):
            shutil.rmtree(small_experiment.folder(case, f"{broken.number}-{kind.name.lower()}", place))
    print(f"{num_blows} blows, {num_failed} runs of this portion have lost something", flush=True)
    return EXIT_CRASH if num_failed else EXIT_OK


def _is_same(broken: Broken, kind: signal.Signals, seed: int) -> bool:
    return broken.blows[0].signal == kind.name and broken.seed == seed


def _say(broken: Broken) -> list[str]:
    wrong = problems(broken)
    print(f"{broken.number} {broken.case}, track={broken.track}")
    for blow, after in zip(broken.blows, broken.commands(), strict=True):
        where = f"step {blow.step}, checkpoint {blow.checkpoint}{', in a save' if blow.was_saving else ''}"
        print(
            f"  {blow.signal} to the {blow.victim} at {blow.at_s:.1f} s, {where}: exit {blow.ended.code}, "
            f"gone after {blow.ended.gone_after_s:.2f} s; went on from {after.went_on_from}, "
            f"first step after {after.first_step_s} s"
        )
    print("\n".join(f"  LOST: {line}" for line in wrong) or "  as if nothing had happened", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
