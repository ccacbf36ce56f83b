"""The reward model scorer gives TRL's scores of the same model, and packed rows those of every row alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    tokenization_utils_base,
)

from rlhf_cli.errors import ModelError
from rlhf_cli.models.cache import merged_model
from rlhf_cli.models.packing.packed_rows import packed_texts
from rlhf_cli.models.reward_model_scorer import RewardModelScorer, packed_scores, why_not_scored_packed
from rlhf_cli.models.tiny import tiny_model_path
from tests.support.reference_varlen import ReferenceVarlen, stand_in
from tests.support.tolerances import EXACT, MODEL, assert_scores

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")

PLAIN = (["17+5=", "a much longer prompt than that: 3+4="], ["22", "it is 7, I think"])

CONVERSATION = (
    [[{"role": "user", "content": text}] for text in PLAIN[0]],
    [[{"role": "assistant", "content": text}] for text in PLAIN[1]],
)


def tiny_policy() -> str:
    build = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "context_tokens": 64, "seed": 0, "warm_start": None}
    return str(tiny_model_path(build, list, lambda step, steps: None))


@pytest.mark.parametrize("rows", [PLAIN, CONVERSATION], ids=["plain", "conversational"])
def test_scores_equal_those_of_trls_trainer(reward_model: Path, tmp_path: Path, rows) -> None:
    prompts, completions = rows
    model = AutoModelForSequenceClassification.from_pretrained(reward_model, num_labels=1, dtype="auto")
    trainer = trl.GRPOTrainer(
        model=tiny_policy(),
        reward_funcs=model,
        reward_processing_classes=AutoTokenizer.from_pretrained(reward_model),
        args=trl.GRPOConfig(output_dir=str(tmp_path / "out"), report_to="none", use_cpu=True, bf16=False),
        train_dataset=Dataset.from_list([{"prompt": "1+1="}]),
    )
    inputs = [{"prompt": prompt} for prompt in prompts]
    theirs = trainer._calculate_rewards(inputs, prompts, completions, [[1], [1]])[:, 0].tolist()
    ours = RewardModelScorer(str(reward_model))(prompts=prompts, completions=completions)
    assert_scores(ours, theirs)  # the batch is put together in another order
    assert abs(theirs[0] - theirs[1]) > 0.01


@pytest.fixture
def scorer(reward_model: Path) -> RewardModelScorer:
    """A scorer that pads like TRL."""
    return RewardModelScorer(str(reward_model), batch_size=4, may_pack=False)


def rows_of_lengths(*lengths: int) -> tuple[list[str], list[str]]:
    """Return different texts of these lengths: prompts are letters, completions digits."""
    prompts = [chr(ord("a") + row % 26) for row in range(len(lengths))]
    return prompts, [("0123456789" * 20)[row % 10 :][: length - 1] for row, length in enumerate(lengths)]


def test_batches_are_sorted_and_the_scores_come_in_the_given_order(scorer: Any, reward_model: Path) -> None:
    shapes: list[tuple[int, int]] = []
    scorer._model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    prompts, completions = rows_of_lengths(5, 90, 7, 60, 6, 61, 91, 8, 92, 62)
    scores = scorer(prompts=prompts, completions=completions)
    assert shapes == [(4, 92), (4, 61), (2, 6)]
    alone = [scorer(prompts=[p], completions=[c])[0] for p, c in zip(prompts, completions, strict=True)]
    assert_scores(scores, alone)
    assert scorer(prompts=[], completions=[]) == []
    assert not scorer._model.config.use_cache  # a single pass needs none
    assert len({round(score, 3) for score in scores}) == 10  # otherwise the test would not see the order
    all_at_once = RewardModelScorer(str(reward_model), batch_size=100)
    assert_scores(all_at_once(prompts=prompts, completions=completions), scores)


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2"])
def test_other_architectures(kind: str, reward_model: Path, tmp_path: Path) -> None:
    """Encoders see the padding unless the mask hides it; RoBERTa has fewer usable positions than the config says."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = {"vocab_size": 258, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    config = AutoConfig.for_model(kind, num_labels=1, max_position_embeddings=128, **sizes, **tokens)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(weight.numel()))
    model.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(reward_model)
    tokenizer.save_pretrained(tmp_path)
    prompts, completions = rows_of_lengths(5, 90, 7, 60, 200)
    scorer = RewardModelScorer(str(tmp_path))
    assert scorer.max_length == (127 if kind == "roberta" else 128)
    scores = scorer(prompts=prompts, completions=completions)
    for prompt, completion, score in zip(prompts, completions, scores, strict=True):
        ids = tokenizer.encode(prompt + completion)[-scorer.max_length :]
        assert score == pytest.approx(alone(model, ids), **MODEL)


def test_a_long_row_loses_its_beginning(reward_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer does not warn of it: the model never sees the whole row."""
    warnings: list[str] = []
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", warnings.append)
    scorer = RewardModelScorer(str(reward_model), max_length=10)
    scorer._tokenizer.model_max_length = 10
    kept = scorer(prompts=["6789"], completions=["abcdef"])
    assert scorer.num_truncated == 0
    assert scorer(prompts=["0123456789"], completions=["abcdef"]) == kept
    assert scorer(prompts=["x"], completions=["99abcdefghij"]) == scorer(prompts=[""], completions=["abcdefghij"])
    assert (scorer.num_truncated, warnings) == (2, [])
    assert RewardModelScorer(str(reward_model))(prompts=["0123456789"], completions=["abcdef"]) != kept
    scorer._tokenizer.bos_token = "<eos>"  # a token of the beginning of sequence stays
    assert scorer._fitted([1, *range(20, 32)]) == [1, *range(23, 32)]
    assert scorer._fitted([9, *range(20, 32)]) == list(range(22, 32))
    for scorer.max_length, kept in ((2, [1, 31]), (1, [31])):
        assert scorer._fitted([1, *range(20, 32)]) == kept


def test_the_longest_row_is_that_of_the_model_and_of_its_tokenizer(scorer: RewardModelScorer) -> None:
    for positions, tokens, expected in ((None, 77, 77), (None, 10**30, None), (64, 10**30, 64), (64, 50, 50)):
        vars(scorer._model.config)["max_position_embeddings"] = positions
        scorer._tokenizer.model_max_length = tokens
        assert [scorer._limit(asked) for asked in (None, 5, 64)] == [expected, 5, 64]
    with pytest.raises(ModelError) as caught:
        scorer._limit(65)
    assert (caught.value.got, "64" in str(caught.value.expected)) == (65, True)


def test_rows_are_padded_with_the_end_where_nothing_else_is_there(reward_model: Path, tmp_path: Path) -> None:
    """No token is added to a text, also where the tokenizer begins each with one."""
    folder = Path(shutil.copytree(reward_model, tmp_path / "rm"))
    expected = RewardModelScorer(str(folder), may_pack=False)(*PLAIN)
    change(folder / "tokenizer_config.json", pad_token=None)
    change(folder / "config.json", pad_token_id=None)
    scorer = RewardModelScorer(str(folder), may_pack=False)
    around = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 1)])
    scorer._tokenizer.backend_tokenizer.post_processor = around
    assert_scores(scorer(*PLAIN), expected)
    assert (scorer._tokenizer.pad_token, scorer._model.config.pad_token_id) == ("<eos>", 1)
    change(folder / "tokenizer_config.json", eos_token=None)
    refused(folder)


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_own_dtype_whatever_is_around(reward_model: Path, tmp_path: Path) -> None:
    full, half = (RewardModelScorer(str(reward_model), dtype=dtype) for dtype in ("auto", "bfloat16"))
    assert (full._model.dtype, half._model.dtype) == (torch.float32, torch.bfloat16)
    exact = full(*PLAIN)
    assert half(*PLAIN) == pytest.approx(exact, abs=0.1)
    assert half(*PLAIN) != exact
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert full(*PLAIN) == exact
    half._model.save_pretrained(tmp_path)
    full._tokenizer.save_pretrained(tmp_path)
    for dtype, expected in (("auto", torch.bfloat16), ("float32", torch.float32)):
        assert RewardModelScorer(str(tmp_path), dtype=dtype)._model.dtype == expected


def test_conversations_without_a_template_are_refused_before_training(reward_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(reward_model, tmp_path / "rm"))
    (folder / "chat_template.jinja").unlink()
    scorer = RewardModelScorer(str(folder))
    scorer.check_prompt(PLAIN[0][0])
    for call, given in ((scorer.check_prompt, CONVERSATION[0][:1]), (scorer, CONVERSATION)):
        with pytest.raises(ModelError) as caught:
            call(*given)
        assert caught.value.where == f"reward model {folder}"
    for mixed in ((CONVERSATION[0], PLAIN[1]), (PLAIN[0], CONVERSATION[1])):
        with pytest.raises(TypeError, match="both texts, or both lists"):
            scorer(*mixed)


def test_a_causal_checkpoint_and_lost_weights_are_refused(tmp_path: Path, reward_model: Path) -> None:
    AutoTokenizer.from_pretrained(reward_model).save_pretrained(tmp_path)
    LlamaForCausalLM(LlamaConfig.from_pretrained(reward_model)).save_pretrained(tmp_path)
    refused(tmp_path, "LlamaForCausalLM")
    # The config may say otherwise, but not the weights.
    change(tmp_path / "config.json", architectures=["LlamaForSequenceClassification"])
    refused(tmp_path, "score.weight", "causal")
    model = AutoModelForSequenceClassification.from_pretrained(reward_model)
    for lost, tells in (("score.weight", True), ("q_proj", False)):
        kept = {name: weight for name, weight in model.state_dict().items() if lost not in name}
        model.save_pretrained(tmp_path, state_dict=kept)
        assert ("modules_to_save=['score']" in str(refused(tmp_path, lost).advice)) is tells


def test_a_score_that_is_not_finite_is_an_error(reward_model: Path) -> None:
    scorer = RewardModelScorer(str(reward_model), batch_size=4)
    scorer._model.score.weight.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="row 0"):
        scorer(*PLAIN)
    assert scorer.why_not_packed is None  # the trial found the same of padded rows


def refused(folder: Path, *got: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        RewardModelScorer(str(folder))
    assert caught.value.where == f"reward model {folder}"
    assert [part for part in got if part not in str(caught.value.got)] == []
    return caught.value


SEQ_CLS = {"task_type": "SEQ_CLS"}
HEAD = "base_model.model.score.weight"


@pytest.fixture(scope="module")
def causal_base(reward_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("causal_base")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig.from_pretrained(reward_model)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(reward_model).save_pretrained(folder)
    return folder


def save_adapter(folder: Path, base: Path, **lora: object) -> list[float]:
    """Save an adapter with large weights, and return the model's scores of PLAIN, each row alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **lora)).eval()
        for name, weight in model.named_parameters():
            if "lora" in name or "score" in name:
                torch.nn.init.normal_(weight, std=1.0)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.save_pretrained(folder)
    return [alone(model, tokenizer.encode(prompt + completion)) for prompt, completion in zip(*PLAIN, strict=True)]


@pytest.mark.parametrize("lora", [SEQ_CLS, {"modules_to_save": ["score"]}], ids=["seq_cls", "modules_to_save"])
def test_an_adapter_on_a_causal_base_scores_with_its_saved_head(
    causal_base: Path, tmp_path: Path, lora, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged, too."""
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    wanted = save_adapter(adapter := tmp_path / "adapter", causal_base, **lora)
    for folder in (adapter, adapter, *([merged_model(str(adapter))] if lora is SEQ_CLS else [])):
        assert_scores(RewardModelScorer(str(folder))(*PLAIN), wanted)  # a random head would not come twice
    half = RewardModelScorer(str(adapter), dtype="bfloat16")._model
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert abs(wanted[0] - wanted[1]) > 0.01


def test_an_adapter_on_a_reward_model_may_leave_the_head_alone(reward_model: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(reward_model)
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    model.save_pretrained(tmp_path)  # a fresh adapter changes nothing
    assert HEAD not in load_file(tmp_path / "adapter_model.safetensors")
    scorer = RewardModelScorer(str(tmp_path))  # and its tokenizer is the base's
    assert_scores(scorer(*PLAIN), RewardModelScorer(str(reward_model))(*PLAIN))


def test_an_adapter_without_its_head_is_refused(causal_base: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path, causal_base)  # no task type, no modules_to_save: PEFT leaves the head out
    refused(tmp_path, "score.weight", str(causal_base))
    change(tmp_path / "adapter_config.json", task_type="CAUSAL_LM")
    refused(tmp_path, "CAUSAL_LM")
    wanted = save_adapter(tmp_path, causal_base, **SEQ_CLS)
    change(tmp_path / "adapter_config.json", task_type=None, modules_to_save=None)
    assert_scores(RewardModelScorer(str(tmp_path))(*PLAIN), wanted)  # PEFT reads a head that the config does not list


@pytest.mark.parametrize("shape", [(2, 16), (0,)], ids=["two labels", "empty, as ZeRO-3 leaves it"])
def test_a_head_of_another_shape_is_refused(causal_base: Path, tmp_path: Path, shape: tuple[int, ...]) -> None:
    save_adapter(tmp_path, causal_base, **SEQ_CLS)
    file = tmp_path / "adapter_model.safetensors"
    save_file(load_file(file) | {HEAD: torch.ones(shape)}, file)
    refused(tmp_path)


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


def test_texts_are_padded_on_a_gpu_without_a_kernel_for_all_at_once(reward_model: Path, monkeypatch) -> None:
    """Like a policy's rows (tests/trainers/passes/test_chosen_passes.py). The model itself stays on the CPU."""
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *place: module)
    on_gpu = RewardModelScorer(str(reward_model), device="cuda")
    assert "float32" in str(on_gpu.why_not_packed)


def test_the_score_is_read_before_padding_at_the_end_of_a_text(saved: Path) -> None:
    """A tokenizer without its own padding pads with the end-of-sequence token, whose score transformers ignores."""
    both = [RewardModelScorer(str(saved), may_pack=may_pack, with_eos=True) for may_pack in (True, False)]
    for scorer in both:
        scorer._tokenizer.pad_token = scorer._tokenizer.eos_token
        scorer._model.config.pad_token_id = scorer._tokenizer.eos_token_id
    packed, padded = (scorer(PROMPTS, COMPLETIONS) for scorer in both)
    assert [scorer.why_not_packed is None for scorer in both] == [True, False]  # the trial found no difference
    assert_scores(packed, padded, within=EXACT)
    wanted = alone(both[1]._model, both[1]._tokenizer.encode(PROMPTS[2] + COMPLETIONS[2]))
    assert_scores(both[0](PROMPTS[2:3], COMPLETIONS[2:3]), [wanted])


@pytest.mark.parametrize(
    ("kind", "more", "why"), [("gpt2", {}, "head"), ("bert", {}, "head"), ("mistral", {"sliding_window": 8}, "sliding")]
)
def test_models_that_cannot_be_packed(kind: str, more: dict[str, Any], why: str) -> None:
    config = AutoConfig.for_model(kind, num_labels=1, max_position_embeddings=64, **SIZES, **TOKENS, **more)
    assert why in str(why_not_scored_packed(model_of(config)))


@pytest.mark.parametrize(("batch_size", "num_tried"), [(16, 3), (1, 2)])
def test_the_trial_detects_a_model_that_attends_to_later_tokens(
    saved: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int, num_tried: int
) -> None:
    """Its configuration does not show this, nor does a row that is tried alone; more than a batch may not fit."""
    scorer = RewardModelScorer(str(saved), batch_size=batch_size)
    tried, compare = [], scorer._why_not_as_padded
    monkeypatch.setattr(scorer, "_why_not_as_padded", lambda rows: tried.append(len(rows)) or compare(rows))
    for layer in scorer._model.model.layers:
        layer.self_attn.register_forward_pre_hook(_forgets_its_rows, with_kwargs=True)
    padded = RewardModelScorer(str(saved), may_pack=False, batch_size=batch_size)
    assert scorer(PROMPTS, COMPLETIONS) == padded(PROMPTS, COMPLETIONS)
    assert scorer.why_not_packed is not None
    assert tried == [num_tried]


@pytest.mark.parametrize(
    ("dtype", "same", "other"), [("float64", 1e-8, 1e-4), ("float32", 1e-4, 0.1), ("bfloat16", 0.01, 1.0)]
)
def test_the_trial_allows_for_the_rounding_of_a_dtype(
    saved: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, same: float, other: float
) -> None:
    for away, is_packed in ((same, True), (other, False)):
        scorer = RewardModelScorer(str(saved), dtype=dtype)
        monkeypatch.setattr(scorer, "_packed", lambda rows, scorer=scorer, away=away: [0.0 + away for _ in rows])
        monkeypatch.setattr(scorer, "_padded", lambda rows: [0.0 for _ in rows])
        scorer(PROMPTS, COMPLETIONS)
        assert (scorer.why_not_packed is None) is is_packed


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (ReferenceVarlen(), None),
        (ReferenceVarlen(align="top left"), "scores"),
        (ReferenceVarlen(error=RuntimeError("no kernel image")), "RuntimeError: no kernel image"),
    ],
    ids=["sound", "top left", "raises"],
)
def test_with_a_wrong_kernel_texts_are_padded(
    saved: Path, monkeypatch: pytest.MonkeyPatch, kernel: ReferenceVarlen, problem: str | None
) -> None:
    """`ReferenceVarlen` replaces a GPU's kernel; all texts share a beginning."""
    stand_in(monkeypatch, kernel)
    scorer, padded = RewardModelScorer(str(saved)), RewardModelScorer(str(saved), may_pack=False)
    prompts, completions = ["which of these?"] * 4, [" this", " that one here", " one", " it is"]
    assert_scores(scorer(prompts, completions), padded(prompts, completions), within=EXACT)
    assert problem in scorer.why_not_packed if problem else scorer.why_not_packed is None
    assert (len(kernel.calls) > 2) is (problem is None)  # a wrong kernel runs in the two layers of the trial only


def _forgets_its_rows(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.pop("packed_rows", None) is not None:  # like a model that does not pass arguments on
        kwargs["attention_mask"] = None
    return args, kwargs
