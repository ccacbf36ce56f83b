"""A tokenizer that pads with its end-of-sequence token, as SmolLM2's does, and who reads the end of a text then.

transformers reads a score at the last token that is no padding, so such an end would be passed over.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

from rlhf_cli.cli import main
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.models.tokenizer_files import padding_beside, read_tokenizer
from rlhf_cli.runs.reward_records import trained_with_eos
from tests.support.model_copies import model_copy

SAME = {"pad_token": "<eos>"}


def ended_and_not(model: Path) -> tuple[float, float]:
    (ended,), (cut,) = (RewardModelScorer(str(model), with_eos=one)(["1+1="], ["it is 2"]) for one in (True, False))
    return ended, cut


@pytest.mark.whole
def test_a_reward_model_is_padded_with_another_token_and_reads_the_end(stage, workplace: Path) -> None:
    model_copy(workplace / "base", tokenizer_config=SAME)
    code, run = stage("reward", model=["model=local", "model.path=base"])
    assert code == 0
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<pad>", "<eos>")
    assert AutoConfig.from_pretrained(run.model).pad_token_id == tokenizer.pad_token_id
    assert trained_with_eos(run.model) is True
    ended, cut = ended_and_not(run.model)
    assert ended != cut
    tokenizer.pad_token = "<eos>"  # control: the same weights, padded as before
    tokenizer.save_pretrained(run.model)
    ended, cut = ended_and_not(run.model)
    assert ended == cut


def check(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["check", *words, "launch=cpu", "track=none"]) == 0
    return " ".join(capsys.readouterr().out.replace("│", "").split())


def test_check_says_what_is_padded_with_and_what_no_model_can_see(workplace: Path, capsys) -> None:
    model_copy(workplace / "base", tokenizer_config=SAME)
    words = ("+exp=toy_reward", "model=local", "model.path=base")
    assert "trainer.args.pad_token: pads with <pad>" in check(capsys, *words)
    assert "the model never reads it" in check(capsys, *words, "trainer.args.pad_token='<eos>'")
    assert "pad_token" not in check(capsys, *words, "trainer.args.pad_token='<pad>'")
    scorer = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1, "id2label": {"0": "a"}}
    model_copy(workplace / "judge", tokenizer_config=SAME, config=scorer)
    judged = ("+exp=quickstart", "+rewards.judge.model=judge", "rewards.judge.with_eos=true")
    assert "with_eos has no effect, and it cannot tell a cut-off answer" in check(capsys, *judged)
    chat = check(capsys, *judged, "data.prompt=[{role: user, content: '{prompt}'}]")
    assert "its chat template ends every answer, cut off or not" in chat
    assert "with eos" not in chat


def test_which_token_pads_instead(tmp_path: Path) -> None:
    """SmolLM2's first special token is no part of its template; GPT-2 has one special token in all."""
    smol = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
    assert padding_beside("<|im_end|>", smol, "<|im_start|>{{ x }}<|im_end|>") == "<|endoftext|>"
    assert padding_beside("</s>", ["<unk>", "<s>", "</s>", "[PAD]"], None) == "[PAD]"
    assert padding_beside("<|endoftext|>", ["<|endoftext|>"], None) is None
    tokenizer = read_tokenizer(model_copy(tmp_path / "model", tokenizer_config=SAME), where="here")
    assert (tokenizer.unread_end, tokenizer.other_padding) == ("<eos>", "<pad>")
    assert read_tokenizer(model_copy(tmp_path / "other"), where="here").unread_end is None
