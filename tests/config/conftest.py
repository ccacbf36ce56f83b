"""Shared by the tests of the configuration: compose and judge what a user types."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, Problems
from rlhf_cli.plan.prepare import prepare


@pytest.fixture
def judged() -> Callable[..., Experiment]:
    """`judged("+exp=quickstart", "seed=3")`: the experiment."""
    return lambda *words: prepare(list(words), keep_run_names=True).experiment


@pytest.fixture
def refused() -> Callable[..., ConfigError]:
    """`refused("+exp=quickstart", "sed=3")`: the one error that composing or judging ends in."""

    def call(*words: str) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            prepare(list(words), keep_run_names=True)
        assert not isinstance(caught.value, Problems), str(caught.value)
        return caught.value

    return call
