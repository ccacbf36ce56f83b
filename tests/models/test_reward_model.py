"""The reward model scorer against TRL's own scoring of the same model on the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_cli.models.reward_model import RewardModelScorer
from tests.trainers.reward_models import save_random_reward_model

PLAIN = (["17+5=", "a much longer prompt than that: 3+4="], ["22", "it is 7, I think"])
CONVERSATION = (
    [[{"role": "user", "content": text}] for text in PLAIN[0]],
    [[{"role": "assistant", "content": text}] for text in PLAIN[1]],
)


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rm")
    save_random_reward_model(folder)
    return folder


@pytest.mark.parametrize("rows", [PLAIN, CONVERSATION], ids=["plain", "conversational"])
def test_scores_equal_those_of_trls_trainer(reward_model: Path, tmp_path: Path, rows) -> None:
    prompts, completions = rows
    model = AutoModelForSequenceClassification.from_pretrained(reward_model, num_labels=1, dtype="auto")
    trainer = trl.GRPOTrainer(
        model=_policy(tmp_path),
        reward_funcs=model,
        reward_processing_classes=AutoTokenizer.from_pretrained(reward_model),
        args=trl.GRPOConfig(output_dir=str(tmp_path / "out"), report_to="none", use_cpu=True, bf16=False),
        train_dataset=Dataset.from_list([{"prompt": "1+1="}]),
    )
    inputs = [{"prompt": prompt} for prompt in prompts]
    theirs = trainer._calculate_rewards(inputs, prompts, completions, [[1], [1]])[:, 0].tolist()
    assert RewardModelScorer(str(reward_model))(prompts=prompts, completions=completions) == theirs
    assert theirs[0] != theirs[1]


def test_the_score_is_that_of_the_last_token_of_the_unpadded_row(reward_model: Path) -> None:
    """By hand: one row at a time, no padding at all, straight through the model."""
    tokenizer = AutoTokenizer.from_pretrained(reward_model)
    model = AutoModelForSequenceClassification.from_pretrained(reward_model).eval()
    scores = RewardModelScorer(str(reward_model))(prompts=PLAIN[0], completions=PLAIN[1])
    for prompt, completion, score in zip(*PLAIN, scores, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt + completion)])
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[0, -1]
            by_hand = float(hidden @ model.score.weight[0])
        assert score == pytest.approx(by_hand, abs=1e-5)


def _policy(folder: Path) -> str:
    from rlhf_cli.models.tiny import tiny_model_path

    build = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "context_tokens": 64, "warm_start": None}
    return str(tiny_model_path(build, list, lambda step, steps: None))
