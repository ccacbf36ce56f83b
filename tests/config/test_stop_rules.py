"""`stop` is checked before a run: its grammar, and whether anybody logs the metric it waits for."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import UserError
from rlhf_cli.jobs.prepare import prepare


def refused(*words: str, exp: str = "quickstart") -> UserError:
    with pytest.raises(UserError) as caught:
        prepare([f"+exp={exp}", *words])
    return caught.value


@pytest.mark.parametrize(
    "words",
    [
        ["stop.when=reward > 0.9", "stop.for=3"],
        ['stop={when: "correct >= 0.9", for: 3}'],
        ["stop.when=total>1"],
        ["stop.when=step >= 20"],
        ["stop.when=rewards/format/open_fraction < 0.1"],
        ["stop.when=rewards/correlation/correct/format > 0.99"],
        ["stop.when=rewards/truncation/fraction > 0.9"],
        ["stop.when=kl > 0.5", "trainer.args.beta=0.1"],
        ["stop.when=a_metric_of_my_own > 1"],
        ['stop=[{when: "entropy < 0.01"}, {when: "correct > 0.9", for: 2}]'],
        ['stop={solved: {when: "correct > 0.9"}, far: {when: "entropy < 0.01"}}'],
        ["stop.when=eval_greedy/total > 1", "trainer.args.eval_strategy=epoch", "data.eval.fraction=0.1"],
        ["stop=off"],
        [],
    ],
)
def test_accepted(words: list[str]) -> None:
    stop = prepare(["+exp=quickstart", *words]).experiment.stop
    assert (stop is None) == (words in ([], ["stop=off"]))


@pytest.mark.parametrize(
    "metric", ["kl/k1_policy_ref", "ppo/value_loss", "critic/grad_norm", "rewards/value/advantage_share"]
)
def test_what_only_a_critic_logs(metric: str) -> None:
    assert prepare(["+exp=toy_ppo", f"stop.when={metric} > 1"]).experiment.stop is not None
    assert "log" in refused(f"stop.when={metric} > 1").what


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("corect", "correct > 1"),
        ("rewrd", "reward > 1"),
        ("rewards/corect/mean", "rewards/correct/mean > 1"),
        ("rewards/correct/maen", "rewards/correct/mean > 1"),
        ("completions/mean_lenght", "completions/mean_length > 1"),
        ("kl", None),
        ("rewards/correlation/correct/brevty", None),
        ("eval_reward", None),
    ],
)
def test_a_metric_that_nobody_logs(metric: str, hint: str | None) -> None:
    error = refused(f"stop.when={metric} > 1")
    assert repr(metric) in error.what
    assert error.where == "stop.when (command line)"
    if hint is not None:
        assert error.hint == f"'stop.when={hint}'"


def test_a_trainer_without_rewards_has_none_to_name() -> None:
    assert prepare(["+exp=toy_dpo", "stop.when=rewards/accuracies > 0.9"]).experiment.stop is not None
    assert "does not log it" in refused("stop.when=reward > 0.9", exp="toy_dpo").what


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("stop.when=reward", "METRIC, then one of"),
        ("stop.when=reward == 3", "METRIC, then one of"),
        ('stop={when: "reward > 1", for: 0}', "greater than 0"),
        ('stop={whn: "reward > 1"}', "one of for, when"),
        ("stop=3", "{when: METRIC > NUMBER"),
    ],
)
def test_what_is_no_rule(word: str, expected: str) -> None:
    assert expected in str(refused(word).expected)
