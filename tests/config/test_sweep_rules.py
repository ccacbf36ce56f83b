"""What a search is to find: refused before its first trial where no run could log it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.errors import ConfigError

pytestmark = pytest.mark.usefixtures("place")
Refused = Callable[..., ConfigError]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("corect", "correct"), ("-rewards/format/maen", "-rewards/format/mean"), ("kl", None), ("eval_loss", "loss")],
)
def test_an_objective_that_no_run_can_log(refused: Refused, typed: str, hint: str | None) -> None:
    error = refused("exp=quickstart", "sweep=weights", f"sweep.objective={typed}")
    assert error.what.startswith(f"no run of this experiment logs {typed.removeprefix('-')}")
    assert error.hint == (None if hint is None else f"sweep.objective={hint}")
