"""The moments of a run's memory, of experiments as they are typed: which parts are there, and how large by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.plan.memory.estimate import MemoryPlan, Moment, Part, Phase, memory_plan
from rlhf_cli.plan.memory.models_of_run import Lengths, run_load
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.usefixtures("place")
WEIGHTS = 4 * (258 * 16 + 4 * 16 * 16 + 3 * 4 * 16 * 16 + 3 * 16)
"""The small model in bytes of float32, as tests/plan/test_checkpoint_space.py has it."""
PLAIN = "trainer.args.gradient_checkpointing=false"
ROUND = 8
"""Completions of a round of SMALL: 8 rows a device, one micro-batch."""


def planned(
    *words: str,
    prompt: int = 6,
    row: int = 10,
    completions: int = ROUND,
    on_gpu: bool = False,
    processes: int = 1,
    device_bytes: int | None = None,
) -> MemoryPlan:
    experiment = prepare([*SMALL, *words], keep_run_names=True).experiment
    load = run_load(experiment, Lengths(prompt, row), completions)
    return memory_plan(experiment, load, processes=processes, on_gpu=on_gpu, bf16=on_gpu, device_bytes=device_bytes)


def fullest(phase: Phase, *words: str, **sizes: int) -> Moment:
    moment = planned(*words, **sizes).fullest(phase)  # type: ignore[arg-type]
    assert moment is not None
    return moment


def at(what: str, plan: MemoryPlan) -> Moment:
    return next(moment for moment in plan.moments if moment.what.startswith(what))


def test_generation_by_hand() -> None:
    """8 rows of 6 + 4 tokens: a key and a value of 16 in one layer, 4 bytes each; Adam's two numbers a weight."""
    parts = at("generating", planned()).parts
    assert parts["KV cache"] == 2 * 1 * 16 * (6 + 4) * 8 * 4
    assert (parts["weights"], parts["optimizer"]) == (WEIGHTS, 2 * WEIGHTS)
    assert "gradients" not in parts  # they are let go of after every step


def test_the_end_of_a_backward_pass_has_all_gradients() -> None:
    """And the embedding's once more (258 x 16 numbers), which is added to the head's."""
    parts = at("the end", planned()).parts
    assert parts["gradients"] == WEIGHTS + 4 * 258 * 16
    assert "KV cache" not in parts


def test_gradients_wait_where_they_are_added_up() -> None:
    assert "gradients" not in at("learning", planned()).parts
    assert at("learning", planned("trainer.args.gradient_accumulation_steps=2")).parts["gradients"] == WEIGHTS


@pytest.mark.parametrize(
    ("words", "part", "there"),
    [
        ((), "reference", 0),
        (("trainer.args.beta=0.1",), "reference", WEIGHTS),
        (("trainer.args.beta=0.1", "model.lora.r=2"), "reference", 0),  # the policy without its adapter is one
        (("trainer=rloo",), "reference", WEIGHTS),  # TRL's beta there is 0.05
        ((*PPO_SMALL, "kl.where=none"), "reference", 0),
        (PPO_SMALL, "reference", WEIGHTS),
        (("trainer.args.optim=adafactor",), "optimizer", 0),
        (("trainer.args.optim=adamw_bnb_8bit",), "optimizer", WEIGHTS // 2),
    ],
)
def test_a_part_is_there_where_it_is_used(words: tuple[str, ...], part: Part, there: int) -> None:
    assert at("generating", planned(*words)).parts.get(part, 0) == there


def test_a_critic_of_its_own_is_a_model_with_its_own_adam() -> None:
    """Its head is (16 + no bias) in place of none, as the small model's head is its embedding; float32: 3 x 4 bytes."""
    critic = at("generating", planned(*PPO_SMALL)).parts["critic"]
    assert critic == 3 * (WEIGHTS + 4 * 16)
    done = at("the critic learning", planned(*PPO_SMALL)).parts
    assert done["gradients"] == WEIGHTS  # the policy's wait for the critic's pass
    shared = planned(*PPO_SMALL, "model.lora.r=2", "critic.share=lora", PLAIN)
    assert "critic" not in at("generating", shared).parts


def test_an_adapter_trains_little_and_keeps_the_weights() -> None:
    """r=2 on q, k, v, o (16+16) and gate, up, down (16+64): 2 * (4*32 + 3*80) numbers."""
    adapter = 4 * 2 * (4 * 32 + 3 * 80)
    parts = at("the end", planned("model.lora.r=2")).parts
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (WEIGHTS + adapter, adapter, 2 * adapter)


def test_what_lowers_it_does() -> None:
    """Half a micro-batch, checkpointing in a deep model, half of the answer: each takes something away."""
    deep = ("model.build.num_layers=6", PLAIN, "trainer.args.max_completion_length=64")
    before = fullest("training", *deep).total
    for word in (
        "trainer.args.gradient_checkpointing=true",
        "trainer.args.max_completion_length=32",
        "trainer.args.per_device_train_batch_size=4",
    ):
        assert fullest("training", *deep, word).total < before, word
    assert fullest("generation", completions=16).total > fullest("generation", completions=8).total


def test_shards_of_four() -> None:
    """ZeRO-3 in float32: a copy for its optimizer besides; every process has a fourth of it all (arXiv 1910.02054)."""
    alone = at("the end", planned()).parts
    shard = at("the end", planned("launch.strategy=zero3", processes=4)).parts
    assert shard["optimizer"] == pytest.approx((2 + 1) * WEIGHTS / 4, abs=1)
    assert shard["gradients"] < alone["gradients"]
    ddp = at("the end", planned(processes=4)).parts
    assert ddp["gradients"] == alone["gradients"] + WEIGHTS  # the buckets that DDP exchanges them in


@pytest.mark.parametrize(("exp", "rows"), [("toy_sft", 8), ("toy_dpo", 16), ("toy_reward", 16)])
def test_rows_that_are_learned_from(exp: str, rows: int) -> None:
    """No generation; a pair is two rows; no row is longer than max_length."""
    for words, tokens in (((), 10), (("trainer.args.max_length=7",), 7)):
        args = ("launch=cpu", "track=none", "trainer.args.per_device_train_batch_size=8", *words)
        experiment = prepare([f"+exp={exp}", *args], keep_run_names=True).experiment
        load = run_load(experiment, Lengths(6, 10), 0)
        plan = memory_plan(experiment, load, processes=1, on_gpu=False, bf16=False)
        assert plan.fullest("generation") is None
        assert at("learning", plan).what == f"learning from {rows} rows of {tokens} tokens"


def test_a_gpu_computes_in_bfloat16_and_has_one_buffer_of_tiles() -> None:
    """TRL's buffer has 32768 columns whatever the vocabulary is: 8 rows of 4 tokens, in 2 bytes."""
    logits = at("learning", planned(on_gpu=True)).parts["logits"]
    hidden, head = 8 * 4 * 16 * 4, 258 * 16 * 4
    assert logits == 8 * 4 * 32768 * 2 + 2 * 258 * 16 + hidden + head


def test_vllm_takes_its_share_and_leaves_when_it_sleeps() -> None:
    words = ("launch.rollout=vllm", "trainer.args.vllm_gpu_memory_utilization=0.4")
    words = (*words, "launch.device=cuda", "launch.precision=bf16")
    plan = planned(*words, on_gpu=True, device_bytes=10**9)
    assert at("generating", plan).parts["vLLM"] == at("learning", plan).parts["vLLM"] == 4 * 10**8
    asleep = planned(*words, "trainer.args.vllm_enable_sleep_mode=true", on_gpu=True, device_bytes=10**9)
    assert "vLLM" not in at("learning", asleep).parts


def test_the_peak_is_one_moment_and_never_a_sum() -> None:
    plan = planned()
    generation, training = plan.fullest("generation"), plan.fullest("training")
    assert generation is not None
    assert training is not None
    assert plan.peak is not None
    assert plan.peak.total == max(generation.total, training.total)
    shown = json.loads(json.dumps(plan.as_json()))
    assert shown["peak_bytes"] == plan.peak.total
    assert sum(shown["fullest"]["training"]["parts_bytes"].values()) == shown["fullest"]["training"]["total_bytes"]
    assert "KV_cache" in shown["fullest"]["generation"]["parts_bytes"]


def test_an_unknown_architecture_is_said_and_not_guessed(place: Path) -> None:
    (place / "there").mkdir()
    (place / "there/config.json").write_text(json.dumps({"model_type": "mamba2", "hidden_size": 64}))
    plan = planned("model.build=null", "model.path=there")
    assert (plan.moments, plan.unknown) == ((), "model_type mamba2")
    assert plan.as_json()["peak_bytes"] is None
    assert "nobodys/model" in planned("model.build=null", "model.path=nobodys/model").unknown


def test_what_is_not_counted_is_named() -> None:
    plan = planned(
        "rewards.judge.model=nobodys/judge", "rewards.judge.with_eos=true", "trainer.args.optim=galore_adamw"
    )
    assert [text.split(",")[0] for text in plan.leaves_out] == [
        "the reward model judge",
        "the state of the optimizer galore_adamw",
    ]


@pytest.mark.parametrize(
    ("words", "is_passed"),
    [
        ((), False),  # nobody asks for log-probabilities of the rollout before it is learned from
        (("trainer.args.beta=0.1",), True),
        (("trainer.args.num_iterations=2",), True),
        (PPO_SMALL, True),
    ],
)
def test_passes_without_a_gradient_are_moments_of_generation(words: tuple[str, ...], is_passed: bool) -> None:
    moments = [one for one in planned(*words).moments if one.what.startswith("log-probabilities of 8 completions")]
    assert len(moments) == is_passed
    assert all({"activations", "logits"} <= moment.parts.keys() for moment in moments)
