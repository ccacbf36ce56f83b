"""Runs `rlhf` with a regression planted: python -m scripts.regressions.planted_run NAME train +exp=..."""

from __future__ import annotations

import sys

from rlhf_cli.cli import main
from scripts.regressions.plants import BY_NAME


def run(argv: list[str]) -> int:
    """Plant what the first word names, then run the command of the others; returns its exit code."""
    BY_NAME[argv[0]].plant()
    return main(argv[1:])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
