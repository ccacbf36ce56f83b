"""A completions table says of each row which round of training it is of and how it ended; its scores are exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.analysis.whatif.stored_rounds import read_rounds
from tests.support.hindsight_runs import BASE, ROWS, begin, table

LONG = ("trainer.args.steps_per_generation=2", "trainer.args.num_iterations=2", "trainer.args.max_steps=6")
EVALUATED = ("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2", "data.eval.fraction=0.25")


def test_rounds_steps_and_ends(train, says, workplace: Path) -> None:
    """Two minibatches, each learnt from twice: four optimizer steps a round, of sixteen rows."""
    begin(workplace)
    says(*ROWS)
    code, run = train(*BASE, *LONG)
    assert code == 0
    for step in range(1, 7):
        rows = table(run, step)
        later = step > 4
        assert rows["rollout.round"] == [int(later)] * 16
        assert rows["rollout.step"] == [4 if later else 0] * 16
        assert rows["rollout.truncated"] == [False, True, False, False, True, False, False, False] * 2
        assert rows["rollout.tokens"] == [2, 4, 3, 4, 4, 2, 4, 2] * 2


def test_scores_are_those_that_the_functions_returned(train, says, workplace: Path) -> None:
    """0.1 is not a float32: a gate at 0.1 that was open must be open when it is recomputed."""
    begin(workplace)
    says(*ROWS)
    code, run = train(*BASE, "trainer.args.max_steps=1")
    assert code == 0
    rows = table(run, 1)
    assert rows["a"] == [0.1, 0.7, 0.3, 0.3, 0.9, 0.2, 0.9, 0.4]
    assert rows["c"] == [2.5, None, -0.6, 0.2, 1.3, 0.0, None, 5.0]
    assert rows["a.effective"] != rows["a"]  # TRL's matrix, in float32


RLOO = pytest.param(("trainer=rloo",), id="rloo", marks=pytest.mark.slow)


@pytest.mark.parametrize("trainer", [pytest.param((), id="grpo"), RLOO])
def test_an_evaluation_leaves_the_rounds_alone(train, says, workplace: Path, trainer: tuple[str, ...]) -> None:
    """TRL writes the table of a step anew after an evaluation; its newest rows would be the evaluation's."""
    begin(workplace)
    says(*ROWS)
    code, run = train(*BASE, *LONG, *EVALUATED, "trainer.args.eval_on_start=true", *trainer)
    assert code == 0
    assert table(run, 0)["rollout.round"] == [None] * len(table(run, 0)["step"])
    assert table(run, 2)["rollout.round"] == [0] * 16  # an evaluation at this step, after it was logged
    found = read_rounds(run)
    assert [one.number for one in found.rounds] == [0, 1]
    # What is logged after an evaluation, of the same round, holds the evaluation's answers as well.
    assert [text.partition(".parquet")[0] for text in found.left_out][:2] == ["completions_00000", "completions_00003"]
