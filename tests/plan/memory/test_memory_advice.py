"""Suggestions when memory runs out: their order, their words, and that the words are accepted."""

from __future__ import annotations

import shlex

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.plan.memory.estimate import Part
from rlhf_cli.plan.memory.memory_advice import memory_advice, part_advice
from rlhf_cli.runs.heartbeat import (
    ENDING,
    EVALUATION,
    GENERATION,
    LOADING,
    LOSS,
    OPTIMIZER,
    REWARDS,
    ROLLOUT,
    SAVING,
    TRAINING,
)
from tests.support.small_runs import PPO_SMALL, SMALL

PHASES = [(LOADING,), *((TRAINING, one) for one in (GENERATION, REWARDS, ROLLOUT, LOSS, OPTIMIZER, EVALUATION, SAVING))]
ON_ANY = [word for word in SMALL if word != "launch=cpu"]
ON_A_HUB = ["model.build=null", "model.path=acme/model"]
JUDGE = ["rewards.judge.model=acme/judge", "rewards.judge.with_eos=true"]
EVALUATED = ["data.eval.fraction=0.2", "trainer.args.eval_strategy=steps"]
VLLM = ["launch.rollout=vllm", "trainer.args.vllm_gpu_memory_utilization=0.5"]
LORA, ZERO2, FSDP2 = "model.lora.r=16", "launch=zero2", "launch=fsdp2"
HALF = "per_device_train_batch_size=4 gradient_accumulation_steps=2"
AGAIN, SHORTER, EIGHT_BITS = "gradient_checkpointing=true", "max_completion_length=2", "optim=adamw_bnb_8bit"
SIZE, STEPS = "trainer.args.per_device_train_batch_size", "trainer.args.steps_per_generation"
GROUPS, ROUND = "trainer.args.num_generations", "trainer.args.generation_batch_size"


def experiment_of(*words: str) -> Experiment:
    return prepare([*ON_ANY, *words], keep_run_names=True).experiment


def advised(
    *words: str, phases: tuple[str, ...], on_gpu: bool = True, world_size: int = 1, **more: list[str]
) -> list[str]:
    """The words of every suggestion, without `trainer.args.`."""
    experiment = experiment_of(*words)
    found = memory_advice(experiment, phases, world_size=world_size, on_gpu=on_gpu, **more)
    return [" ".join(one.words).replace("trainer.args.", "") for one in found]


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    "words",
    [
        [],
        ON_A_HUB,
        PPO_SMALL,
        [*PPO_SMALL, *ON_A_HUB, "model.lora.r=4"],
        ["trainer.args.generation_batch_size=32", *JUDGE],
        [*EVALUATED, "trainer.args.num_generations_eval=2"],
    ],
    ids=["small", "hub", "ppo", "ppo-lora", "round", "evaluated"],
)
def test_what_is_advised_is_accepted(words: list[str]) -> None:
    """Every suggestion of any phase, typed after the words that it is for."""
    experiment = experiment_of(*words)
    found = {one for phases in PHASES for one in memory_advice(experiment, phases, world_size=1, on_gpu=True)}
    assert len(found) > len(PHASES)
    for advice in found:
        prepare([*ON_ANY, *words, *shlex.split(" ".join(advice.words))], keep_run_names=True)


@pytest.mark.parametrize(
    ("phases", "found"),
    [
        ((LOADING,), [LORA, FSDP2]),
        ((TRAINING, GENERATION), [f"{HALF} steps_per_generation=1", SHORTER, FSDP2]),
        ((TRAINING, REWARDS), [f"{HALF} steps_per_generation=1"]),
        ((TRAINING, ROLLOUT), [HALF, SHORTER, FSDP2]),
        ((TRAINING, LOSS), [HALF, AGAIN, LORA, FSDP2, SHORTER]),
        ((TRAINING, OPTIMIZER), [LORA, EIGHT_BITS, "optim=adafactor", FSDP2]),
        ((EVALUATION,), ["per_device_eval_batch_size=4", FSDP2]),
        ((EVALUATION, LOSS), ["per_device_eval_batch_size=4", HALF, AGAIN, LORA, FSDP2, SHORTER]),
        ((SAVING,), ["save_only_model=true", LORA]),
        ((ENDING,), ["save_only_model=true", LORA]),
        ((), [LORA, FSDP2]),
    ],
)
def test_suggestions_of_a_phase_in_their_order(phases: tuple[str, ...], found: list[str]) -> None:
    """8 rows a micro-batch, one micro-batch a step, groups of 4, answers of 4; an embedded model is never quantised."""
    assert advised("trainer.args.per_device_eval_batch_size=8", phases=phases) == found


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ([f"{SIZE}=6", "trainer.args.gradient_accumulation_steps=10"], [HALF.replace("4", "3").replace("=2", "=20")]),
        ([f"{STEPS}=3"], [f"{HALF} steps_per_generation=6"]),  # else a round would be half of what it was
        ([f"{SIZE}=1", f"{STEPS}=4"], []),
        ([f"{SIZE}=5", f"{STEPS}=4"], []),
    ],
)
def test_the_same_batch_in_twice_as_many_parts(words: list[str], first: list[str]) -> None:
    assert [one for one in advised(*words, phases=(ROLLOUT,)) if "batch_size" in one] == first


@pytest.mark.parametrize(
    ("words", "world_size", "first"),
    [
        ([f"{STEPS}=2"], 1, ["steps_per_generation=1"]),
        ([f"{STEPS}=6"], 1, ["steps_per_generation=3"]),
        (["trainer.args.gradient_accumulation_steps=4"], 1, ["steps_per_generation=2"]),
        ([f"{STEPS}=3"], 1, [f"{HALF} steps_per_generation=3"]),
        ([f"{ROUND}=32"], 1, ["'~generation_batch_size' steps_per_generation=2"]),
        ([f"{ROUND}=24"], 1, []),  # three micro-batches are no whole number of halves
        ([f"{ROUND}=32"], 2, ["'~generation_batch_size' steps_per_generation=1"]),
        ([f"{GROUPS}=8"], 1, []),  # half of 8 completions is no whole group
        ([f"{GROUPS}=8"], 2, [f"{HALF} steps_per_generation=1"]),
        ([f"{SIZE}=5", f"{STEPS}=1", f"{GROUPS}=5"], 1, []),
        ([f"{SIZE}=3", f"{STEPS}=1", f"{GROUPS}=3"], 2, []),
    ],
)
def test_a_round_of_generation_is_halved_and_keeps_whole_groups(
    words: list[str], world_size: int, first: list[str]
) -> None:
    """A process generates all completions of a round at once, in one batch or many micro-batches."""
    found = advised(*words, phases=(GENERATION,), world_size=world_size)
    assert [one for one in found if "max_completion" not in one and "launch" not in one] == first


def test_what_it_is_now_is_said() -> None:
    """2 micro-batches of 8 are 16 completions at once."""
    (first, *_) = memory_advice(experiment_of(f"{STEPS}=2"), (GENERATION,), world_size=1, on_gpu=True)
    assert str(first) == (
        "trainer.args.steps_per_generation=1  "
        "(half as many completions at once; now 16 completions at once in each process)"
    )


@pytest.mark.parametrize(
    ("words", "world_size", "first"),
    [
        (["trainer.args.per_device_eval_batch_size=12"], 1, "num_generations_eval=1"),  # 6 is no group of 4
        (["trainer.args.per_device_eval_batch_size=12"], 2, "per_device_eval_batch_size=6"),
        (["trainer.args.per_device_eval_batch_size=12", "trainer.args.num_generations_eval=3"], 1,
         "per_device_eval_batch_size=6"),
        (["trainer.args.per_device_eval_batch_size=3", "trainer.args.num_generations_eval=1"], 1, FSDP2),
    ],
)  # fmt: skip
def test_an_evaluation_in_smaller_parts(words: list[str], world_size: int, first: str) -> None:
    assert advised(*words, phases=(EVALUATION,), world_size=world_size)[0] == first


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, ["batch_size=8", "dtype=bfloat16", "device=cpu"]),
        ({"rewards": ["judge"]}, ["batch_size=8", "dtype=bfloat16", "device=cpu"]),
        ({"on_gpu": False}, ["batch_size=8"]),
    ],
)
def test_a_reward_model(more: dict[str, object], found: list[str]) -> None:
    advice = advised(*JUDGE, phases=(REWARDS,), **more)  # type: ignore[arg-type]
    assert [one for one in advice if "judge" in one] == [f"rewards.judge.{word}" for word in found]
    small = ("rewards.judge.batch_size=1", "rewards.judge.dtype=bfloat16", "rewards.judge.device=cpu")
    assert not any("judge" in one for one in advised(*JUDGE, *small, phases=(REWARDS,)))
    other = ["rewards.other.model=acme/other", "rewards.other.with_eos=true"]
    of_one = advised(*JUDGE, *other, phases=(REWARDS,), rewards=["other"])
    assert not any(one.startswith("rewards.judge.batch") for one in of_one)


def test_functions_that_ran_go_a_row_at_a_time() -> None:
    """Names of isolated functions, and of components that are not rewards, are skipped."""
    words = ("rewards.format.isolate=true",)
    found = advised(*words, phases=(REWARDS,), rewards=["correct", "format", "truncation"])
    assert [one for one in found if "isolate" in one] == ["rewards.correct.isolate=true"]


def test_vllm_in_the_same_process_is_asked_for_room() -> None:
    assert advised(*VLLM, phases=(LOADING,))[:2] == ["vllm_gpu_memory_utilization=0.4", "vllm_enable_sleep_mode=true"]
    little = [*VLLM[:1], "trainer.args.vllm_gpu_memory_utilization=0.1", "trainer.args.vllm_enable_sleep_mode=true"]
    assert not any("vllm" in one for one in advised(*little, phases=(LOADING,)))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (PPO_SMALL, [AGAIN, f"{LORA} critic.share=lora", LORA, ZERO2, SHORTER]),
        ([*PPO_SMALL, "model.lora.r=4"], [AGAIN, "critic.share=lora", ZERO2, SHORTER]),
        ([*PPO_SMALL, "model.lora.r=4", "critic.share=lora"], [AGAIN, SHORTER]),
        (ON_A_HUB, [AGAIN, LORA, f"{LORA} model.quantize=4bit", FSDP2, SHORTER]),
        ([*ON_A_HUB, "launch.precision=float32", "model.lora.r=4"],
         [AGAIN, "launch.precision=bf16", "model.quantize=4bit", FSDP2, SHORTER]),
        ([*ON_A_HUB, "model.lora.r=4", "model.quantize=4bit"], [AGAIN, ZERO2, SHORTER]),
        ([*ON_A_HUB, FSDP2], [AGAIN, SHORTER]),
        (["trainer.args.gradient_checkpointing=true", "trainer.args.max_completion_length=1"], [LORA, FSDP2]),
    ],
)  # fmt: skip
def test_models_of_a_run_that_learns(words: list[str], found: list[str]) -> None:
    assert [one for one in advised(*words, phases=(LOSS,)) if "train_batch" not in one] == found


def test_the_state_of_an_optimizer() -> None:
    """Sharded it is not replaced; one that is small already neither; a CPU has no bitsandbytes."""
    assert [one for one in advised(phases=(OPTIMIZER,), on_gpu=False) if "optim" in one] == ["optim=adafactor"]
    for words in ([FSDP2], ["trainer.args.optim=adafactor"]):
        assert not any("optim" in one for one in advised(*words, phases=(OPTIMIZER,)))


def test_a_reward_model_that_is_trained_gets_no_adapter_and_shorter_texts() -> None:
    words = ["+exp=toy_reward", "track=none", "trainer.args.max_length=64"]
    experiment = prepare(words, keep_run_names=True).experiment
    found = [" ".join(one.words) for one in memory_advice(experiment, (LOSS,), world_size=1, on_gpu=True)]
    assert "trainer.args.max_length=32" in found
    assert not any("lora" in one for one in found)


def test_on_the_cpu_nothing_of_a_gpu_is_advised() -> None:
    words = [*ON_A_HUB, "launch.precision=float32"]
    for phases in PHASES:
        assert not any("launch" in one or "bit" in one for one in advised(*words, phases=phases, on_gpu=False))


@pytest.mark.parametrize(
    ("words", "part", "typed"),
    [
        ([], "activations", AGAIN),
        (["trainer.args.gradient_checkpointing=true"], "activations", HALF),
        ([], "logits", HALF),
        ([], "KV cache", f"{HALF} steps_per_generation=1"),
        ([], "optimizer", EIGHT_BITS),
        ([], "gradients", LORA),
        ([], "reference", LORA),
        ([], "weights", FSDP2),
        (VLLM, "vLLM", "vllm_gpu_memory_utilization=0.4"),
        (PPO_SMALL, "critic", f"{LORA} critic.share=lora"),
        (JUDGE, "reward models", "rewards.judge.device=cpu"),
        ([], "critic", None),
        ([], "vLLM", None),
    ],
)
def test_the_cheapest_that_lowers_a_part(words: list[str], part: Part, typed: str | None) -> None:
    advice = part_advice(experiment_of(*words), part, world_size=1, on_gpu=True)
    assert (None if advice is None else " ".join(advice.words).replace("trainer.args.", "")) == typed
