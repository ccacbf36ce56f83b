"""What stored rollouts would have taught is what a real run with these settings has stored: held against such runs.

The completions are given, so that every run of a test has the same ones, in later rounds as well. There GRPO's
advantages depend only on the scores, which grow with the step; RLOO's hold the policy's own KL where beta is
not 0, and only their first step can be held against another run. A run draws its completions by its seed, so with
sampled ones the first step is the same rollouts: the last test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from tests.analysis.whatif.whatif_runs import BASE, ROWS, advantages_if, begin, table

NEAR = {"rel": 0.0, "abs": 1e-6}
GATE = "rewards.c.gate={by: b, at_least: 1.0, otherwise: %s}"
GRPO = {
    "gate exclude": (GATE % "exclude",),
    "z-scores": ("aggregate=normalize_then_sum",),
    "own aggregate": ("aggregate=./mine.py:weakest",),
    "gate equals what float32 has rounded": ("rewards.b.gate={by: a, equals: 0.7, otherwise: zero}",),
    "norm running": ("rewards.a.normalize=running", "rewards.c.normalize=running"),
    "clip and offset": ("rewards.c.clip=[-0.5,2]", "rewards.c.offset=0.4"),
    "failures count": ("rewards.d.on_error=-2.0",),
    "replaced": ("truncation=eos_penalty", "truncation.mode=replace"),
}
RLOO = {
    "gate exclude": (GATE % "exclude",),
    "normalized": ("trainer.args.normalize_advantages=true", "rewards.b.weight=2"),
    "z-scores": ("aggregate=normalize_then_sum",),
    "own aggregate": ("aggregate=./mine.py:weakest",),
    "cut excluded": ("truncation=exclude",),
}
"""Weights, schedules, scales and other truncation policies are worked by hand in test_what_if.py."""


def marked(cases: dict[str, tuple[str, ...]]) -> list[object]:
    """Return the cases of a parametrised test: the first is quick, each other one takes half a second more."""
    return [
        pytest.param(words, id=name, marks=[pytest.mark.slow] if place else [])
        for place, (name, words) in enumerate(cases.items())
    ]


Run = Callable[..., RunFolder]


@pytest.fixture(scope="module")
def made() -> dict[tuple[str, ...], RunFolder]:
    """The runs that the questions are about: one per set of overrides."""
    return {}


@pytest.fixture
def run(train, says, workplace: Path, made: dict[tuple[str, ...], RunFolder]) -> Run:
    """`run(*overrides, name=...)`: three steps on the given completions; `base`, the run in question, is made once."""
    begin(workplace)
    says(*ROWS)

    def one(*overrides: str, name: str = "base") -> RunFolder:
        if name == "base" and overrides in made:
            return made[overrides]
        code, folder = train(*BASE, *overrides, name=name)
        assert code == 0
        if name == "base":
            made[overrides] = folder
        return folder

    return one


@pytest.mark.parametrize("words", marked(GRPO))
def test_grpo(run: Run, words: tuple[str, ...]) -> None:
    base = run()
    said = advantages_if(base, *words)
    real = run(*words, name="real")
    assert list(said) == [1, 2, 3]
    for step, advantages in said.items():
        assert advantages == pytest.approx(table(real, step)["advantage"], **NEAR), step
    stored = table(base, 1)["advantage"]
    assert said[1] != pytest.approx(stored, rel=0, abs=1e-3)  # with the old settings it is another number


@pytest.mark.parametrize("words", marked(RLOO))
def test_rloo(run: Run, words: tuple[str, ...]) -> None:
    base = run("trainer=rloo")
    said = advantages_if(base, *words)
    real = table(run("trainer=rloo", *words, name="real"), 1)["advantage"]
    assert said[1] == pytest.approx(real, **NEAR)
    assert said[1] != pytest.approx(table(base, 1)["advantage"], rel=0, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [(), ("trainer=rloo",)], ids=["grpo", "rloo"])
def test_sampled_completions(trainer: tuple[str, ...], workplace: Path) -> None:
    """Only the seed is given: two runs draw the same first completions, bit for bit."""
    words = ["train", "+exp=quickstart", "launch=cpu", "track=none", "trainer.args.max_steps=1", *trainer]
    asked = ("rewards.brevity.weight=2", "primary={by: correct, at_least: 1.0, otherwise: exclude}")
    assert main([*words, "run.name=base"]) == 0
    assert main([*words, *asked, "run.name=real"]) == 0
    base, real = (RunFolder(workplace / "runs" / "quickstart" / name) for name in ("base", "real"))
    assert table(base, 1)["completion"] == table(real, 1)["completion"]
    said = advantages_if(base, *asked)[1]
    assert said == pytest.approx(table(real, 1)["advantage"], **NEAR)
    assert said != pytest.approx(table(base, 1)["advantage"], rel=0, abs=1e-3)
