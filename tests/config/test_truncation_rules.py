"""Rules about truncation: which keys a policy reads, which trainer can honour it, and which mode bootstrapping gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.config.expand import is_dense, truncation_warnings
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.truncation import POLICIES
from tests.support.planning import Judged, Refused

pytestmark = pytest.mark.usefixtures("place")

QUICK = "exp=quickstart"  # max_completion_length 16


def test_bootstrap_needs_a_critic(refused: Refused, judged: Judged) -> None:
    assert judged(QUICK, "trainer=ppo", "truncation=bootstrap").truncation.policy == "bootstrap"
    for trainer in ("grpo", "rloo"):
        error = refused(QUICK, f"trainer={trainer}", "truncation=bootstrap")
        assert error.where == "truncation.policy (truncation/bootstrap.yaml:2)"
        assert error.expected == f"one of {', '.join(name for name, rule in POLICIES.items() if not rule.needs_critic)}"
        assert error.hint == "trainer=ppo, or truncation=eos_penalty"


@pytest.mark.parametrize(
    ("policy", "typed", "expected"),
    [
        ("none", "penalty=2", "eos_penalty or soft_overlong, which read it"),
        ("soft_overlong", "mode=replace", "eos_penalty or bootstrap, which read it"),
        ("eos_penalty", "cache=4", "soft_overlong, which reads it"),
    ],
)
def test_a_key_that_the_policy_does_not_read(refused: Refused, policy: str, typed: str, expected: str) -> None:
    """Even where it is given its default: who wrote it thinks that it does something."""
    key = f"truncation.{typed.partition('=')[0]}"
    error = refused(QUICK, f"truncation={policy}", f"truncation.{typed}")
    assert error.where == f"{key} (command line)"
    assert (error.got, error.expected) == (f"truncation.policy={policy}", expected)
    assert str(error.hint).startswith(f"truncation={policy}, or truncation=")


def test_the_ramp_is_shorter_than_a_completion(refused: Refused, judged: Judged) -> None:
    soft = (QUICK, "truncation=soft_overlong")
    assert judged(*soft, "truncation.cache=15").truncation.cache == 15
    for cache in (16, 17):
        error = refused(*soft, f"truncation.cache={cache}")
        assert error.where == "truncation.cache (command line)"
        assert error.expected == "below 16"
    assert refused(*soft, "truncation.cache=0").where == "truncation.cache (command line)"
    default = (*soft, "~trainer.args.max_completion_length")
    assert judged(*default, "truncation.cache=511")  # TRL's limit is 512
    assert refused(*default, "truncation.cache=512").expected == "below 512"


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
def mine(place: Path) -> None:
    (place / "mine.py").write_text(SOURCE)


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ((PLAIN,), "replace"),
        ((DENSE,), "add"),
        ((DENSE, PLAIN), "replace"),
        ((DENSE, PLAIN, "rewards.plain.weight=0"), "add"),
        ((DENSE, PLAIN, "rewards.plain.weight={start: 0, end: 0, steps: 5}"), "add"),
        ((DENSE, PLAIN, "rewards.plain.weight={start: 0, end: 1, steps: 5}"), "replace"),
        (("+rewards.judge.model=org/judge",), "replace"),
        ((PLAIN, "truncation.mode=add"), "add"),
        ((DENSE, "truncation.mode=replace"), "replace"),
    ],
)
def test_bootstraps_mode_follows_from_the_rewards(judged: Judged, words: tuple[str, ...], mode: str) -> None:
    assert judged(*PPO, *words).truncation.mode == mode


@pytest.mark.parametrize(
    ("name", "expected"),
    [("plain", False), ("unsaid", False), ("prose", False), ("nothere", False)]
    + [(name, True) for name in ("tokens", "spans", "quoted", "later")],
)
def test_an_annotation_marks_a_dense_function(name: str, expected: bool) -> None:
    assert is_dense(Reward(fn=f"./mine.py:{name}")) is expected
    assert is_dense(Reward(fn=f"./mine.py:{name}", spread="even"))


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ((PLAIN, "truncation.mode=add"), "truncation.mode=replace"),
        ((DENSE, "truncation.mode=replace"), "truncation.mode=add"),
        ((PLAIN,), None),
        ((PLAIN, "truncation.mode=replace"), None),
    ],
)
def test_a_mode_that_does_not_fit_the_rewards_gives_a_warning(judged: Judged, words, advice: str | None) -> None:
    warnings = list(truncation_warnings(judged(*PPO, *words)))
    assert [f"; {advice} (" in warning for warning in warnings] == [True] * (advice is not None)
