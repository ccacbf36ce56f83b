"""The moments of a run's memory: which parts there are, and their sizes by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlhf_cli.plan.devices import Device
from rlhf_cli.plan.memory_estimate import MemoryPlan, Moment, RowLengths, RunMemory, held_bytes
from rlhf_cli.plan.memory_tensors import Decoder
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.tables.passes import PassMode
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.usefixtures("place")
MATRICES, EMBEDDING = 4 * 16 * 16 + 3 * 4 * 16 * 16, 258 * 16
WEIGHTS = 4 * (EMBEDDING + MATRICES)
"""The small model in bytes of float32, without norms: one layer of width 16, an MLP four times as wide, a tied head."""
ADAPTER = 2 * (4 * (16 + 16) + 3 * (16 + 64))
HALVES = {"weights": WEIGHTS // 2, "optimizer": WEIGHTS, "KV cache": 16 * 10 * 8 * 4}
KEPT = "trainer.args.gradient_checkpointing=false"
ONE_LAYER = ("model.build.hidden_size=16", "model.build.num_layers=1")
PROMPT, ANSWER, LONGEST = 6, 4, 10
VLLM = ("launch.rollout=vllm", "trainer.args.vllm_gpu_memory_utilization=0.4", "launch.device=cuda")


def planned(*words: str, completions: int = 8, passes: PassMode = "plain", device: Device | None = None) -> MemoryPlan:
    experiment = prepare([*SMALL, *words], keep_run_names=True).experiment
    return RunMemory(experiment, RowLengths(PROMPT, LONGEST), completions, device or Device(), passes).plan()


def rows_learned(exp: str, *words: str, longest: int = LONGEST, device: Device | None = None) -> MemoryPlan:
    args = ("launch=cpu", "track=none", "trainer.args.per_device_train_batch_size=8", KEPT, *words)
    experiment = prepare([f"+exp={exp}", "model.build.warm_start=null", *args], keep_run_names=True).experiment
    return RunMemory(experiment, RowLengths(PROMPT, longest), 0, device or Device()).plan()


def taught(*words: str, processes: int = 1) -> MemoryPlan:
    typed = ("trainer=gkd", "model=tiny", "data=file", "data.path=x.jsonl", "launch=cpu", "track=none", *words)
    experiment = prepare([*typed], keep_run_names=True).experiment
    return RunMemory(experiment, RowLengths(PROMPT, LONGEST), 0, Device(processes=processes)).plan()


def at(what: str, plan: MemoryPlan) -> Moment:
    return next(moment for moment in plan.moments if moment.what.startswith(what))


def kept(positions: int, *, keys: int = 16, q: int = 16) -> int:
    """What the one layer keeps and the last norm, float32: norms in and out, two inputs, q, k, v, o, four of 64."""
    return positions * 4 * (6 * 16 + 2 * q + 2 * keys + 4 * 64) + positions * 12 * 16


def test_generation_by_hand() -> None:
    """8 rows of 6 + 4 tokens: a key and a value of 16 in one layer, 4 bytes each; Adam's two numbers a weight."""
    moment = at("generating", planned())
    assert (moment.phase, moment.what) == ("generation", "generating 8 completions of 6 + 4 tokens")
    assert moment.parts == {
        "weights": WEIGHTS,
        "optimizer": 2 * WEIGHTS,
        "KV cache": 2 * 16 * 10 * 8 * 4,
        "activations": 8 * 6 * (4 * (3 * 64 + 16) + 8 * 16),
        "logits": 8 * 258 * (4 + 16),
    }


def test_a_policy_in_four_bits_leaves_its_embedding_wide() -> None:
    """4 bits and their scales take 4.127 bits a weight (QLoRA, arXiv 2305.14314, 3); the adapter is in float32."""
    device = Device(on_gpu=True, num_bytes=10**9)
    parts = at("generating", planned("model.lora.r=2", "model.quantize=4bit", device=device)).parts
    assert parts["weights"] == pytest.approx(4.127 / 8 * MATRICES + 4 * (EMBEDDING + ADAPTER), abs=2)


def test_learning_by_hand() -> None:
    """80 positions; every row has a mask of 10 by 10; the head's gradient needs 8.25 tiles and its own."""
    learning = at("learning", planned(KEPT)).parts
    masks = 8 * 10 * 10 * 4
    assert learning == {
        "weights": WEIGHTS,
        "optimizer": 2 * WEIGHTS,
        "activations": kept(80) + masks,
        "logits": 8.25 * 4 * 80 * 258 + 4 * EMBEDDING,
    }
    recomputed = at("learning", planned("trainer.args.gradient_checkpointing=true")).parts
    assert recomputed["activations"] == 80 * 4 * 16 + 80 * 12 * 16
    assert recomputed["logits"] == learning["logits"]


def test_a_layer_computed_anew_by_hand() -> None:
    """That is more than the head where no head is counted: only with gradient checkpointing."""
    plain = at("learning", rows_learned("toy_reward", *ONE_LAYER))
    assert (plain.phase, plain.what) == ("training", "learning from 16 rows of 10 tokens")
    assert plain.parts["weights"] == WEIGHTS + 4 * 16  # a head of one value
    masks = 16 * 10 * 10 * 4
    assert plain.parts["activations"] == kept(160) + masks
    assert "logits" not in plain.parts
    again = at("learning", rows_learned("toy_reward", *ONE_LAYER, "trainer.args.gradient_checkpointing=true"))
    a_pass = 160 * (4 * (3 * 64 + 16) + 8 * 16)  # its gradients take as much as a pass without them
    assert again.parts["activations"] == 160 * 4 * 16 + kept(160) + masks + a_pass
    assert "logits" in at("learning", rows_learned("toy_sft", *ONE_LAYER)).parts
    # DPO holds its reference unless its log-probabilities are computed first
    assert at("learning", rows_learned("toy_dpo", *ONE_LAYER)).parts["reference"] == WEIGHTS
    first = rows_learned("toy_dpo", *ONE_LAYER, "trainer.args.precompute_ref_log_probs=true")
    assert "reference" not in at("learning", first).parts


def test_the_end_of_a_backward_pass_has_all_gradients() -> None:
    """And one layer's activations."""
    parts = at("the end", planned(KEPT)).parts
    assert parts["gradients"] == WEIGHTS
    assert parts["activations"] == kept(80) - 80 * 12 * 16 + 8 * 10 * 10 * 4
    assert parts.keys() == {"weights", "optimizer", "gradients", "activations"}
    assert at("the end", planned("trainer.args.gradient_checkpointing=true")).parts == parts


@pytest.mark.parametrize(
    ("words", "part", "there"),
    [
        ((), "reference", 0),
        (("trainer.args.beta=0.1",), "reference", WEIGHTS),
        (("trainer.args.beta=1",), "reference", WEIGHTS),
        (("trainer.args.beta=0.1", "model.lora.r=2"), "reference", 0),  # the policy without its adapter is one
        (("trainer=rloo",), "reference", WEIGHTS),  # TRL's beta there is 0.05
        ((*PPO_SMALL, "kl.where=none"), "reference", 0),
        (PPO_SMALL, "reference", WEIGHTS),
        *((("model.dtype=bfloat16",), part, size) for part, size in HALVES.items()),
        # rank 2 on the seven matrices of the layer, in + out each, and Adam's two numbers for each of these
        (("model.lora.r=2",), "optimizer", 2 * 4 * ADAPTER),
        (("trainer.args.optim=adafactor",), "optimizer", 0),
        (("trainer.args.optim=adamw_bnb_8bit",), "optimizer", WEIGHTS // 2),
        (("trainer.args.optim=paged_adamw_8bit",), "optimizer", WEIGHTS // 2),
    ],
)
def test_optional_parts(words: tuple[str, ...], part: str, there: int) -> None:
    assert at("generating", planned(*words)).parts.get(part, 0) == there


def test_a_critic_of_its_own_is_a_model_with_its_own_adam() -> None:
    """One more row, its head of one value; float32: weights and two numbers of Adam. The policy's gradients wait."""
    weights = WEIGHTS + 4 * 16
    plan = planned(*PPO_SMALL, KEPT, completions=16)
    assert at("generating", plan).parts["critic"] == 3 * weights
    learning = at("the critic learning", plan)
    assert learning.what == "the critic learning from 8 rows of 10 tokens"
    assert learning.parts["gradients"] == WEIGHTS
    assert learning.parts["activations"] == kept(80) + 8 * 10 * 10 * 4
    assert "logits" not in learning.parts
    assert at("the end", plan).parts["critic"] == 4 * weights
    (judge := Path("critic")).mkdir()
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    stored = {"model_type": "llama", "vocab_size": 258, "dtype": "bfloat16"}  # a critic is in float32 all the same
    (judge / "config.json").write_text(json.dumps(stored | shape))
    other = at("generating", planned(*PPO_SMALL, "critic.init=critic")).parts["critic"]
    assert other == 3 * 4 * (2 * (4 * 64 + 3 * 128) + 259 * 8)
    twice = "trainer.args.gradient_accumulation_steps=2"
    added = planned(*PPO_SMALL, twice, completions=16)
    assert at("the critic learning", added).parts["critic"] == 4 * weights
    assert all("critic" not in moment.parts for moment in planned(twice, completions=16).moments)
    assert "gradients" in at("learning", planned(twice, completions=16)).parts  # those of the first micro-batch
    assert "gradients" not in at("learning", planned()).parts
    assert at("generating", planned(*PPO_SMALL, "model.dtype=bfloat16")).parts["critic"] == 3 * weights / 2
    gpu = Device(on_gpu=True, bf16=True, num_bytes=10**9)
    for words in ((), ("model.quantize=4bit",)):  # neither the adapter nor the four bits are the critic's
        adapted = planned(*PPO_SMALL, "model.lora.r=2", *words, device=gpu)
        assert at("generating", adapted).parts["critic"] == 3 * weights
    as_small = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    (judge / "config.json").write_text(json.dumps(stored | as_small))
    for start in ("policy", "critic"):  # under autocast both take the same
        both = planned(*PPO_SMALL, KEPT, f"critic.init={start}", completions=16, device=gpu)
        ours, policys = (at(what, both).parts["activations"] for what in ("the critic learning", "learning"))
        assert ours == policys


def test_a_critic_on_the_policys_body_keeps_both_passes() -> None:
    words = ("model.lora.r=2", "critic.share=lora", KEPT)
    shared, alone = planned(*PPO_SMALL, *words), planned("model.lora.r=2", KEPT)
    assert "critic" not in at("generating", shared).parts
    assert at("learning", shared).parts["activations"] == 2 * at("learning", alone).parts["activations"]


def test_a_gpu_computes_in_bfloat16() -> None:
    """Float32 weights: copies of the layers' matrices, 2 bytes in the layers, and one tile of the answers' 32 tokens.

    Generation is outside of autocast.
    """
    plan = planned(KEPT, device=Device(on_gpu=True, bf16=True, num_bytes=10**9))
    assert (plan.as_json()["device"], plan.as_json()["device_bytes"]) == ("GPU", 10**9)
    learning = at("learning", plan).parts
    a_token = 4 * 4 * 16 + 2 * 5 * 16 + 2 * (4 * 16 + 4 * 64)
    assert learning["activations"] == 80 * a_token + 8 * 100 * 2 + 80 * 12 * 16 + 2 * MATRICES
    assert learning["logits"] == 2 * 32 * 32768 + 4 * EMBEDDING
    assert at("generating", plan).parts["KV cache"] == 2 * 16 * 10 * 8 * 4


@pytest.mark.parametrize(
    ("words", "completions", "prompts"),
    [
        ((), 8, 2),  # one micro-batch is the whole round: 8 rows of 2 prompts, in any order
        (("trainer.args.gradient_accumulation_steps=4",), 32, 2),  # four micro-batches of one step: sorted by prompt
        (("trainer.args.steps_per_generation=4",), 32, 8),  # TRL shuffles, and a step has a part of the round alone
        (("trainer.args.gradient_accumulation_steps=4", "trainer.args.loss_type=bnpo"), 32, 8),  # rows stay
        (("trainer.args.steps_per_generation=2",), 16, 4),  # and there are no more than the round has
        (PPO_SMALL, 16, 8),
        ((*PPO_SMALL, "trainer.args.num_generations=4"), 16, 2),  # PPO shuffles whole prompts
        ((*PPO_SMALL, "trainer.args.num_generations=4", "trainer.args.shuffle_by=row"), 16, 4),  # all of the round
    ],
)
def test_packed_rows_have_a_prompt_once(words: tuple[str, ...], completions: int, prompts: int) -> None:
    """8 rows a micro-batch, groups of 4. No padding; joined keys, values and outputs; a mask of 4 by 10 a row."""
    positions = prompts * PROMPT + 8 * ANSWER
    parts = at("learning", planned(*words, KEPT, completions=completions, passes="packed")).parts
    expected = kept(positions) + positions * 4 * 16 + 8 * 10 * 2 * 16 * 4 + 8 * 4 * 10 * 4
    assert parts["activations"] == expected
    assert parts["logits"] == 8.25 * 4 * 8 * ANSWER * 258 + 4 * EMBEDDING  # tiles of the answers


def test_unknown_parts_are_listed() -> None:
    """Unknown prompts count as empty; a trainer without TRL's fused head holds all its logits at once."""
    experiment = prepare(SMALL, keep_run_names=True).experiment
    plan = RunMemory(experiment, None, 8, Device()).plan()
    assert at("generating", plan).what == "generating 8 completions of 0 + 4 tokens"
    assert plan.leaves_out == ["prompts of unknown length"]
    rows = prepare(["+exp=toy_sft", "launch=cpu", "track=none", "trainer.args.max_length=null"], keep_run_names=True)
    assert RunMemory(rows.experiment, None, 0, Device()).plan().unknown.startswith("the length of the rows")
    for trainer, name in (("orpo", "ORPOTrainer"), ("cpo", "CPOTrainer")):
        without = rows_learned("toy_dpo", f"trainer={trainer}")
        assert without.leaves_out == [f"the logits of {name}, all in memory at once"]
    for fused in (planned(), rows_learned("toy_sft"), rows_learned("toy_reward")):
        assert fused.leaves_out == []
    unknown = planned("trainer.args.optim=lomo")
    assert unknown.leaves_out == ["the state of the optimizer lomo"]
    assert "optimizer" not in at("generating", unknown).parts
    Path("judge").mkdir()
    Path("judge/config.json").write_text(json.dumps({"model_type": "mamba2", "hidden_size": 64}))
    judged = planned("rewards.judge.model=judge", "rewards.judge.with_eos=true")
    assert judged.leaves_out == ["the reward model judge, of unknown shape"]
    assert taught("teacher.path=judge").leaves_out[0] == "the teacher, of unknown shape"
    grows = planned("model.lora.r=2", "+model.lora.modules_to_save=[lm_head]")
    assert grows.leaves_out == ["model.lora.modules_to_save"]


def bytes_of_state(make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]) -> float:
    """Take a step on a matrix of 64 by 64 float32 weights; return the bytes of state per weight, without counters."""
    weight = torch.nn.Parameter(torch.ones(64, 64))
    weight.grad = torch.ones(64, 64)
    (optimizer := make([weight])).step()
    numbers = [value.numel() for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor)]
    return 4 * sum(number for number in numbers if number > 1) / 64**2


@pytest.mark.parametrize(
    ("optimizers", "make"),
    [
        ("adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adamw_apex_fused", torch.optim.AdamW),
        ("adagrad", torch.optim.Adagrad),
        ("rmsprop", torch.optim.RMSprop),
        ("sgd", torch.optim.SGD),
    ],
)
def test_the_state_of_torchs_optimizers(
    optimizers: str, make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
) -> None:
    for name in optimizers.split():
        assert held_bytes(BILLIONS, name, "ddp", 1).optimizer == BILLIONS.trained_weights * bytes_of_state(make), name
    # Adafactor's sums of rows and columns count as nothing
    assert 0 < bytes_of_state(torch.optim.Adafactor) < 0.05 * bytes_of_state(torch.optim.AdamW)
    assert held_bytes(BILLIONS, "adafactor", "ddp", 1).optimizer == 0


@pytest.mark.parametrize(
    ("optimizers", "moments", "bits"),
    [
        ("adamw_32bit", 2, 32),
        ("lion_32bit", 1, 32),
        ("lion_8bit paged_lion_8bit", 1, 8),
        ("adamw_8bit adamw_bnb_8bit adamw_torch_8bit", 2, 8),
        ("adamw_torch_4bit", 2, 4),
    ],
)
def test_the_state_of_other_optimizers(optimizers: str, moments: int, bits: int) -> None:
    """Adam keeps two moments, Lion one (arXiv 1412.6980, 2302.06675), as wide as the name says, not as the weight."""
    for name in optimizers.split():
        for weight_bytes in (2.0, 4.0):
            model = replace(BILLIONS, weight_bytes=weight_bytes)
            assert held_bytes(model, name, "ddp", 1).optimizer == model.trained_weights * moments * bits / 8, name


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        *((["toy_sft"], 8), (["toy_reward"], 16), (["toy_dpo"], 16), (["toy_dpo", "trainer=orpo"], 16)),
        *((["toy_dpo", "trainer=cpo"], 16), (["toy_dpo", "trainer=tpo"], 24)),  # TPO: arXiv 2405.16681
    ],
)
def test_rows_that_are_learned_from(words: list[str], rows: int) -> None:
    """No generation; a pair is two rows; no row is longer than max_length, and packed rows are as long."""
    for limit, longest, tokens in (("512", 10, 10), ("7", 10, 7), ("7", 0, 7), ("null", 10, 10)):
        plan = rows_learned(*words, f"trainer.args.max_length={limit}", longest=longest)
        assert plan.fullest("generation") is None
        assert at("learning", plan).what == f"learning from {rows} rows of {tokens} tokens"
    unknown = rows_learned(*words, "trainer.args.max_length=null", longest=0).unknown
    assert unknown == "the length of the rows is not known yet"


def test_packed_texts_are_as_long_as_they_may_be_and_have_no_padding() -> None:
    words = (*ONE_LAYER, "trainer.args.max_length=30", "trainer.args.packing=true")
    packed = at("learning", rows_learned("toy_sft", *words))
    assert packed.what == "learning from 8 rows of 30 tokens"
    assert packed.parts["activations"] == kept(8 * 30)
    gpu = Device(on_gpu=True, bf16=True, num_bytes=10**9)  # a tile has all 80 tokens of the rows, and 32768 entries
    learning = at("learning", rows_learned("toy_sft", *ONE_LAYER, device=gpu))
    assert learning.parts["logits"] == 2 * 80 * 32768 + 4 * EMBEDDING


def test_an_evaluation_of_more_rows_than_a_micro_batch() -> None:
    words = ("trainer.args.eval_strategy=steps", "data.eval.fraction=0.2", "trainer.args.per_device_eval_batch_size=12")
    plan = planned(*words)
    assert at("generating", plan).what.startswith("generating 12 completions")
    evaluating = at("evaluating 12 rows at a time", plan).parts
    assert evaluating["activations"] == 120 * (4 * (3 * 64 + 16) + 8 * 16)
    assert evaluating["logits"] == 4 * 4 * 120 * 258
    assert not any(moment.what.startswith("eval") for moment in planned(*words[:2]).moments)  # 8, as in training


def test_vllm_takes_its_share_and_leaves_when_it_sleeps() -> None:
    device = Device(on_gpu=True, bf16=True, num_bytes=10**9)
    plan = planned(*VLLM, "launch.precision=bf16", device=device)
    assert (
        at("generating 8 completions with vLLM", plan).parts["vLLM"] == at("learning", plan).parts["vLLM"] == 4 * 10**8
    )
    assert "KV cache" not in at("generating", plan).parts
    asleep = planned(*VLLM, "launch.precision=bf16", "trainer.args.vllm_enable_sleep_mode=true", device=device)
    assert at("generating", asleep).parts["vLLM"] == 4 * 10**8
    assert "vLLM" not in at("learning", asleep).parts
    assert "vLLM" not in at("generating", planned(device=device)).parts
    whole = planned(*VLLM, "trainer.args.vllm_gpu_memory_utilization=1", device=device)
    assert at("generating", whole).parts["vLLM"] == 10**9
    assert "vLLM" not in at("generating", planned(*VLLM, device=Device(on_gpu=True))).parts  # its size is unknown


def test_reward_models_and_a_teacher_on_the_device(place: Path) -> None:
    """A reward model has a head of one value and the configured dtype. `device: cpu` keeps it off the GPU."""
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    (place / "judge").mkdir()
    config = {"model_type": "llama", "vocab_size": 50, "dtype": "bfloat16", **shape}
    (place / "judge/config.json").write_text(json.dumps(config))
    words = ("rewards.judge.model=judge", "rewards.judge.with_eos=true")
    numbers = 2 * (4 * 64 + 3 * 128) + 51 * 8
    assert at("learning", planned(*words)).parts["reward models"] == 2 * numbers
    assert at("learning", planned(*words, "rewards.judge.dtype=float32")).parts["reward models"] == 4 * numbers
    on_cpu, gpu = (*words, "rewards.judge.device=cpu"), Device(on_gpu=True)
    assert at("learning", planned(*on_cpu)).parts["reward models"] == 2 * numbers
    assert "reward models" not in at("learning", planned(*on_cpu, device=gpu)).parts
    assert at("learning", planned(*words, device=gpu)).parts["reward models"] == 2 * numbers
    numbers += 49 * 8  # a teacher has a head of 50 words
    assert at("learning", taught("teacher.path=judge", "teacher.dtype=float32")).parts["teacher"] == 4 * numbers
    shards = taught("teacher.path=judge", "launch.strategy=zero3", processes=4)
    assert at("learning", shards).parts["teacher"] == 2 * numbers / 4


BILLIONS = Decoder("llama", 100, 1, 100, 100, 1, 10_000_000, ties_head=True)


@pytest.mark.parametrize(
    ("strategy", "gigabytes"), [("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)], ids=["P_os", "P_os+g", "P_os+g+p"]
)
def test_figure_1_of_zero(strategy: str, gigabytes: float) -> None:
    """Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5 thousand million parameters on 64 devices, Adam in mixed
    precision: 120 GB where each holds everything, and so much by stage.
    """
    model = replace(BILLIONS, weight_bytes=2.0, autocast=True)
    assert model.casts is False  # autocast copies only what is wider
    assert replace(BILLIONS, autocast=True).casts
    found = held_bytes(model, "adamw_torch", strategy, 64)
    size = (found.weights + found.gradients + found.optimizer) / model.trained_weights * 7.5
    assert size == pytest.approx(gigabytes, abs=0.05)
    assert found.buckets == 0


@pytest.mark.parametrize(
    ("strategy", "weight", "autocast", "held"),
    [
        ("ddp", 4.0, False, (4, 4, 8, 4)),  # ZeRO's section 3.1; DDP keeps a copy of the gradients
        ("ddp", 2.0, True, (2, 2, 4, 2)),
        ("zero1", 4.0, False, (4, 4, (8 + 4) / 4, 0)),
        ("zero2", 4.0, True, (2, 2 / 4, (8 + 4) / 4, 0)),
        ("zero3", 4.0, False, (1, 1, (8 + 4) / 4, 0)),
        ("fsdp2", 4.0, True, (1, 1, 2, 0)),
        ("fsdp2", 2.0, True, (1, 1, 2, 0)),  # accelerate upcasts what is trained
        ("fsdp2", 2.0, False, (2 / 4, 2 / 4, 1, 0)),
    ],
)
def test_bytes_a_weight_in_each_of_four_processes(
    strategy: str, weight: float, autocast: bool, held: tuple[float, ...]
) -> None:
    model = replace(BILLIONS, weight_bytes=weight, autocast=autocast)
    found = held_bytes(model, "adamw_torch", strategy, 4)
    number = model.trained_weights
    assert (found.weights, found.gradients, found.optimizer, found.buckets) == tuple(number * each for each in held)
    offloaded = held_bytes(model, "adamw_torch", strategy, 4, offload=True)
    assert offloaded.optimizer == 0
    assert offloaded.weights == (0 if strategy in ("zero3", "fsdp2") else number * held[0])
    assert held_bytes(model, "adamw_torch", strategy, 1).buckets == 0
    ddp = held_bytes(model, "adamw_torch", "ddp", 2)
    assert ddp.buckets == ddp.gradients > 0


def test_shards_of_a_run() -> None:
    """Four processes: a fourth of the weights, and two layers at a time that are gathered; a whole critic each."""
    shards = planned("launch.strategy=zero3", "trainer.args.beta=0.1", device=Device(processes=4))
    gathered = 2 * 4 * MATRICES
    assert at("the end", shards).parts["weights"] == WEIGHTS / 4 + gathered
    assert at("the end", shards).parts["reference"] == WEIGHTS / 4
    assert at("the end", shards).parts["gradients"] == WEIGHTS / 4
    assert at("generating", shards).parts["weights"] == WEIGHTS + gathered  # TRL gathers all to generate
    deeper = planned("launch.strategy=zero3", "model.build.num_layers=4", device=Device(processes=4))
    assert at("the end", deeper).parts["weights"] == 4 * (EMBEDDING + 4 * MATRICES) / 4 + gathered
    offloaded = planned("launch.strategy=zero3", "launch.offload=true", device=Device(processes=4))
    assert "optimizer" not in at("the end", offloaded).parts
    alone = planned("launch.strategy=fsdp2", device=Device(processes=4))
    assert at("generating", alone).parts["weights"] == WEIGHTS / 4 + gathered
    ddp = at("the end", planned(*PPO_SMALL, device=Device(processes=4))).parts
    assert ddp["gradients"] == 2 * WEIGHTS
    assert ddp["critic"] == 5 * (WEIGHTS + 4 * 16)
    assert ddp["weights"] == WEIGHTS


def test_the_peak_is_one_moment_and_never_a_sum() -> None:
    plan = planned()
    generation, training = plan.fullest("generation"), plan.fullest("training")
    assert generation is not None
    assert training is not None
    assert plan.fullest() is not None
    assert plan.fullest().total == max(moment.total for moment in plan.moments) == max(generation.total, training.total)
    shown = json.loads(json.dumps(plan.as_json()))
    assert shown["peak_bytes"] == plan.fullest().total
    assert shown["fullest"]["training"]["total_bytes"] == sum(training.parts.values())
    assert shown["fullest"]["training"]["parts_bytes"].keys() == {part.replace(" ", "_") for part in training.parts}
    assert "KV_cache" in shown["fullest"]["generation"]["parts_bytes"]
    assert [moment["what"] for moment in shown["moments"]] == [moment.what for moment in plan.moments]
    assert (shown["unknown"], shown["device"]) == (None, "CPU")


def test_a_run_that_does_not_fit_says_so() -> None:
    peak = max(moment.total for moment in planned().moments)
    for num_bytes, fits in ((peak - 1, False), (peak, True), (None, True)):
        plan = planned(device=Device(num_bytes=num_bytes))
        assert (plan.too_large is None) == fits
    assert MemoryPlan(Device(num_bytes=1)).too_large is None


def test_an_unknown_architecture_is_said_and_not_guessed(place: Path) -> None:
    (place / "there").mkdir()
    (place / "there/config.json").write_text(json.dumps({"model_type": "mamba2", "hidden_size": 64}))
    plan = planned("model.build=null", "model.path=there", device=Device(on_gpu=True, num_bytes=7))
    assert (plan.moments, plan.unknown, plan.device.kind, plan.device.num_bytes) == ((), "model_type mamba2", "GPU", 7)
    assert plan.as_json()["peak_bytes"] is None
    assert plan.fullest() is None
    assert "nobodys/model" in planned("model.build=null", "model.path=nobodys/model").unknown
