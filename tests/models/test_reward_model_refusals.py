"""Reward models that cannot score: each is refused before training starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from rlhf_cli.errors import ModelError
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from tests.models.scored_texts import CONVERSATION, PLAIN, copied


def test_conversations_without_a_template_are_refused_before_training(reward_model: Path, tmp_path: Path) -> None:
    folder = copied(reward_model, tmp_path)
    (folder / "chat_template.jinja").unlink()
    scorer = RewardModelScorer(str(folder))
    scorer.check_prompt(PLAIN[0][0])
    for call in (lambda: scorer.check_prompt(CONVERSATION[0][0]), lambda: scorer(*CONVERSATION)):
        with pytest.raises(ModelError, match="no chat template"):
            call()


def test_a_causal_checkpoint_is_refused(tmp_path: Path, reward_model: Path) -> None:
    LlamaForCausalLM(LlamaConfig.from_pretrained(reward_model)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(reward_model).save_pretrained(tmp_path)
    refused(tmp_path, "causal checkpoint", "LlamaForCausalLM", "sequence-classification checkpoint with num_labels 1")
    # The same with a config that says otherwise: the weights tell.
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "LlamaForSequenceClassification"))
    refused(tmp_path, "lost its head", "score.weight", "causal language model")


@pytest.mark.parametrize("num_labels", [2, 3])
def test_more_labels_than_one_are_refused(tmp_path: Path, reward_model: Path, num_labels: int) -> None:
    config = LlamaConfig.from_pretrained(reward_model, num_labels=num_labels)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(reward_model).save_pretrained(tmp_path)
    refused(tmp_path, f"{num_labels} labels; a reward model has one", "num_labels 1")


def test_a_lost_head_is_refused_not_made_up(tmp_path: Path, reward_model: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(reward_model)
    weights = {name: weight for name, weight in model.state_dict().items() if name != "score.weight"}
    model.save_pretrained(tmp_path, state_dict=weights)
    AutoTokenizer.from_pretrained(reward_model).save_pretrained(tmp_path)
    refused(tmp_path, "lost its head", "score.weight not in its files")
    weights = {name: weight for name, weight in model.state_dict().items() if "q_proj" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    refused(tmp_path, "lost weights", "q_proj")


def test_what_cannot_be_loaded_says_why(tmp_path: Path, reward_model: Path) -> None:
    folder = copied(reward_model, tmp_path)
    (folder / "model.safetensors").unlink()
    refused(folder, "cannot be loaded", "model.safetensors")


def test_a_score_that_is_no_number_is_an_error(reward_model: Path) -> None:
    scorer = RewardModelScorer(str(reward_model), batch_size=4)
    scorer._model.score.weight.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="score of row 0 is no number"):
        scorer(*PLAIN)


def test_more_tokens_than_positions_are_refused(reward_model: Path) -> None:
    with pytest.raises(ModelError, match="more than the reward model has positions for"):
        RewardModelScorer(str(reward_model), max_length=129)


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        RewardModelScorer(str(folder))
    assert [part for part in parts if part not in str(caught.value)] == []
