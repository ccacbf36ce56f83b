"""What is advised where memory ran out: it is accepted when it is typed, and it does lower what it is said to."""

from __future__ import annotations

import shlex

import pytest

from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.plan.memory.estimate import Part
from rlhf_cli.plan.memory.memory_advice import memory_advice, part_advice
from rlhf_cli.runs.heartbeat import EVALUATION, GENERATION, LOADING, LOSS, OPTIMIZER, REWARDS, ROLLOUT, SAVING, TRAINING
from tests.support.small_runs import PPO_SMALL, SMALL

PHASES = [(LOADING,), *((TRAINING, one) for one in (GENERATION, REWARDS, ROLLOUT, LOSS, OPTIMIZER, EVALUATION, SAVING))]
PLAIN = "trainer.args.gradient_checkpointing=false"
ON_A_HUB = ["model.build=null", "model.path=acme/model"]


def advised(words: list[str], *phases: str, world_size: int = 1, on_gpu: bool = True) -> list[str]:
    experiment = prepare([*SMALL, *words], keep_run_names=True).experiment
    return [str(one) for one in memory_advice(experiment, phases, world_size=world_size, on_gpu=on_gpu)]


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    "words",
    [
        [],
        ON_A_HUB,
        PPO_SMALL,
        [*PPO_SMALL, *ON_A_HUB, "model.lora.r=4"],
        ["trainer.args.steps_per_generation=2", "trainer.args.gradient_checkpointing=false"],
        ["trainer.args.generation_batch_size=32", "rewards.judge.model=acme/judge", "rewards.judge.with_eos=true"],
        ["data.eval.fraction=0.2", "trainer.args.eval_strategy=steps", "trainer.args.num_generations_eval=2"],
    ],
    ids=["small", "hub", "ppo", "ppo-lora", "steps", "round", "evaluated"],
)
def test_what_is_advised_is_accepted(words: list[str]) -> None:
    device = [word for word in SMALL if word != "launch=cpu"]
    experiment = prepare([*device, *words], keep_run_names=True).experiment
    seen = 0
    for phases in PHASES:
        for advice in memory_advice(experiment, phases, world_size=1, on_gpu=True):
            prepare([*device, *words, *shlex.split(" ".join(advice.words))], keep_run_names=True)
            seen += 1
    assert seen > len(PHASES)


def test_half_of_a_batch_in_twice_as_many_parts_is_the_same_batch() -> None:
    assert advised(["trainer.args.gradient_accumulation_steps=3"], LOSS)[0].startswith(
        "trainer.args.per_device_train_batch_size=4 trainer.args.gradient_accumulation_steps=6  (the same"
    )
    (first, *_) = advised(["trainer.args.steps_per_generation=2"], LOSS)
    assert "trainer.args.steps_per_generation=4" in first  # else a round would be half of what it was
    assert not any("per_device" in one for one in advised(["trainer.args.per_device_train_batch_size=1",
                                                             "trainer.args.steps_per_generation=4"], LOSS))  # fmt: skip


def test_a_round_of_generation_is_halved_and_keeps_whole_groups() -> None:
    """All 16 completions of a round of a process are generated at once, whatever a micro-batch is."""
    (first, *_) = advised(["trainer.args.steps_per_generation=2"], GENERATION)
    assert first.startswith("trainer.args.steps_per_generation=1  (half as many completions at once; now 16 ")
    groups_of_eight = ["trainer.args.num_generations=8"]
    assert not any("at once" in one for one in advised(groups_of_eight, GENERATION))


def test_of_the_batches_of_an_evaluation_it_is_said_first() -> None:
    (first, *_) = advised(["trainer.args.per_device_eval_batch_size=8"], EVALUATION, GENERATION)
    assert first.startswith("trainer.args.per_device_eval_batch_size=4  (the same evaluation in smaller parts; now 8)")


def test_vllm_in_the_same_process_is_asked_for_room() -> None:
    words = ["launch.rollout=vllm", "trainer.args.vllm_gpu_memory_utilization=0.5"]
    device = [word for word in SMALL if word != "launch=cpu"]
    experiment = prepare([*device, *words], keep_run_names=True).experiment
    found = [str(one) for one in memory_advice(experiment, (LOADING,), world_size=1, on_gpu=True)]
    assert found[0].startswith("trainer.args.vllm_gpu_memory_utilization=0.4  (vLLM takes less of the GPU; now 0.5)")
    assert found[1].startswith("trainer.args.vllm_enable_sleep_mode=true")


def test_on_the_cpu_nothing_of_a_gpu_is_advised() -> None:
    for phases in PHASES:
        assert not any("launch" in one or "8bit" in one for one in advised([], *phases, on_gpu=False))


@pytest.mark.parametrize(
    ("words", "part", "typed"),
    [
        ([PLAIN], "activations", "trainer.args.gradient_checkpointing=true"),
        (["trainer.args.gradient_checkpointing=true"], "activations", "trainer.args.per_device_train_batch_size=4"),
        ([], "logits", "trainer.args.per_device_train_batch_size=4"),
        ([], "optimizer", "trainer.args.optim=adamw_bnb_8bit"),
        ([], "gradients", "model.lora.r=16"),
        (PPO_SMALL, "critic", "model.lora.r=16"),
        (
            ["rewards.judge.model=acme/judge", "rewards.judge.with_eos=true"],
            "reward models",
            "rewards.judge.device=cpu",
        ),
    ],
)
def test_the_cheapest_that_lowers_a_part(words: list[str], part: Part, typed: str) -> None:
    experiment = prepare([*SMALL, *words], keep_run_names=True).experiment
    advice = part_advice(experiment, part, world_size=1, on_gpu=True)
    assert advice is not None
    assert advice.words[0] == typed


def test_a_part_for_which_there_is_nothing_to_type() -> None:
    experiment = prepare(SMALL, keep_run_names=True).experiment
    assert part_advice(experiment, "critic", world_size=1, on_gpu=True) is None
