"""Runs whose completions are given, so that later rounds can be held against real runs as well; and their rewards."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet

from rlhf_cli.analysis.what_if import RoundRecomputer, WhatIf, recompute_both, what_if
from rlhf_cli.analysis.whatif_request import ask, read_rounds
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status

EOS = 1
"""Of the byte tokenizer, which has the printable bytes, `!` the first, behind two special tokens."""


# One group of four, of tests/analysis/whatif/test_what_if.py, and the weight in question.
CORRECT, FORMAT, BREVITY = [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.5, 1.0, 0.0, 0.0]
WAS = [1.1 - 0.825, 0.7 - 0.825, 1.5 - 0.825, -0.825]
WOULD = [0.35 - 0.45, 0.7 - 0.45, 0.75 - 0.45, -0.45]
UNSCALED = "trainer.args.scale_rewards=none"
LESS = "rewards.correct.weight=0.25"


def scores(**other: object) -> dict[str, list[object]]:
    return {"correct": [*CORRECT], "format": [*FORMAT], "brevity": [*BREVITY], "advantage": [*WAS], **other}


def answer(run: RunFolder, *words: str) -> WhatIf:
    return what_if(ask(run, list(words)), read_rounds(run), read_status(run).max_steps)


def ids(text: str, *, ends: bool) -> list[int]:
    """Return the token ids of a text, with the end-of-sequence token or without."""
    return [*(ord(letter) - ord("!") + 2 for letter in text), *([EOS] if ends else [])]


ROWS = [
    *(ids("A", ends=True), ids("BBBB", ends=False), ids("CC", ends=True), ids("DDD", ends=True)),
    *(ids("EEEE", ends=False), ids("F", ends=True), ids("GGG", ends=True), ids("HH", ends=False)),
]
"""Two groups of four: one answer of each is cut off, the last one stopped without an end."""

SOURCE = """
A = {"A": 0.1, "B": 0.7, "C": 0.3, "D": 0.3, "E": 0.9, "F": 0.2, "G": 0.9, "H": 0.4}
B = {"A": 1.0, "B": 0.0, "C": 1.0, "D": 1.0, "E": 0.0, "F": 0.0, "G": 1.0, "H": 1.0}
C = {"A": 2.5, "B": None, "C": -0.6, "D": 0.2, "E": 1.3, "F": 0.0, "G": None, "H": 5.0}


def a(completions, trainer_state, **kwargs):
    return [A[text[0]] * (1 + trainer_state.global_step) for text in completions]

def b(completions, **kwargs):
    return [B[text[0]] for text in completions]

def c(completions, **kwargs):
    return [C[text[0]] for text in completions]

def d(completions, **kwargs):
    if any(text[0] == "D" for text in completions):
        raise ValueError("not this one")
    return [len(text) / 3 for text in completions]

def weakest(rewards, weights):
    rows = zip(*([None if x is None else weights[name] * x for x in row] for name, row in rewards.items()))
    return [min(x for x in row if x is not None) for row in rows]
"""

BASE = [
    *("~rewards.correct", "~rewards.format", "~rewards.brevity"),
    "++rewards.a={fn: './mine.py:a', weight: 1.0, trial: false}",
    "++rewards.b={fn: './mine.py:b', weight: 0.5, trial: false}",
    "++rewards.c={fn: './mine.py:c', weight: 0.25, trial: false}",
    "++rewards.d={fn: './mine.py:d', weight: 0.3, on_error: exclude, trial: false}",
    "guards.max_error_share=1",
    "trainer.args.learning_rate=0.05",
]
"""On top of SMALL: four rewards: one does not apply to all rows, and one fails on some."""


def begin(place: Path) -> None:
    """Write the rewards where runs of BASE look for them."""
    (place / "mine.py").write_text(SOURCE, encoding="utf-8")


def advantages_if(run: RunFolder, *words: str) -> dict[int, list[float] | None]:
    """Return step -> advantages of the stored rollouts under `words`; None if they are unknown."""
    question, steps = ask(run, list(words)), read_status(run).max_steps
    sides = (question.old, question.new)
    old, new = (RoundRecomputer(side, steps, known=question.old.rewards) for side in sides)
    found: dict[int, list[float] | None] = {}
    for stored in read_rounds(run).rounds:
        _, side, _, _ = recompute_both(stored, old, new)
        found[stored.step] = None if side.advantages is None else side.advantages.tolist()
    return found


def table(run: RunFolder, step: int) -> dict[str, list[object]]:
    """A completions table of the run, column by column."""
    return pyarrow.parquet.read_table(run.path / f"completions/completions_{step:05d}.parquet").to_pydict()
