"""Reward models that are PEFT adapters: with their head they score, without it they are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rlhf_cli.errors import ModelError
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from tests.support.random_reward_model import save_random_reward_model
from tests.support.tolerances import MODEL

ROWS = (["17+5=", "a much longer prompt than that: 3+4="], ["22", "it is 7, I think"])
SEQ_CLS = {"task_type": "SEQ_CLS"}
HEAD = "base_model.model.score.weight"

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")


@pytest.fixture(scope="module")
def reward_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward_base")
    save_random_reward_model(folder)
    return folder


@pytest.fixture(scope="module")
def causal_base(reward_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("causal_base")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig.from_pretrained(reward_base)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(reward_base).save_pretrained(folder)
    return folder


def save_adapter(folder: Path, base: Path, **lora: object) -> list[float]:
    """An adapter with weights that matter, in `folder`; how the model itself scores ROWS, each row alone."""
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
        texts = [prompt + completion for prompt, completion in zip(*ROWS, strict=True)]
        return [float(model(torch.tensor([tokenizer.encode(text)])).logits[0, 0]) for text in texts]


@pytest.mark.parametrize("lora", [SEQ_CLS, {"modules_to_save": ["score"]}], ids=["seq_cls", "modules_to_save"])
def test_an_adapter_on_a_causal_base_scores_with_its_saved_head(causal_base: Path, tmp_path: Path, lora) -> None:
    wanted = save_adapter(tmp_path, causal_base, **lora)
    for _ in range(2):  # a random head would not come twice
        assert RewardModelScorer(str(tmp_path))(*ROWS) == pytest.approx(wanted, **MODEL)
    assert abs(wanted[0] - wanted[1]) > 0.01


def test_an_adapter_on_a_reward_model_may_leave_the_head_alone(reward_base: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(reward_base)
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    model.save_pretrained(tmp_path)  # a fresh adapter changes nothing
    assert HEAD not in load_file(tmp_path / "adapter_model.safetensors")
    scorer = RewardModelScorer(str(tmp_path))  # and its tokenizer is the base's
    assert scorer(*ROWS) == pytest.approx(RewardModelScorer(str(reward_base))(*ROWS), **MODEL)


def test_an_adapter_without_its_head_is_refused(causal_base: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path, causal_base)  # no task type, no modules_to_save: PEFT leaves the head out
    refused(tmp_path, "lost its head", "score.weight", f"neither the adapter nor its base {causal_base}", "SEQ_CLS")


@pytest.mark.parametrize("shape", [(2, 16), (0,)], ids=["two labels", "empty, as ZeRO-3 leaves it"])
def test_a_head_of_another_shape_is_refused(causal_base: Path, tmp_path: Path, shape: tuple[int, ...]) -> None:
    save_adapter(tmp_path, causal_base, **SEQ_CLS)
    edit_weights(tmp_path, lambda weights: weights.update({HEAD: torch.ones(shape)}))
    refused(tmp_path, "num_labels 1")


def test_an_adapter_of_a_language_model_and_a_base_that_is_gone_are_refused(causal_base: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path, causal_base, **SEQ_CLS)
    edit_config(tmp_path, task_type="CAUSAL_LM")
    refused(tmp_path, "adapter of a causal language model", "SEQ_CLS")
    edit_config(tmp_path, task_type="SEQ_CLS", base_model_name_or_path="/no/such/base")
    refused(tmp_path, "no such model folder", "/no/such/base", "adapter_config.json names")


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        RewardModelScorer(str(folder))
    assert [part for part in parts if part not in str(caught.value)] == []


def edit_config(folder: Path, **values: object) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def edit_weights(folder: Path, edit) -> None:
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    edit(weights)
    save_file(weights, file)
