"""Rewards that need processes of their own: one for isolated workers, one that starts a sandboxed program."""

from __future__ import annotations

from typing import Any

from rlhf_cli.services.sandbox.running import run_code


def isolated(completions: list[str], **_: Any) -> list[float]:
    """Score the characters of each completion; the experiment runs it in a worker."""
    return [sum(map(ord, text)) % 97 / 97 for text in completions]


def sandboxed(completions: list[str], **_: Any) -> list[float]:
    """Give all completions the score that a program prints for the first."""
    done = run_code(f"print(len({completions[0]!r}) % 7)")
    return [int(done.stdout) / 7] * len(completions)
