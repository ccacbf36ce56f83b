"""The completions table: rounds and endings of rows, exact scores, groups whose totals are equal."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from rlhf_cli.analysis.whatif.stored_rounds import read_rounds
from rlhf_cli.rewards.stack.dead_signal import share_of_dead_groups
from rlhf_cli.runs.metrics_file import read_metrics, series
from tests.analysis.whatif.whatif_runs import BASE, ROWS, begin, table

# A completions table says of each row which round of training it is of and how it ended; its scores are exact.


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


# The share of groups whose totals are all the same: by hand, in a training, and where TRL's own has it wrong.


EQUAL = (torch.tensor([[1.0, 1.0, 0.9286]] * 8) * torch.tensor([1.0, 0.5, 0.2])).sum(dim=1)
"""Eight equal totals of float32, as weights of 1, 0.5 and 0.2 make them."""


def test_by_hand() -> None:
    totals = torch.cat([EQUAL, EQUAL + torch.tensor([0.0] * 7 + [1e-3])])
    assert share_of_dead_groups(totals, 8) == 0.5
    assert share_of_dead_groups(EQUAL, 8) == 1.0


def test_negative_control_the_deviation_of_equal_totals_is_not_zero() -> None:
    assert not torch.isclose(EQUAL.std(), torch.zeros(()))  # as TRL asks


def test_in_training(train, says) -> None:
    """Every prompt gets the same answer, so all totals of a group are equal."""
    says([50, 51, 52])
    _, folder = train("trainer=rloo", "guards.no_signal=off")
    assert series(read_metrics(folder.metrics), "frac_reward_zero_std")[1] == [1.0] * 3


def test_it_is_what_the_tables_of_completions_say(train) -> None:
    _, folder = train("guards.no_signal=off")
    shares = []
    for step in (1, 2, 3):
        table = pyarrow.parquet.read_table(folder.path / "completions" / f"completions_{step:05d}.parquet")
        totals = table["total"].to_pylist()
        groups = [totals[first : first + 4] for first in (0, 4)]
        shares.append(sum(max(group) - min(group) < 1e-6 for group in groups) / 2)
    assert series(read_metrics(folder.metrics), "frac_reward_zero_std")[1] == shares
