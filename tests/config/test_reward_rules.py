"""Rules about rewards: what a gate may read, what a reward may say, where dense rewards mean something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.jobs.prepare import prepare

pytestmark = pytest.mark.usefixtures("place")
Judged = Callable[..., Experiment]
Refused = Callable[..., ConfigError]

QUICK = "exp=quickstart"  # rewards: correct, format, brevity


class TestGates:
    @pytest.mark.parametrize(
        ("gate", "hint"),
        [
            ("{by: fromat, at_least: 1}", "rewards.brevity.gate.by=format"),
            ("[{by: correct, at_least: 1}, {by: fromat, at_least: 1}]", "format"),
        ],
    )
    def test_an_unknown_name_gets_the_nearest(self, refused: Refused, gate: str, hint: str) -> None:
        error = refused(QUICK, f"rewards.brevity.gate={gate}")
        assert error.what == "a gate reads a reward 'fromat' that does not exist"
        assert str(error.where).startswith("rewards.brevity.gate")
        assert error.hint == hint

    def test_a_key_of_a_list_is_told_without_a_traceback(self, refused: Refused) -> None:
        gates = "rewards.brevity.gate=[{by: correct, at_least: 1}, {by: format, at_least: 1}]"
        error = refused(QUICK, gates, "rewards.brevity.gate.by=format")
        assert "the entries of a list are numbered" in str(error.expected)

    def test_a_name_like_none_gets_no_guess(self, refused: Refused) -> None:
        assert refused(QUICK, "rewards.brevity.gate={by: xyzzy, at_least: 1}").hint is None

    def test_on_itself(self, refused: Refused) -> None:
        error = refused(QUICK, "rewards.brevity.gate={by: brevity, at_least: 1}")
        assert error.what == "reward 'brevity' is gated by itself"
        assert error.where == "rewards.brevity.gate (command line)"

    @pytest.mark.parametrize("test", ["at_least: 1", "at_most: 1", "equals: 1", "between: [0, 1]", "at_least: -2.5"])
    def test_good_ones(self, judged: Judged, test: str) -> None:
        (gate,) = judged(QUICK, f"rewards.brevity.gate={{by: correct, {test}}}").rewards["brevity"].gates
        assert gate.by == "correct"

    @pytest.mark.parametrize("test", ["", ", at_least: 1, equals: 1", ", between: [1, 0]"])
    def test_bad_ones(self, test: str) -> None:
        with pytest.raises(ConfigError, match=r"rewards\.brevity"):
            prepare([QUICK, f"rewards.brevity.gate={{by: correct{test}}}"], keep_run_names=True)


class TestOneReward:
    @pytest.mark.parametrize(
        "rules",
        [
            {"weight": -0.5},
            {"weight": 0},
            {"weight": "{start: 0, end: 1, steps: 500}"},
            {"weight": "{start: 1, end: 0, fraction: 0.3, shape: cosine}"},
            {"clip": "[-2, 2]"},
            {"normalize": "running"},
            {"on_error": "exclude"},
            {"on_error": 0.5},
            {"on_error": -1},
            {"timeout_s": 3},
            {"isolate": "true"},
        ],
        ids=str,
    )
    def test_good(self, judged: Judged, rules: dict[str, Any]) -> None:
        assert judged(QUICK, *(f"rewards.brevity.{key}={value}" for key, value in rules.items()))

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("weight", "{start: 0, end: 1}"),
            ("weight", "{start: 0, end: 1, steps: 5, fraction: 0.5}"),
            ("weight", "{start: 0, end: 1, steps: 0}"),
            ("weight", "{start: 0, end: 1, fraction: 1.5}"),
            ("weight", "{start: 0, end: 1, steps: 5, shape: square}"),
            ("clip", "[2, -2]"),
            ("clip", "3"),
            ("clip", "[1]"),
            ("normalize", "centre"),
            ("on_error", "ignore"),
            ("timeout_s", "0"),
            ("timeout_s", "-1"),
            ("spread", "first"),
            ("batch_size", "0"),
        ],
    )
    def test_bad(self, key: str, value: str) -> None:
        with pytest.raises(ConfigError, match=r"rewards\.brevity"):
            prepare([QUICK, f"rewards.brevity.{key}={value}"], keep_run_names=True)

    def test_what_a_time_may_be_is_said_whole(self, refused: Refused, judged: Judged) -> None:
        error = refused(QUICK, "rewards.brevity.timeout_s=soon")
        assert error.expected == "number, or 'auto' or 'off'"
        for typed, read in (("auto", "auto"), ("off", "off"), ("null", "off"), ("3", 3.0)):
            assert judged(QUICK, f"rewards.brevity.timeout_s={typed}").rewards["brevity"].timeout_s == read

    def test_a_model_is_not_isolated(self, refused: Refused) -> None:
        error = refused(QUICK, "~rewards.brevity", "+rewards.rm={model: a/b, isolate: true}")
        assert "isolate" in str(error)


class TestDense:
    def test_grpo_takes_it(self, judged: Judged) -> None:
        assert judged(QUICK, "trainer.dense=true").trainer.dense
        assert judged(QUICK, "trainer.dense=true", "trainer.args.loss_type=dapo").trainer.dense

    def test_rloo_is_refused_by_name(self, refused: Refused) -> None:
        error = refused(QUICK, "trainer=rloo", "trainer.dense=true")
        assert error.what == "trainer=rloo cannot use per-token advantages"
        assert error.got == "its loss is per sequence"
        assert error.where == "trainer.dense (command line)"

    @pytest.mark.parametrize(
        ("typed", "what"),
        [
            ("trainer.args.importance_sampling_level=sequence", "trainer.dense means nothing under"),
            ("trainer.args.loss_type=luspo", "trainer.dense means nothing under loss_type=luspo"),
            ("trainer.args.off_policy_mask_threshold=0.5", "trainer.dense and an off-policy mask do not go together"),
            ("aggregate=normalize_then_sum", "trainer.dense sums the rewards token by token"),
            ("aggregate=./mine.py:product", "trainer.dense sums the rewards token by token"),
        ],
    )
    def test_what_it_does_not_go_with(self, refused: Refused, judged: Judged, typed: str, what: str) -> None:
        assert refused(QUICK, "trainer.dense=true", typed).what.startswith(what)
        assert judged(QUICK, typed)  # negative control


def test_a_part_of_a_reward_of_nearly_that_name(refused: Refused) -> None:
    error = refused("exp=quickstart", "rewards.brevty.weight=1")
    assert error.where == "rewards.brevty (command line)"
    assert error.hint == "rewards.brevity.weight"
