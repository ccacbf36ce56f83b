"""What to type against holes: tried, counted, and never said where it closes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_cli.analysis.audit.attack import AuditPlan, attack
from rlhf_cli.analysis.audit.audit_result import HINTS, AuditResult, with_advice
from rlhf_cli.analysis.audit.degenerate_answers import KINDS
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.jobs.prepare import prepare
from tests.support.planted_holes import SUMS

HOLES = "tests.support.planted_holes"
pytestmark = pytest.mark.usefixtures("place")


def experiment() -> Experiment:
    """Brevity pays more for nothing than the right answer gets: empty and tags_only beat it."""
    rewards = [f"rewards.right={{fn: '{HOLES}:right_sum', weight: 0.3}}", f"rewards.short.fn={HOLES}:brevity"]
    return prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment


def audit() -> AuditResult:
    return attack(experiment(), AuditPlan(SUMS), left_out={})


def test_the_first_words_that_close_all_are_taken() -> None:
    found, tried = audit(), []

    def retry(words: tuple[str, ...], names: tuple[str, ...]) -> AuditResult:
        tried.append(words)
        return replace(found, kinds=())

    (advice,) = with_advice(found, experiment(), retry).advice
    assert found.holes
    assert tried == [("rewards.short.gate={by: right, at_least: 1}",)]
    assert (advice.words, advice.closes) == (tried[0], len(found.holes) + len(found.near))


def test_words_that_close_nothing_or_are_refused_are_not_said() -> None:
    found = audit()
    (advice,) = with_advice(found, experiment(), lambda words, names: found).advice
    assert (advice.words, advice.closes) == ((), None)
    assert advice.reason.startswith("nothing in the configuration closes it: ")

    def refused(words: tuple[str, ...], names: tuple[str, ...]) -> AuditResult:
        raise ConfigError("no")

    assert with_advice(found, experiment(), refused).advice[0].words == ()


def test_where_trying_costs_too_much_it_is_said_untried() -> None:
    (advice,) = with_advice(audit(), experiment(), None).advice
    assert (advice.words, advice.closes) == (("rewards.short.gate={by: right, at_least: 1}",), None)


def test_there_is_a_hint_for_every_kind() -> None:
    assert list(HINTS.keys() ^ {kind.name for kind in KINDS}) == []
