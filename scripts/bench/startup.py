"""What it costs to ask `rlhf` something: CPU seconds of whole processes, as they are installed from a wheel.

    python scripts/bench/startup.py --runs 20
    python scripts/bench/startup.py --runs 20 --site FOLDER     the wheel that is installed there, not a new one

A wheel is built, installed into a folder of its own, and its entry point `rlhf` is run in an empty folder, bytecode
warm. The commands take turns, so that whatever else the machine does falls on all of them; CPU seconds (user and
system, by wait4) are those of the child alone. TRL's answer to the same typo stands beside them, every fourth turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRL = "from trl import GRPOConfig; GRPOConfig(output_dir='out', learning_rte=1e-5)"
EVERY = 4

COMMANDS: dict[str, tuple[list[str], int, float | None]] = {
    "rlhf --help": (["--help"], 0, 0.1),
    "rlhf list": (["list"], 0, 0.3),
    "rlhf check +exp=quickstart rewards.brevity.wieght=0.5": (
        ["check", "+exp=quickstart", "rewards.brevity.wieght=0.5"],
        2,
        0.5,
    ),
    "rlhf check +exp=quickstart": (["check", "+exp=quickstart"], 0, 1.0),
}
"""Shown -> (words, exit code, the goal in CPU seconds)."""


def main() -> None:
    """Install, run in turns, print medians with the range."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--site", type=Path, help="where the wheel is installed; left out, it is built")
    parser.add_argument("--no-trl", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = options.site or installed(Path(folder))
        empty = Path(folder) / "empty"
        empty.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(site), "HOME": folder}
        python = [sys.executable, "-c", "pass"]
        commands = {"python -c pass": (python, 0)}
        commands |= {
            shown: ([str(site / "bin" / "rlhf"), *words], code) for shown, (words, code, _) in COMMANDS.items()
        }
        seconds: dict[str, list[float]] = {shown: [] for shown in commands}
        of_trl: list[float] = []
        for turn in range(-1, options.runs):
            for shown, (command, code) in commands.items():
                took = cpu_seconds(command, code, empty, environment)
                if turn >= 0:  # the first turn warms up what is read and compiled
                    seconds[shown].append(took)
            if not options.no_trl and turn >= 0 and turn % EVERY == 0:
                of_trl.append(cpu_seconds([sys.executable, "-c", TRL], 1, empty, environment))
    print("| command | CPU s, median | range | goal |\n|---|---|---|---|")
    for shown, found in seconds.items():
        goal = COMMANDS[shown][2] if shown in COMMANDS else None
        print(row(shown, found, f"{goal:g}" if goal is not None else ""))
    if of_trl:
        print(row("TRL: GRPOConfig(learning_rte=1e-5) in a script", of_trl, ""))


def row(shown: str, seconds: list[float], goal: str) -> str:
    """Return a line of the table."""
    return f"| `{shown}` | {statistics.median(seconds):.2f} | {min(seconds):.2f}–{max(seconds):.2f} | {goal} |"


def installed(folder: Path) -> Path:
    """Build a wheel of this checkout and install it, without what it depends on, into a folder of its own."""
    dist, site = folder / "dist", folder / "site"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(dist.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True)
    return site


def cpu_seconds(command: list[str], code: int, place: Path, environment: dict[str, str]) -> float:
    """Run a command in a folder and return the CPU seconds of its process. Raises SystemExit for another exit code."""
    with open(os.devnull, "wb") as nowhere:
        child = subprocess.Popen(command, cwd=place, env=environment, stdout=nowhere, stderr=nowhere)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != code:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}, not {code}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
