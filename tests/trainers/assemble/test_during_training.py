"""Evaluation while a policy trains: it says what `rlhf eval` says, training does not notice it, the best is kept."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.measure.policy_results import Attempts, PartEvaluation, PolicyEvaluation, RewardEstimates, TokenEstimate
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.metrics_file import describe_held_out, read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.tables.metrics import is_of_the_clock
from rlhf_cli.trainers.assemble.trainer import metrics_of
from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin
from tests.support.tolerances import ARITHMETIC

EVERY_STEP = ["data.eval.fraction=0.25", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1"]
FAST = ["trainer.args.learning_rate=0.1", "rewards.sum.fn=./sums.py:sums"]
"""So that three steps change what an untrained model answers, and the total with it."""
SUMS = "def sums(completion_ids, **kwargs):\n    return [sum(ids) / 1000 for ids in completion_ids]\n"
NUM_HELD_OUT, GENERATIONS = 16, 4


def evaluation(folder: RunFolder, step: int) -> dict[str, Any]:
    return read_json(folder.path / "eval" / "training" / f"step-{step}.json")


def of_training(folder: RunFolder) -> list[dict[str, Any]]:
    """Log events of training, without clocks."""
    events = [event for event in read_metrics(folder.metrics) if "loss" in event]
    return [{k: v for k, v in event.items() if not is_of_the_clock(k)} for event in events]


@pytest.mark.parametrize("trainer", ["rloo", "ppo"])
def test_the_greedy_half_is_what_rlhf_eval_says_of_the_same_weights(train, train_ppo, capsys, trainer: str) -> None:
    Path("sums.py").write_text(SUMS)
    run = train_ppo if trainer == "ppo" else train
    words = [] if trainer == "ppo" else [f"trainer={trainer}"]
    code, folder = run(*words, *EVERY_STEP, "trainer.args.num_generations_eval=4", *FAST)
    assert code == 0
    assert "step 3, held out: greedy " in capsys.readouterr().out
    during = evaluation(folder, 3)
    assert main(["eval", str(folder.path), "--samples", "0", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert (during["rows"], during["kind"], during["data"]) == (NUM_HELD_OUT, "policy", "the 25% held out")
    assert during["parts"]["greedy"] == after["parts"]["greedy"]
    assert during["parts"]["sampled"]["total"]["count"] == NUM_HELD_OUT
    # It moves, so that the one above is not equal whatever the weights.
    assert evaluation(folder, 1)["parts"]["greedy"] != during["parts"]["greedy"]
    # The same prompts were answered, each so often as it should be.
    lines = (folder.path / "eval" / "training" / "step-3.completions.jsonl").read_text().splitlines()
    asked = [(one["prompt"], one["part"], one["sample"]) for one in map(json.loads, lines)]
    assert len(set(asked)) == len(asked) == NUM_HELD_OUT * (1 + GENERATIONS)


@pytest.mark.usefixtures("draws")
def test_all_evaluations_are_drawn(train) -> None:
    code, folder = train(*EVERY_STEP, "trainer.args.max_steps=1", "trainer.args.eval_on_start=true")
    assert code == 0
    assert "no picture" not in folder.log.read_text()


def test_the_sampled_half_is_what_trl_measured(train) -> None:
    """TRL's own mean over the batches of equal size is the mean over prompts."""
    _, folder = train(*EVERY_STEP)
    (event,) = [event for event in read_metrics(folder.metrics) if "eval_reward" in event and event["step"] == 2]
    assert event["eval_sampled/total"] == pytest.approx(event["eval_reward"], **ARITHMETIC)
    for name in ("correct", "format", "brevity"):
        assert event[f"eval_sampled/rewards/{name}"] == pytest.approx(event[f"eval_rewards/{name}/mean"], **ARITHMETIC)
    assert event["eval_sampled/tokens"] == pytest.approx(event["eval_completions/mean_length"], **ARITHMETIC)
    assert event["eval_sampled/truncated"] == pytest.approx(event["eval_completions/clipped_ratio"], **ARITHMETIC)
    assert event["eval_pass@1/correct"] == pytest.approx(event["eval_rewards/correct/mean"], **ARITHMETIC)
    assert event["eval_pass@1/correct"] <= event["eval_pass@2/correct"] <= event["eval_pass@4/correct"]
    assert not any(name.startswith("eval_greedy/") and name.endswith("length") for name in event)


def test_training_does_not_notice_that_it_is_evaluated(train, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "data.eval.fraction=0.25"
    plain = of_training(train(rows, name="plain")[1])
    assert of_training(train(*EVERY_STEP, name="evaluated")[1]) == plain
    # Negative control: without random numbers of its own it would.
    monkeypatch.setattr(EvaluationMixin, "_own_randomness", lambda self: contextlib.nullcontext())
    assert of_training(train(*EVERY_STEP, name="noticed")[1]) != plain


def test_truncated_answers_count_whatever_training_makes_of_them(train) -> None:
    """`exclude` takes them out of the loss; an evaluation that left them out would praise who never ends."""
    settings = [*EVERY_STEP, "trainer.args.max_completion_length=2", "trainer.args.max_steps=1"]
    _, without = train(*settings, name="without")
    _, excluded = train(*settings, "truncation=exclude", name="excluded")
    one, other = (evaluation(folder, 1) for folder in (without, excluded))
    assert other["parts"]["greedy"]["truncated"]["mean"] > 0
    assert other["parts"]["greedy"]["total"]["count"] == NUM_HELD_OUT
    assert one["parts"]["greedy"].keys() == other["parts"]["greedy"].keys()
    _, penalised = train(*settings, "truncation=eos_penalty", "truncation.penalty=5", name="penalised")
    assert evaluation(penalised, 1)["parts"]["greedy"]["total"]["mean"] >= 0  # a penalty is not the policy's worth


def test_the_model_stays_in_evaluation_mode_whatever_generating_does(train, monkeypatch) -> None:
    """Under continuous batching TRL puts it into training mode, and evaluates the next batch as if it trained."""

    from trl import GRPOTrainer

    plain = GRPOTrainer._generate_single_turn

    def careless(self: Any, *args: Any, **named: Any) -> Any:
        generated = plain(self, *args, **named)
        self.model.train()
        return generated

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", careless)
    code, folder = train(*EVERY_STEP, "trainer.args.num_generations_eval=2")
    assert code == 0
    assert evaluation(folder, 3)["parts"]["greedy"]["total"]["count"] == NUM_HELD_OUT


def test_every_row_counts_whatever_training_drops(train) -> None:
    """With dense rewards, which have another way to the advantages."""
    words = ["data.eval.fraction=0.2", "trainer.args.dataloader_drop_last=true", "trainer.args.max_steps=1"]
    code, folder = train(*EVERY_STEP, *words, "trainer.dense=true")  # 13 rows, in batches of 8
    assert code == 0
    parts = evaluation(folder, 1)["parts"]
    assert (parts["greedy"]["total"]["count"], parts["sampled"]["total"]["count"]) == (13, 13)


def test_a_reward_that_is_no_longer_only_0_and_1_does_not_end_the_run(train) -> None:
    code = "def half(trainer_state, completions, **kwargs):\n"
    code += "    return [0.5 if trainer_state.global_step > 1 else 0.0] * len(completions)\n"
    Path("half.py").write_text(code)
    words = [*EVERY_STEP, "trainer.args.save_steps=1", "trainer.args.load_best_model_at_end=true"]
    done, _ = train(*words, "rewards.half.fn=./half.py:half", "trainer.args.metric_for_best_model=pass@4/half")
    assert done == 0


def test_a_schedules_end_weighs_every_evaluation(train) -> None:
    _, folder = train(
        *EVERY_STEP, "rewards.brevity.weight={start: 0, end: 1, steps: 3}", "trainer.args.learning_rate=0"
    )
    totals = {evaluation(folder, step)["parts"]["greedy"]["total"]["mean"] for step in (1, 2, 3)}
    assert len(totals) == 1


def test_the_best_checkpoint_by_a_greedy_total(train) -> None:
    Path("sums.py").write_text(SUMS)
    code, folder = train(
        *EVERY_STEP,
        *(f"trainer.args.{name}=1" for name in ("save_steps", "save_total_limit")),
        "trainer.args.metric_for_best_model=greedy/total",
        "trainer.args.load_best_model_at_end=true",
        *FAST,
    )
    assert code == 0
    totals = {step: evaluation(folder, step)["parts"]["greedy"]["total"]["mean"] for step in (1, 2, 3)}
    assert len(set(totals.values())) > 1
    checkpoint = sorted(folder.checkpoints.iterdir())[-1]
    best = read_json(checkpoint / "trainer_state.json")["best_global_step"]
    assert totals[best] == max(totals.values())


def test_a_metric_that_is_not_there_is_told_with_those_that_are(train, capsys) -> None:
    words = [*EVERY_STEP, "trainer.args.save_steps=1", "trainer.args.load_best_model_at_end=true"]
    code, _ = train(*words, "trainer.args.metric_for_best_model=rewrd")
    assert code == 2
    said = capsys.readouterr().err
    assert "no evaluation logs rewrd" in said
    assert "trainer.args.metric_for_best_model=reward" in said


def test_a_reward_behind_a_closed_gate_is_no_reason_to_end_the_run(train) -> None:
    words = [*EVERY_STEP, "trainer.args.save_steps=1", "trainer.args.load_best_model_at_end=true"]
    gate = "rewards.correct.gate={by: brevity, at_least: 7, otherwise: exclude}"
    code, folder = train(*words, gate, "trainer.args.metric_for_best_model=pass@4/correct")
    assert code == 0
    part = evaluation(folder, 3)["parts"]["sampled"]["rewards"]["correct"]["raw"]
    assert (part["mean"], part["count"]) == (None, 0)


def share(mean: float | None) -> Estimate:
    return Estimate(mean, None, None, 4)


PART = PartEvaluation(
    rewards={"a": RewardEstimates(share(None), share(1.0), share(2.0))},
    total=Estimate(1.0, 0.5, 1.5, 4),
    truncated=share(0.25),
    tokens=TokenEstimate(3.0, None, None, 4, max=7),
)
EVALUATION = PolicyEvaluation(
    rows=4,
    parts={"greedy": PART},
    attempts={"b": Attempts(pass_at={1: share(0.5), 2: share(0.75)}, maj_at={2: share(0.4)})},
    shown=[],
)


def test_names_of_metrics() -> None:
    assert metrics_of(EVALUATION) == {
        "greedy/total": 1.0,
        "greedy/total/low": 0.5,
        "greedy/total/high": 1.5,
        "greedy/rewards/a": None,
        "greedy/truncated": 0.25,
        "greedy/tokens": 3.0,
        "pass@1/b": 0.5,
        "pass@2/b": 0.75,
        "maj@2/b": 0.4,
    }


def test_an_evaluation_in_a_line() -> None:
    event = {f"eval_{name}": value for name, value in metrics_of(EVALUATION).items()}
    assert describe_held_out(event) == "greedy 1.000 [0.500, 1.500]"
    assert describe_held_out({"eval_loss": 0.5, "eval_accuracy": 0.75}) == "loss 0.500, accuracy 0.750"
    assert describe_held_out({"eval_loss": None}) == ""
    assert not math.isnan(event["eval_greedy/total"])
