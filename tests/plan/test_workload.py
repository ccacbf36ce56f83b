"""Totals of a run: rounds, optimizer steps, completions, tokens, evaluations, checkpoints."""

from __future__ import annotations

import pytest

from rlhf_cli.display.start_panel import workload_lines
from tests.support.planning import planned

GRPO = ("+exp=quickstart", "launch=cpu", "track=none")
PPO = ("+exp=toy_ppo", "launch=cpu", "track=none")


def lines(*words: str) -> dict[str, str]:
    return dict(workload_lines(planned(*words)))


def test_ppo_learns_from_a_round_in_16_steps() -> None:
    """4 minibatches in 4 epochs: 20 steps are a round and a quarter. Two rounds of 256 completions are generated.

    8 tokens an answer: 4096 at most.
    """
    work = planned(*PPO, "trainer.args.max_steps=20").workload
    assert (work.rounds, work.steps_a_round, work.completions, work.prompts) == (1.25, 16, 512, 512)
    assert (work.max_tokens, work.epochs) == (4096, 512 / 2000)
    shown = lines(*PPO, "trainer.args.max_steps=20")
    assert shown["steps"].startswith("20 = 1.25 rounds x 16; ")
    assert shown["steps"].endswith("the last round is used in part")
    assert "512 completions of 512 prompts (0.256 times the data), 4096 tokens generated at most" in shown["in all"]
    assert lines(*PPO, "trainer.args.max_steps=32")["steps"].startswith("32 = 2 rounds x 16; 1 x 64")


def test_rows_that_are_learned_from() -> None:
    """3600 pairs are left of 4000 where a tenth is held out, which are 56 steps of 64 and one of the 16 that are left:
    150 steps are two epochs of 57 and 36 steps more, so 2 x 3600 + 36 x 64 = 9504 rows.

    Where those 16 are dropped an epoch is 56 steps of 3584 rows: 2 x 3584 + 38 x 64 = 9600.
    """
    toy = ("+exp=toy_reward", "launch=cpu", "track=none")
    plan, dropped = planned(*toy), planned(*toy, "trainer.args.dataloader_drop_last=true")
    assert plan.workload.rows == 9504
    assert plan.workload.longest_row is not None
    assert plan.workload.max_tokens == 9504 * plan.workload.longest_row
    assert (dropped.workload.rows, dropped.workload.epochs) == (9600, 150 / 56)
    two_epochs = ("trainer.args.max_steps=-1", "trainer.args.num_train_epochs=2", "~expect")
    assert planned(*toy, *two_epochs).workload.rows == 2 * 3600
    assert plan.evaluations is not None
    assert plan.num_rows is not None
    assert plan.evaluations.rows is not None
    assert plan.num_rows + plan.evaluations.rows == 4000


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (("trainer.args.eval_steps=50",), 3),  # after 50, 100 and the last, 120
        (("trainer.args.eval_steps=40",), 3),  # the last is one of them
        (("trainer.args.eval_steps=0.5",), 2),
        (("trainer.args.eval_steps=40", "trainer.args.eval_on_start=true"), 4),
        (("trainer.args.eval_steps=50", "trainer.args.eval_delay=60"), None),
    ],
)
def test_evaluations_come_after_the_last_step_too(words: tuple[str, ...], times: int | None) -> None:
    """transformers' DefaultFlowCallback; tests/trainers hold its seams. 9 answers a prompt: one greedy, 8 sampled."""
    held_out = ("data.eval.fraction=0.1", "trainer.args.eval_strategy=steps")
    plan = planned(*GRPO, *held_out, *words)
    assert plan.evaluations is not None
    assert plan.evaluations.rows is not None
    assert (plan.evaluations.times, plan.evaluations.completions) == (times, 9 * plan.evaluations.rows)
    assert planned(*GRPO).evaluations is None
