"""The reward model scorer gives TRL's scores of the same model on the same rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rlhf_cli.errors import ModelError
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.models.tiny import tiny_model_path
from tests.support.tolerances import MODEL, assert_scores

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
    """A scorer that pads like TRL; test_packed_scores.py has packed rows."""
    return RewardModelScorer(str(reward_model), batch_size=4, may_pack=False)


@pytest.fixture
def forwards(scorer: RewardModelScorer) -> list[tuple[int, int]]:
    """The (rows, tokens) of every forward pass of the scorer."""
    shapes: list[tuple[int, int]] = []
    scorer._model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def rows_of_lengths(*lengths: int) -> tuple[list[str], list[str]]:
    """Return different texts of these lengths: prompts are letters, completions digits."""
    prompts = [chr(ord("a") + row % 26) for row in range(len(lengths))]
    return prompts, [("0123456789" * 20)[row % 10 :][: length - 1] for row, length in enumerate(lengths)]


def test_batches_are_sorted_and_the_scores_come_in_the_given_order(scorer, forwards, reward_model: Path) -> None:
    prompts, completions = rows_of_lengths(5, 90, 7, 60, 6, 61, 91, 8, 92, 62)
    scores = scorer(prompts=prompts, completions=completions)
    assert forwards == [(4, 92), (4, 61), (2, 6)]
    alone = [scorer(prompts=[p], completions=[c])[0] for p, c in zip(prompts, completions, strict=True)]
    assert_scores(scores, alone)
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
        with torch.no_grad():
            assert score == pytest.approx(float(model(torch.tensor([ids])).logits[0, 0]), **MODEL)


def test_a_long_row_loses_its_beginning(reward_model: Path) -> None:
    scorer = RewardModelScorer(str(reward_model), max_length=10)
    kept = scorer(prompts=["6789"], completions=["abcdef"])
    assert scorer.num_truncated == 0
    long = scorer(prompts=["0123456789"], completions=["abcdef"])
    assert long == kept
    assert scorer.num_truncated == 1
    assert scorer(prompts=["x"], completions=["99abcdefghij"]) == scorer(prompts=[""], completions=["abcdefghij"])
    assert scorer.num_truncated == 2
    assert RewardModelScorer(str(reward_model))(prompts=["0123456789"], completions=["abcdef"]) != long
    scorer._tokenizer.bos_token = "<eos>"  # a token of the beginning of sequence stays
    assert scorer._fitted([1, *range(20, 32)]) == [1, *range(23, 32)]
    assert scorer._fitted([9, *range(20, 32)]) == list(range(22, 32))


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
    assert RewardModelScorer(str(tmp_path))._model.dtype == torch.bfloat16
    assert RewardModelScorer(str(tmp_path), dtype="float32")._model.dtype == torch.float32


def test_conversations_without_a_template_are_refused_before_training(reward_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(reward_model, tmp_path / "rm"))
    (folder / "chat_template.jinja").unlink()
    scorer = RewardModelScorer(str(folder))
    scorer.check_prompt(PLAIN[0][0])
    for call in (lambda: scorer.check_prompt(CONVERSATION[0][0]), lambda: scorer(*CONVERSATION)):
        with pytest.raises(ModelError) as caught:
            call()
        assert caught.value.where == f"reward model {folder}"


def test_a_causal_checkpoint_is_refused(tmp_path: Path, reward_model: Path) -> None:
    LlamaForCausalLM(LlamaConfig.from_pretrained(reward_model)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(reward_model).save_pretrained(tmp_path)
    refused(tmp_path, "LlamaForCausalLM")
    # The config may say otherwise, but not the weights.
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "LlamaForSequenceClassification"))
    refused(tmp_path, "score.weight", "causal")


def test_lost_weights_are_refused_not_made_up(tmp_path: Path, reward_model: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(reward_model)
    weights = {name: weight for name, weight in model.state_dict().items() if name != "score.weight"}
    model.save_pretrained(tmp_path, state_dict=weights)
    AutoTokenizer.from_pretrained(reward_model).save_pretrained(tmp_path)
    refused(tmp_path, "score.weight")
    weights = {name: weight for name, weight in model.state_dict().items() if "q_proj" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    refused(tmp_path, "q_proj")


def test_a_score_that_is_not_finite_is_an_error(reward_model: Path) -> None:
    scorer = RewardModelScorer(str(reward_model), batch_size=4)
    scorer._model.score.weight.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="row 0"):
        scorer(*PLAIN)


def refused(folder: Path, *got: str) -> None:
    with pytest.raises(ModelError) as caught:
        RewardModelScorer(str(folder))
    assert caught.value.where == f"reward model {folder}"
    assert [part for part in got if part not in str(caught.value.got)] == []


SEQ_CLS = {"task_type": "SEQ_CLS"}
HEAD = "base_model.model.score.weight"

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")


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
    with torch.no_grad():
        texts = [prompt + completion for prompt, completion in zip(*PLAIN, strict=True)]
        return [float(model(torch.tensor([tokenizer.encode(text)])).logits[0, 0]) for text in texts]


@pytest.mark.parametrize("lora", [SEQ_CLS, {"modules_to_save": ["score"]}], ids=["seq_cls", "modules_to_save"])
def test_an_adapter_on_a_causal_base_scores_with_its_saved_head(causal_base: Path, tmp_path: Path, lora) -> None:
    wanted = save_adapter(tmp_path, causal_base, **lora)
    for _ in range(2):  # a random head would not come twice
        assert_scores(RewardModelScorer(str(tmp_path))(*PLAIN), wanted)
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


@pytest.mark.parametrize("shape", [(2, 16), (0,)], ids=["two labels", "empty, as ZeRO-3 leaves it"])
def test_a_head_of_another_shape_is_refused(causal_base: Path, tmp_path: Path, shape: tuple[int, ...]) -> None:
    save_adapter(tmp_path, causal_base, **SEQ_CLS)
    edit_weights(tmp_path, lambda weights: weights.update({HEAD: torch.ones(shape)}))
    refused(tmp_path)


def edit_weights(folder: Path, edit) -> None:
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    edit(weights)
    save_file(weights, file)
