"""Prompts as the model sees them: those that TRL's rollouts would be given, special tokens in their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.evaluation.audit.trial import after_truncation
from rlhf_cli.models.tiny import byte_tokenizer
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from rlhf_cli.trainers.assemble.tried_rows import prompts_seen

TEMPLATE = (
    "{% for message in messages %}<eos>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<eos>assistant:{% if brief %} (brief){% endif %}{% endif %}"
)
CHAT = [{"role": "user", "content": "Grüße"}]
WORDS = ["trainer=grpo", "data=toy_sums", "reward@rewards.right=sums_correct"]


@pytest.fixture
def folder(place: Path) -> Path:
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(place / "policy")
    return place / "policy"


def test_a_conversation_is_rendered_and_its_special_tokens_are_known(folder: Path) -> None:
    """Grüße is seven bytes. The template's two <eos> are one token each, and no text."""
    experiment = prepare([*WORDS, f"model.path={folder}", "model.build=null"]).experiment
    (seen,) = prompts_seen(experiment, [CHAT, CHAT], shown=1).prompts
    assert seen.text == "<eos>user: Grüße\n<eos>assistant:"
    assert seen.tokens == 2 + len("user: \nassistant:") + 7


def test_lengths(place: Path) -> None:
    """Of 1, 2, 3, 4 and 5 bytes: the median 3, a quarter below 2."""
    experiment = prepare([*WORDS, "model=tiny"]).experiment
    seen = prompts_seen(experiment, ["x" * n for n in (1, 2, 3, 4, 5)], shown=0, answers=["12", "3456"])
    prompts, answers = seen.lengths
    assert (prompts.count, *(prompts.quantiles[share] for share in ("0.5", "0.25", "1"))) == (5, 3, 2, 5)
    assert (answers.of, answers.quantiles["0.5"]) == ("right answers", 3)
    assert seen.prompts == []


class TestCutOff:
    def totals(self, *words: str, is_cut: bool = True) -> float | None:
        experiment = prepare([*WORDS, "model=tiny", *words]).experiment
        reward = ScoredReward(raw=2.0, effective=2.0, weighted=2.0, open=True, error=None)
        (row,) = after_truncation(experiment, [ScoredRow(2.0, {"right": reward})], ["x" * 14], [is_cut], 16)
        return row.total

    def test_every_policy_by_hand(self, place: Path) -> None:
        """Of 2: less a penalty of 0.5; replaced by -0.5; no total; nothing taken. The ramp's last 8 of 16 tokens: 14
        are 6 of 8 on their way to -1, and an answer that was cut has all 16.
        """
        penalty = ("truncation=eos_penalty", "truncation.penalty=0.5")
        assert self.totals(*penalty) == 1.5
        assert self.totals(*penalty, is_cut=False) == 2.0
        assert self.totals(*penalty, "truncation.mode=replace") == -0.5
        assert self.totals("truncation=exclude") is None
        assert self.totals("truncation=none") == 2.0
        ramp = ("truncation=soft_overlong", "truncation.penalty=1.0", "truncation.cache=8")
        ramp = (*ramp, "trainer.args.max_completion_length=16")
        assert self.totals(*ramp, is_cut=False) == pytest.approx(2.0 - 6 / 8)
        assert self.totals(*ramp) == pytest.approx(1.0)
