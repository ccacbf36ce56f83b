"""Scores of packed rows equal those of every row alone, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig, Qwen2Config

from rlhf_cli.models import reward_model_scorer
from rlhf_cli.models.packing.packed_rows import packed_texts
from rlhf_cli.models.reward_model_scorer import RewardModelScorer, packed_scores, why_not_scored_packed
from tests.support.reference_varlen import ReferenceVarlen, stand_in
from tests.support.tolerances import EXACT, assert_scores

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = {"vocab_size": 258, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
PROMPTS = ["which of these?", "which of these?", "another", "which of these?", "", "which of these!"]
COMPLETIONS = [" this", " that one here", " one", "", "a", " ?" * 20]


def model_of(config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(config).double().eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    return model


def alone(model: Any, ids: list[int]) -> float:
    """Return the score of an unpadded row."""
    with torch.no_grad():
        return float(model(torch.tensor([ids])).logits[0, 0])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "grouped heads", "adapter"])
def test_packed_scores_equal_those_of_each_row_alone(kind: str) -> None:
    config_class = Qwen2Config if kind == "qwen2" else LlamaConfig
    heads = {"num_key_value_heads": 2 if kind == "grouped heads" else 4}
    model = model_of(config_class(num_labels=1, max_position_embeddings=128, **SIZES, **TOKENS, **heads))
    if kind == "adapter":
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="SEQ_CLS")).double().eval()
        for name, weight in model.named_parameters():
            if "lora" in name or "modules_to_save" in name:
                torch.nn.init.normal_(weight, std=0.5)
    assert why_not_scored_packed(model) is None
    draw = torch.Generator().manual_seed(1)
    beginnings = [torch.randint(2, 258, (length,), generator=draw).tolist() for length in (12, 30)]
    ends = [torch.randint(2, 258, (length,), generator=draw).tolist() for length in (1, 3, 9, 20, 2)]
    rows = sorted([first + end for first in (*beginnings, []) for end in ends])
    assert packed_texts(rows, torch.device("cpu")).num_prompts == 2  # otherwise the test would not cover sharing
    with torch.no_grad():
        scores = packed_scores(model, rows)
    wanted = [alone(model, row) for row in rows]
    assert_scores(scores.tolist(), wanted, within=EXACT)
    assert len({round(score, 6) for score in wanted}) == len(rows)


@pytest.fixture
def saved(reward_model: Path, tmp_path: Path) -> Path:
    """A reward model with float64 weights, so that rounding is negligible."""
    model_of(LlamaConfig(num_labels=1, max_position_embeddings=128, **SIZES, **TOKENS)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(reward_model).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of every flat row that goes through a model."""
    seen: list[int] = []

    def noting(model: Any, rows: list[list[int]]) -> torch.Tensor:
        seen.append(packed_texts(rows, torch.device("cpu")).input_ids.numel())
        return packed_scores(model, rows)

    monkeypatch.setattr(reward_model_scorer, "packed_scores", noting)
    return seen


def test_texts_are_padded_on_a_gpu_without_a_kernel_for_all_at_once(reward_model: Path, monkeypatch) -> None:
    """Like a policy's rows (tests/trainers/passes/test_chosen_passes.py). The model itself stays on the CPU."""
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *place: module)
    on_gpu = RewardModelScorer(str(reward_model), device="cuda")
    assert "float32" in str(on_gpu.why_not_packed)


def test_packed_scores_equal_those_of_padded_rows(reward_model: Path, places: list[int]) -> None:
    packed, padded = (RewardModelScorer(str(reward_model), may_pack=may_pack) for may_pack in (True, False))
    assert packed.why_not_packed is None
    assert padded.why_not_packed is not None
    ours, theirs = packed(PROMPTS, COMPLETIONS), padded(PROMPTS, COMPLETIONS)
    assert packed.why_not_packed is None  # the trial found nothing
    assert_scores(ours, theirs)
    assert len(places) == 2  # the trial and one pass
    assert places[1] < sum(len(prompt + completion) for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True))


def test_the_score_is_read_before_padding_at_the_end_of_a_text(saved: Path) -> None:
    """A tokenizer without its own padding pads with the end-of-sequence token, whose score transformers ignores."""
    both = [RewardModelScorer(str(saved), may_pack=may_pack, with_eos=True) for may_pack in (True, False)]
    for scorer in both:
        scorer._tokenizer.pad_token = scorer._tokenizer.eos_token
        scorer._model.config.pad_token_id = scorer._tokenizer.eos_token_id
    packed, padded = (scorer(PROMPTS, COMPLETIONS) for scorer in both)
    assert both[0].why_not_packed is None  # the trial found no difference
    assert_scores(packed, padded, within=EXACT)
    wanted = alone(both[1]._model, both[1]._tokenizer.encode(PROMPTS[2] + COMPLETIONS[2]))
    assert_scores(both[0](PROMPTS[2:3], COMPLETIONS[2:3]), [wanted])


@pytest.mark.parametrize(
    ("kind", "more", "why"), [("gpt2", {}, "head"), ("bert", {}, "head"), ("mistral", {"sliding_window": 8}, "sliding")]
)
def test_models_that_cannot_be_packed(kind: str, more: dict[str, Any], why: str) -> None:
    config = AutoConfig.for_model(kind, num_labels=1, max_position_embeddings=64, **SIZES, **TOKENS, **more)
    assert why in str(why_not_scored_packed(model_of(config)))


def test_the_trial_detects_a_model_that_attends_to_later_tokens(saved: Path) -> None:
    """Its configuration does not show this."""
    scorer = RewardModelScorer(str(saved))
    body = scorer._model.model
    for layer in body.layers:
        layer.self_attn.register_forward_pre_hook(_forgets_its_rows, with_kwargs=True)
    padded = RewardModelScorer(str(saved), may_pack=False)
    assert scorer(PROMPTS, COMPLETIONS) == padded(PROMPTS, COMPLETIONS)
    assert scorer.why_not_packed is not None


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (ReferenceVarlen(), None),
        (ReferenceVarlen(align="top left"), "scores"),
        (ReferenceVarlen(error=RuntimeError("no kernel image")), "RuntimeError: no kernel image"),
    ],
    ids=["sound", "top left", "raises"],
)
def test_with_a_wrong_kernel_each_row_attends_alone(
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kernel: ReferenceVarlen,
    problem: str | None,
) -> None:
    """Texts are packed as before. `ReferenceVarlen` replaces a GPU's kernel; all texts share a beginning."""
    stand_in(monkeypatch, kernel)
    scorer, padded = RewardModelScorer(str(saved)), RewardModelScorer(str(saved), may_pack=False)
    prompts, completions = ["which of these?"] * 4, [" this", " that one here", " one", " it is"]
    assert_scores(scorer(prompts, completions), padded(prompts, completions), within=EXACT)
    assert scorer.why_not_packed is None
    warnings = [record.getMessage() for record in caplog.records if "attend row by row" in record.getMessage()]
    assert len(warnings) == (problem is not None)
    assert all(str(problem) in warning for warning in warnings)
    assert (len(kernel.calls) > 2) is (problem is None)  # a wrong kernel runs in the two layers of the trial only


def _forgets_its_rows(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.pop("packed_rows", None) is not None:  # like a model that does not pass arguments on
        kwargs["attention_mask"] = None
    return args, kwargs
