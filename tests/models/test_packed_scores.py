"""Scores of rows in one flat row against those of every row by itself, in float64."""

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
    """The score of a row that nothing was padded to."""
    with torch.no_grad():
        return float(model(torch.tensor([ids])).logits[0, 0])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "grouped heads", "adapter"])
def test_equal_to_each_row_by_itself(kind: str) -> None:
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
    assert packed_texts(rows, torch.device("cpu")).num_prompts == 2  # else sharing would not be seen
    with torch.no_grad():
        scores = packed_scores(model, rows)
    wanted = [alone(model, row) for row in rows]
    assert_scores(scores.tolist(), wanted, within=EXACT)
    assert len({round(one, 6) for one in wanted}) == len(rows)


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
    """As a policy's rows are (tests/trainers/passes/test_chosen_passes.py). The model itself stays on the CPU."""
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *place: module)
    on_gpu = RewardModelScorer(str(reward_model), device="cuda")
    assert on_gpu.why_not_packed == "packed, each text would attend by itself: it is computed in float32"


def test_scores_are_those_of_padded_rows(reward_model: Path, places: list[int]) -> None:
    packed, padded = (RewardModelScorer(str(reward_model), may_pack=may_pack) for may_pack in (True, False))
    assert (packed.why_not_packed, padded.why_not_packed) == (None, "as asked")
    ours, theirs = packed(PROMPTS, COMPLETIONS), padded(PROMPTS, COMPLETIONS)
    assert packed.why_not_packed is None  # the trial found nothing
    assert_scores(ours, theirs)
    assert len(places) == 2  # the trial and one pass
    assert places[1] < sum(len(prompt + completion) for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True))


def test_padding_at_the_end_of_a_text_is_not_what_is_scored(saved: Path) -> None:
    """A tokenizer without padding of its own pads with the end of a text, and transformers cannot tell them apart: it
    scores the token before.
    """
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
    ("kind", "more", "why"),
    [
        ("gpt2", {}, "its head is not transformers' own of decoders"),
        ("bert", {}, "its head is not transformers' own of decoders"),
        ("mistral", {"sliding_window": 8}, "sliding"),
    ],
)
def test_what_goes_padded(kind: str, more: dict[str, Any], why: str) -> None:
    config = AutoConfig.for_model(kind, num_labels=1, max_position_embeddings=64, **SIZES, **TOKENS, **more)
    assert why in str(why_not_scored_packed(model_of(config)))


def test_a_model_that_looks_ahead_is_found_out(saved: Path) -> None:
    """Its configuration does not say so: packed, a row that continues a shared beginning would look back alone."""
    scorer = RewardModelScorer(str(saved))
    body = scorer._model.model
    for layer in body.layers:
        layer.self_attn.register_forward_pre_hook(_forgets_its_rows, with_kwargs=True)
    padded = RewardModelScorer(str(saved), may_pack=False)
    assert scorer(PROMPTS, COMPLETIONS) == padded(PROMPTS, COMPLETIONS)
    assert scorer.why_not_packed == "packed, its scores were not those of padded rows"


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (ReferenceVarlen(), None),
        (ReferenceVarlen(align="top left"), "its scores were not those of padded rows"),
        (ReferenceVarlen(error=RuntimeError("no kernel image")), "it raised RuntimeError: no kernel image"),
    ],
    ids=["sound", "top left", "raises"],
)
def test_a_kernel_for_all_rows_that_is_wrong_is_left_for_a_row_each(
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kernel: ReferenceVarlen,
    said: str | None,
) -> None:
    """And texts go packed as before. A GPU's kernel is stood in for; the first three texts share a beginning."""
    stand_in(monkeypatch, kernel)
    scorer, padded = RewardModelScorer(str(saved)), RewardModelScorer(str(saved), may_pack=False)
    prompts, completions = ["which of these?"] * 4, [" this", " that one here", " one", " it is"]
    assert_scores(scorer(prompts, completions), padded(prompts, completions), within=EXACT)
    assert scorer.why_not_packed is None
    warnings = [record.getMessage() for record in caplog.records if "attend row by row" in record.getMessage()]
    expected = f"packed texts attend row by row: with torch's varlen_attn {said} (docs/development/performance.md)"
    assert warnings == ([expected] if said else [])
    assert (len(kernel.calls) > 2) is (said is None)  # two layers of the trial alone, where it is wrong


def _forgets_its_rows(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.pop("packed_rows", None) is not None:  # one that does not hand arguments down: one row looks at all
        kwargs["attention_mask"] = None
    return args, kwargs
