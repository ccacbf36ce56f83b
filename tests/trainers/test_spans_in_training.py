"""Spans need the trainer's tokenizer: the stack is given it, and reads completions as TRL shows them to rewards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.trainers.reward_mixin import RewardMixin
from tests.support.tolerances import ARITHMETIC

REWARD = """
def halves(completions, **kwargs):
    return [[(0, 1, 0.5), (len(text) - 1, len(text), 0.25)] if text else [] for text in completions]
"""


def test_a_reward_of_spans(train, workplace: Path) -> None:
    """Every row with a text is worth 3/4, one without nothing."""
    (workplace / "spans.py").write_text(REWARD)
    drop = ["~rewards.correct", "~rewards.format", "~rewards.brevity"]
    code, folder = train("trainer=rloo", *drop, "++rewards.halves={fn: './spans.py:halves'}")
    assert code == 0
    _, means = series(read_metrics(folder.metrics), "rewards/halves/mean")
    assert len(means) == 3
    assert all(0.0 < mean <= 0.75 + ARITHMETIC["abs"] for mean in means)


def test_the_tokenizer_leaves_out_what_is_no_text() -> None:
    """As in the completions that rewards are shown: a special token is no character of theirs."""

    class Alone(RewardMixin):
        def __init__(self) -> None:
            self.processing_class: Any = SimpleNamespace(decode=self.decoded)

        def decoded(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
            assert isinstance(ids, list)
            return "".join("</s>" if one == 0 else chr(one) for one in ids if one or not skip_special_tokens)

    assert Alone()._decode((97, 98, 0)) == "ab"
