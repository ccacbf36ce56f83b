"""Values of packed rows, and in float64 the gradients they leave, against every row by itself; both arrangements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForTokenClassification,
    NemotronConfig,
    NemotronForCausalLM,
    Qwen2Config,
)
from transformers import Qwen2ForTokenClassification as Qwen2Critic

from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.models.packing.row_attention import register
from rlhf_cli.models.weight_shapes import TINY_VOCABULARY
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.trainers.forward_pass import model_rows
from rlhf_cli.trainers.ppo.critic import CriticSettings, TrainedCritic, prompts_and_completions
from rlhf_cli.trainers.ppo.lora_critic import SharedLoraCritic
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from rlhf_cli.trainers.step_profile import counted_slots
from tests.support.float64 import in_float64, no_float32
from tests.support.ppo_by_hand import plain, stir, unpadded, values_of
from tests.support.tolerances import FLOAT32, assert_close, assert_equal, distance
from tests.support.watched_critic import Watched

pytestmark = pytest.mark.whole

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
TOKENS = {"vocab_size": 50, "pad_token_id": 0, "eos_token_id": 1, "num_labels": 1}
SETTINGS = CriticSettings(learning_rate=1e-3, warmup_steps=0, value_clip=None, loss_coef=0.5, max_grad_norm=1.0)
WIDTH = 5


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


@pytest.fixture
def double() -> Iterator[None]:
    """A critic's head is in float32 by promise; here it is not, so that rounding hides nothing."""
    with no_float32():
        yield


def critic_of(arrangement: str, dtype: torch.dtype) -> TrainedCritic:
    """A critic of random weights, whose norms compute in float64, too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        critic: TrainedCritic
        if arrangement == "separate":
            critic = TrainedCritic(LlamaForTokenClassification(LlamaConfig(**SIZES, **TOKENS)), SETTINGS)
        elif arrangement == "qwen2":
            critic = TrainedCritic(Qwen2Critic(Qwen2Config(**SIZES, **TOKENS)), SETTINGS)
        else:
            policy = get_peft_model(LlamaForCausalLM(LlamaConfig(**SIZES, **TOKENS)), LoraConfig(r=2))
            critic = SharedLoraCritic(policy, SETTINGS, dropout=0.0)
        in_float64(critic.model).to(dtype).eval()
        for weight in critic.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    return critic


def test_a_shared_critic_has_the_shape_of_the_policys_adapter(tmp_path: Path) -> None:
    shape = {"r": 2, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1], "rank_pattern": {"v_proj": 3}}
    config = LoraConfig(use_dora=True, revision="v1", **shape)
    policy = get_peft_model(LlamaForCausalLM(LlamaConfig(**SIZES, **TOKENS)), config)
    adapter = {name: weight.shape for name, weight in policy.named_parameters() if weight.requires_grad}
    critic = SharedLoraCritic(policy, SETTINGS, dropout=0.0)
    copy = {name: weight.shape for name, weight in policy.named_parameters() if ".critic." in name}
    assert copy == {name.replace(".default.", ".critic."): size for name, size in adapter.items()}
    with critic.hidden_from_policy():
        assert {name for name, weight in policy.named_parameters() if weight.requires_grad} == adapter.keys()
    assert all(weight.requires_grad for weight in critic.parameters())
    critic.save(tmp_path)
    assert read_json(tmp_path / "adapter_config.json")["revision"] == "v1"


def test_a_shared_critic_s_head_computes_in_float32_whatever_is_around() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = critic_of("shared", torch.float32).values(rows())  # type: ignore[arg-type]
    assert values.dtype == torch.float32


def rows() -> dict[str, torch.Tensor]:
    """Four prompts, two equal and two with a common beginning; completions of 5, 2, 0 and 3 tokens."""
    prompts = torch.tensor([[3, 4, 5, 6], [3, 4, 5, 6], [0, 0, 0, 7], [0, 3, 4, 9]])
    completions = torch.tensor([[10, 11, 12, 13, 14], [15, 16, 0, 0, 0], [0] * 5, [17, 18, 19, 0, 0]])
    ids = {"prompt_ids": prompts, "completion_ids": completions}
    return ids | {"prompt_mask": (prompts > 0).long(), "completion_mask": (completions > 0).long()}


def alone(critic: TrainedCritic, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(4, 6): each row through the model without a token of padding; before every completion token and after it."""
    found = []
    for row in range(4):
        ids = torch.cat(
            [batch[f"{part}_ids"][row][batch[f"{part}_mask"][row].bool()] for part in ("prompt", "completion")]
        )
        values = critic._every_value({"input_ids": ids.unsqueeze(0)})[0]
        own = values[int(batch["prompt_mask"][row].sum()) - 1 :]
        found.append(torch.nn.functional.pad(own, (0, WIDTH + 1 - len(own))))
    return torch.stack(found)


ARRANGEMENTS = pytest.mark.parametrize("arrangement", ["separate", "qwen2", "shared"])


@pytest.mark.usefixtures("double")
@ARRANGEMENTS
def test_values_of_the_rollout(arrangement: str) -> None:
    critic, batch = critic_of(arrangement, torch.float64), rows()
    ids, mask = (torch.cat([batch[f"prompt_{part}"], batch[f"completion_{part}"]], dim=1) for part in ("ids", "mask"))
    with torch.no_grad():
        wanted = alone(critic, batch)
    for batch_size in (1, 3, 4):
        found = critic.rollout_values(ids, mask, WIDTH, batch_size, is_packed=True)
        assert_equal(found, wanted)
    assert wanted[0].unique().numel() == WIDTH + 1
    states = [critic.states(ids, mask, WIDTH, is_packed=way) for way in (True, False)]
    assert_equal(*states)
    assert_close(states[0].square().mean(dim=1), torch.ones(len(states[0])))


@pytest.mark.parametrize(("is_packed", "slots"), [(True, (3 + 2) + (6 + 3 + 1 + 4)), (False, 4 * (4 + WIDTH))])
def test_the_slots_of_a_pass(*, is_packed: bool, slots: int) -> None:
    """Packed are different prompts without their last token, and a row's own part with it; else every row is as long
    as the longest. Either way 12 tokens of prompts and 10 of completions count. The policy does not read the last token
    of an answer.
    """
    critic, batch = critic_of("separate", torch.float32), rows()
    with counted_slots() as counted:
        critic.values(batch, is_packed=is_packed)  # type: ignore[arg-type]
        assert counted.taken() == (slots, 22)
        model_rows(*prompts_and_completions(batch), is_packed=is_packed, may_move=True)
        assert counted.taken() == (slots - 3 * is_packed, 22)


@pytest.mark.usefixtures("double")
@ARRANGEMENTS
def test_values_with_a_gradient(arrangement: str) -> None:
    batch = rows()
    weights = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gradients = []
    for is_packed in (True, False):
        critic = critic_of(arrangement, torch.float64)
        if is_packed:
            values = critic.values(batch, is_packed=True)  # type: ignore[arg-type]
            (values * weights * batch["completion_mask"]).sum().backward()
        else:
            (alone(critic, batch)[:, :-1] * weights * batch["completion_mask"]).sum().backward()
        gradients.append([weight.grad for weight in critic.parameters()])
    assert len(gradients[0]) >= 10
    for ours, wanted in zip(*gradients, strict=True):
        assert_equal(ours, wanted)
    assert all(bool(wanted.any()) for wanted in gradients[1])


def test_a_token_beyond_the_critics_vocabulary_is_read_as_its_last() -> None:
    """A policy whose vocabulary is padded farther may sample what no text is made of; it is no reason to crash."""
    critic, batch = critic_of("separate", torch.float32), rows()
    batch["completion_ids"][0, 2] = TOKENS["vocab_size"] + 3
    beyond = critic.values(batch)  # type: ignore[arg-type]
    batch["completion_ids"][0, 2] = TOKENS["vocab_size"] - 1
    assert torch.equal(beyond, critic.values(batch))  # type: ignore[arg-type]
    batch["completion_ids"][0, 2] = TOKENS["vocab_size"] - 2
    assert not torch.equal(beyond, critic.values(batch))  # type: ignore[arg-type]


OF_THE_CRITIC = "trimmed: packed, the critic's states were "


def nemotron(folder: Path) -> Path:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": TINY_VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    NemotronForCausalLM(NemotronConfig(**shape, **tokens, num_key_value_heads=2)).save_pretrained(folder)
    return folder


def farthest(seen: Watched) -> float:
    """How far the run's values are from transformers' own of every row alone."""
    critic, batch = plain(seen.critic.model, AutoModelForTokenClassification), seen.inputs[-1]
    is_packed = seen.trainer._packs_values(batch)
    with torch.no_grad():
        found = seen.critic.values(batch, is_packed=is_packed)
        pairs = [
            (found[row, : len(completion)].double(), values_of(critic, prompt, completion)[:-1])
            for row, (prompt, completion) in enumerate(unpadded(batch))
        ]
    ours, expected = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return distance(ours, expected)


def stirred(seen: Watched) -> None:
    """Its attention matters then; its head stays at 0, so that at first all values are alike, packed and not."""
    stir(seen.critic.body(), 0.3, seed=2)


def test_without_the_trial_its_values_are_wrong(
    watch: Callable[..., Watched], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control, and what a run had for values before critics were tried."""
    monkeypatch.setattr(PpoMixin, "_has_tried_critic", True)
    laid_out, packed = TrainedCritic._laid_out, list[bool]()

    def noting(critic: TrainedCritic, *given: Any, is_packed: bool) -> Any:
        packed.append(is_packed)
        return laid_out(critic, *given, is_packed=is_packed)

    monkeypatch.setattr(TrainedCritic, "_laid_out", noting)
    seen = watch(f"critic.init={nemotron(workplace / 'nemotron')}", "critic.learning_rate=0.01", on=stirred)
    assert seen.trainer.passes.describe() == "packed"
    assert set(packed) == {True}  # in the rollout and in the update
    assert farthest(seen) > 0.1


POLICY = ("model.build=null", "model.path=./nemotron")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("critic.init=./nemotron",), OF_THE_CRITIC),
        ((*POLICY, "kl.where=none", "trainer.args.steps_per_generation=1"), OF_THE_CRITIC),
        ((*POLICY, "kl.coef=0.1"), "trimmed: packed, its log-probabilities were "),
    ],
    ids=["critic alone", "critic first", "policy first"],
)
def test_both_fall_back_where_one_does(
    watch: Callable[..., Watched], workplace: Path, words: tuple[str, ...], said: str
) -> None:
    """If packing fails for policy or critic, both use trimmed rows, whichever is tried first."""
    byte_tokenizer(context_tokens=64).save_pretrained(str(nemotron(workplace / "nemotron")))
    seen = watch("critic.learning_rate=0.01", *words, on=stirred)
    assert seen.trainer.passes.describe().startswith(said)
    assert read_json(seen.folder.provenance)["passes"] == seen.trainer.passes.describe()
    assert farthest(seen) < FLOAT32
