"""The mode that is chosen for a model's rows, by its configuration and by a trial, and its description."""

from __future__ import annotations

import contextlib
import copy
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import Tensor
from transformers import (
    DogeConfig,
    DogeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rlhf_cli.errors import ModelError
from rlhf_cli.models.packing.row_attention import why_not_packed
from rlhf_cli.tables.passes import Passes
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.pass_mixin import PassMixin, _put_together, chosen_passes, tried_rows
from tests.support.reference_varlen import ReferenceVarlen, stand_in
from tests.support.tolerances import EXACT, FLOAT32, distance
from tests.trainers.passes.same_rollouts import policy, trained

SHAPE: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}
GPT2_SHAPE = GPT2Config(n_layer=1, n_embd=8, n_head=2)
WINDOWS = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}


def eager() -> Any:
    model = policy()
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (policy, None),
        (lambda: get_peft_model(policy(), LoraConfig(target_modules=["q_proj"])), None),
        (lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, **WINDOWS)), "it has layers of sliding_attention"),
        (lambda: GPT2LMHeadModel(GPT2_SHAPE), "its positions are learned, not rotary"),
        (eager, "its attention is eager; packed are sdpa"),
        (
            lambda: get_peft_model(policy(), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")),
            "the adapter puts virtual tokens before every prompt",
        ),
    ],
)
def test_what_a_loaded_model_is_refused_for(model: Any, why: str | None) -> None:
    assert why_not_packed(model()) == why


FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0, "original_max_position_embeddings": 8}
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 8},
    "llama3": {"factor": 4.0, "original_max_position_embeddings": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": FACTORS,
}


@pytest.mark.parametrize("kind", ROPES)
def test_a_row_whose_numbers_depend_on_its_company_is_not_packed(kind: str) -> None:
    """By transformers: the states of a row of five tokens, alone and beside one of twenty, where eight were trained."""
    model = policy(rope_parameters={"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]}, max_position_embeddings=8)
    ids, mask = torch.randint(2, 64, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    mask[0, 5:] = 0
    with torch.no_grad():
        alone = model.model(input_ids=ids[:1, :5], use_cache=False).last_hidden_state[0]
        beside = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[0, :5]
    depends = bool((alone - beside).abs().max() > 1e-3)
    assert depends == (kind in ("dynamic", "longrope"))
    why = f"its rotary embeddings ({kind}) change with the longest row"
    assert why_not_packed(model) == (why if depends else None)


def one_layer_drops() -> Any:
    model = policy()
    model.model.layers[0].self_attn.attention_dropout = 0.1
    return model


def accelerator_of(**changed: Any) -> Any:
    given: dict[str, Any] = {"device": torch.device("cpu"), "mixed_precision": "no", "gather": lambda one: one}
    given |= {"unwrap_model": lambda model: model, "autocast": contextlib.nullcontext}
    return SimpleNamespace(**given | changed)


def trainer_of(**changed: Any) -> Any:
    given: dict[str, Any] = {"model": policy(), "ref_model": None, "aux_loss_enabled": False}
    given |= {"accelerator": accelerator_of(), "args": SimpleNamespace(torch_compile=False)}
    return SimpleNamespace(**given | changed)


def test_rows_are_not_packed_on_a_gpu_without_a_kernel_for_all_rows_at_once() -> None:
    """A call of attention per row and layer is slower than padding there; who asks for packed rows gets them."""
    assert chosen_passes(trainer_of(), "auto") == Passes("packed")
    on_gpu = accelerator_of(device=torch.device("cuda"))
    found = chosen_passes(trainer_of(accelerator=on_gpu), "auto")
    assert found.describe() == "trimmed: packed, each row would attend by itself: it is computed in float32"
    assert chosen_passes(trainer_of(accelerator=on_gpu), "packed") == Passes("packed")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"critic": GPT2Model(GPT2_SHAPE)}, "trimmed: the critic: its positions are learned, not rotary"),
        (
            {"critic": policy(attention_dropout=0.1)},
            "trimmed: the critic: it drops at random in training, each row for itself",
        ),
        ({"ref_model": eager()}, "trimmed: its attention is eager; packed are sdpa"),
        ({"model": one_layer_drops()}, "trimmed: it drops at random in training, each row for itself"),
        ({"args": SimpleNamespace(torch_compile=True)}, "trimmed: it is compiled for rows of one shape"),
        ({"aux_loss_enabled": True}, "plain: the loss of the experts' balance counts padding"),
    ],
)
def test_what_keeps_a_trainer_from_it_is_said(changed: dict[str, Any], said: str) -> None:
    changed = dict(changed)
    critic = changed.pop("critic", None)
    assert chosen_passes(trainer_of(**changed), "auto", critic).describe() == said
    with pytest.raises(ModelError, match="rows cannot be packed") as caught:
        chosen_passes(trainer_of(**changed), "packed", critic)
    assert caught.value.where == "trainer.passes"
    assert said.partition(": ")[2] in str(caught.value)


def test_a_model_with_a_mask_of_its_own_goes_trimmed(tmp_path: Path) -> None:
    """Doge adds a learned bias to the mask. With small weights too little changes for the log-probabilities to tell."""
    torch.manual_seed(0)
    doge = DogeForCausalLM(DogeConfig(**SHAPE, pad_token_id=0, eos_token_id=1, initializer_range=0.02))
    alone = {"router_aux_loss_coef": 0.0}  # it is written as a mixture of experts, and has none here
    expected, _ = trained(tmp_path / "trl", None, model=copy.deepcopy(doge), **alone)
    found, ours = trained(tmp_path / "ours", "auto", model=doge, **alone)
    assert ours.passes.mode == "trimmed"
    assert "own attention mask (float32 (1, 4, " in ours.passes.why
    assert distance(found[0], expected[0]) < FLOAT32


# The trial on three rows in the first pass: on failure packing is switched off.


pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")
"""TRL switches checkpointing off by names that transformers no longer likes."""

IN_FLOAT64: dict[str, Any] = {"dtype": torch.float64}
PLAIN = torch.full((12,), -2.0)


def trying(**changed: Any) -> Any:
    trainer = object.__new__(type("Tries", (PassMixin,), {}))
    given = {"passes": Passes("packed"), "model": policy(), "accelerator": accelerator_of(**changed)}
    vars(trainer).update(given)
    return trainer


@pytest.mark.parametrize(
    ("off", "precision", "dtype", "mode"),
    [
        (0.02, "bf16", torch.float32, "packed"),
        (0.02, "no", torch.bfloat16, "packed"),  # as `model.dtype=bfloat16` has it
        (0.02, "no", torch.float32, "trimmed"),
        (0.2, "bf16", torch.float32, "trimmed"),
        (1e-4, "no", torch.float32, "packed"),
    ],
)
def test_how_far_off_is_another_result(off: float, precision: str, dtype: torch.dtype, mode: str) -> None:
    """A hundredth is bfloat16's rounding of a logit, and no float32 is off by as much."""
    trainer = trying(mixed_precision=precision)
    trainer.model.to(dtype)
    trainer._try(trainer.model, "its log-probabilities", lambda: PLAIN, lambda: PLAIN - off)
    assert trainer.passes.mode == mode


def test_what_another_rank_saw_counts_here() -> None:
    """A pass raised on the other rank: both ranks trim."""
    trainer = trying(gather=lambda one: torch.cat([one, torch.tensor([torch.inf])]))
    trainer._try(trainer.model, "its log-probabilities", lambda: PLAIN, lambda: PLAIN)
    assert trainer.passes.describe() == "trimmed: packed, a pass raised on another rank"


class GivesLogps:
    """Stands for TRL's trainer: tokens have a log-probability of -2, the last of a row 0, and padding 0."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Tensor, mask: Tensor, keep: int, *_: Any, **__: Any
    ) -> tuple[Tensor, None, None]:
        self.tried = ids
        return torch.where(ids[:, -keep:] > 1, -2.0, 0.0), None, None


@pytest.mark.parametrize(("off", "verdict"), [(0.0025, "trimmed"), (0.0015, "packed")])
def test_the_mean_is_over_tokens(monkeypatch: pytest.MonkeyPatch, off: float, verdict: str) -> None:
    """Two tokens and 38 places of padding a row, one of the two off: half of 0.0025 is above 1e-3, and a mean over
    padding would be 1e-4. Half of 0.0015 is below, and without the token of probability 1 it would be above.
    """
    trainer: Any = trying()
    trainer.__class__ = type("Tries", (PassMixin, GivesLogps), {})
    trainer.extensions = None
    ids = torch.tensor([[5, 5, 5, 1, *[0] * 38]] * 4)
    ids[0, 2:] = 0  # a row that was left out has nothing to try

    def scored(self: PassMixin, model: object, ids: Tensor, mask: Tensor, keep: int, *_: Any) -> tuple[Tensor, None]:
        return torch.where(ids[:, -keep:] > 1, -2.0 - off, 0.0), None

    monkeypatch.setattr(PassMixin, "_scored", scored)
    trainer._get_per_token_logps_and_entropies(trainer.model, ids, (ids > 0).long(), 40)
    assert trainer.passes.mode == verdict
    assert verdict == "packed" or trainer.passes.why == f"packed, its log-probabilities were {off / 2:.2g} off"
    assert trainer.tried[:, 2].tolist() == [5, 5, 5]


@pytest.mark.parametrize("advantages", [[0.0, 2.0, 0.0, 0.0], [[0.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]])
def test_the_share_without_an_advantage_is_of_the_rows_that_count_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, advantages: list[Any]
) -> None:
    """Two of this rank's three rows that count, and one of the other's two; the fourth one is left out."""
    monkeypatch.setattr(ExtendedTrainer, "_compute_loss", lambda self, *_: self._learned, raising=False)
    trainer: Any = object.__new__(PassMixin)
    theirs = torch.tensor([[1, 2, 9]])
    accelerator = SimpleNamespace(gather=lambda own: torch.cat([theirs, own]), process_index=1)
    vars(trainer).update(model=SimpleNamespace(training=True), passes=Passes("packed"), accelerator=accelerator)
    vars(trainer).update(_metrics={"train": defaultdict(list)}, _with_gradient=lambda *given: given)
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1]])
    inputs = {"completion_mask": mask, "advantages": torch.tensor(advantages)}
    is_zero, num_zero, _ = trainer._compute_loss(None, inputs)
    assert (is_zero.tolist(), num_zero) == ([True, False, True, True], 3)
    assert trainer._metrics["train"] == {"passes/zero_advantage_share": [3 / 5]}
    assert trainer._learned is None
    theirs.zero_()
    trainer._compute_loss(None, inputs | {"completion_mask": torch.zeros(4, 2)})
    assert math.isnan(trainer._metrics["train"]["passes/zero_advantage_share"][1])
    for off in ({"model": SimpleNamespace(training=False)}, {"passes": Passes("plain")}):
        vars(trainer).update(off)
        assert trainer._compute_loss(None, inputs) is None
        trainer.model = SimpleNamespace(training=True)
    assert len(trainer._metrics["train"]["passes/zero_advantage_share"]) == 2


def test_which_rows_are_tried() -> None:
    """The first three rows with a completion, repeated if there are fewer, so that every row has a neighbour."""
    completions = torch.tensor([0, 1, 1, 0, 1, 1]).unsqueeze(1)
    masks = torch.cat([torch.ones(6, 2, dtype=torch.long), completions], dim=1)
    assert tried_rows(masks, 1).tolist() == [1, 2, 4]
    assert tried_rows(masks[:3], 1).tolist() == [1, 2, 0]
    assert tried_rows(masks[1:2], 1).tolist() == [0, 0, 0]
    assert tried_rows(masks.repeat(10, 1), 1).tolist() == [1, 2, 4]  # torch sorts more than 16 numbers in another way


def test_results_of_all_rows_or_of_some_are_put_together() -> None:
    """Log-probabilities and, on request, entropies."""
    numbers = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for places in ([[2, 0, 1]], [[1], [2, 0]]):
        parts = [(torch.tensor(some), (numbers[some], numbers[some] + 9)) for some in places]
        assert [found.tolist() for found in _put_together(parts)] == [numbers.tolist(), (numbers + 9).tolist()]
        alone = [(rows, (logps, None)) for rows, (logps, _) in parts]
        assert _put_together(alone)[1] is None


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (ReferenceVarlen(align="top left"), "its log-probabilities were "),
        (ReferenceVarlen(scale_by=3.0), "its log-probabilities were "),
        (ReferenceVarlen(error=RuntimeError("no kernel image")), "a pass raised RuntimeError: no kernel image"),
    ],
    ids=["top left", "another scale", "raises"],
)
def test_a_kernel_that_is_wrong_is_left_for_trimmed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: ReferenceVarlen, said: str
) -> None:
    stand_in(monkeypatch, kernel)
    expected, _ = trained(tmp_path / "trl", None, **IN_FLOAT64)
    found, ours = trained(tmp_path / "ours", "packed", **IN_FLOAT64)
    assert ours.passes.describe().startswith(f"trimmed: packed, {said}")
    assert ours.row_attention is None
    assert len(kernel.calls) in (0, 2)  # the trial's alone
    assert distance(found[0], expected[0]) < EXACT
