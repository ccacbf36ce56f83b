"""Which mode bootstrapping gets: the one that the rewards want, unless another is asked for, and then it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.expand import is_dense, truncation_warnings
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward

Judged = Callable[..., Experiment]

PPO = ("exp=quickstart", "trainer=ppo", "truncation=bootstrap", "~rewards")
PLAIN = "+rewards.plain.fn=./mine.py:plain"
DENSE = "+rewards.dense.fn=./mine.py:tokens"
SOURCE = """
from collections.abc import Sequence


def plain(completions, **kwargs) -> list[float | None]: ...
def unsaid(completions, **kwargs): ...
def tokens(completions, **kwargs) -> list[list[float | None]]: ...
def spans(completions, **kwargs) -> Sequence[list[Span] | float | None]: ...
def quoted(completions, **kwargs) -> "list[list[float]]": ...
def prose(completions, **kwargs) -> "a list of scores": ...
async def later(completions, **kwargs) -> list[list[tuple[int, int, float]] | None]: ...
raise RuntimeError("nobody imports this file to look at it")
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ((PLAIN,), "replace"),
        ((DENSE,), "add"),
        ((DENSE, PLAIN), "replace"),
        ((DENSE, PLAIN, "rewards.plain.weight=0"), "add"),
        ((DENSE, "trainer.dense=false"), "add"),
        (("+rewards.judge.model=org/judge",), "replace"),
        ((PLAIN, "truncation.mode=add"), "add"),
        ((DENSE, "truncation.mode=replace"), "replace"),
    ],
)
def test_bootstraps_mode_is_the_one_the_rewards_want(judged: Judged, words: tuple[str, ...], mode: str) -> None:
    assert judged(*PPO, *words).truncation.mode == mode


@pytest.mark.parametrize(
    ("name", "expected"),
    [("plain", False), ("unsaid", False), ("prose", False), ("nothere", False)]
    + [(name, True) for name in ("tokens", "spans", "quoted", "later")],
)
def test_a_function_says_by_its_annotation_that_it_is_dense(name: str, expected: bool) -> None:
    assert is_dense(Reward(fn=f"./mine.py:{name}")) is expected
    assert is_dense(Reward(fn=f"./mine.py:{name}", spread="even"))


def test_shipped_rewards() -> None:
    assert is_dense(Reward(fn="rlhf_cli.rewards.toy:speakers_larger"))
    assert not is_dense(Reward(fn="rlhf_cli.rewards.toy:sums_correct"))
    assert not is_dense(Reward(fn="json:dumps"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((PLAIN, "truncation.mode=add"), "a score of the whole answer (plain)"),
        ((DENSE, PLAIN, "truncation.mode=add"), "a score of the whole answer (plain)"),
        ((DENSE, "truncation.mode=replace"), "every reward is dense"),
        ((PLAIN,), None),
        ((DENSE,), None),
        ((PLAIN, "truncation.mode=replace"), None),
        ((PLAIN, "truncation=none"), None),
        ((PLAIN, "truncation=eos_penalty", "truncation.mode=replace"), None),
    ],
)
def test_a_mode_that_contradicts_the_rewards_is_warned_of(judged: Judged, words, said: str | None) -> None:
    warnings = list(truncation_warnings(judged(*PPO, *words)))
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]
