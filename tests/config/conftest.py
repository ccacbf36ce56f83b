"""Shared by the tests of the configuration: compose and judge what a user types."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.config.compose import compose
from rlhf_cli.config.judge import judge
from rlhf_cli.config.schema import Experiment
from rlhf_cli.errors import ConfigError, Problems


@pytest.fixture
def judged() -> Callable[..., Experiment]:
    """`judged("+exp=quickstart", "seed=3")`: the experiment."""
    return lambda *words: judge(compose(list(words)))


@pytest.fixture
def refused() -> Callable[..., ConfigError]:
    """`refused("+exp=quickstart", "sed=3")`: the one error that composing or judging ends in."""

    def call(*words: str) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            judge(compose(list(words)))
        assert not isinstance(caught.value, Problems), str(caught.value)
        return caught.value

    return call
