"""An empty working folder, and a fixture that returns the error of a refused experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.errors import Problems, UserError
from tests.support.planning import Refused, planned


@pytest.fixture(autouse=True)
def workplace(place: Path) -> Path:
    """An empty folder."""
    return place


@pytest.fixture
def refused() -> Refused:
    """`refused("exp=quickstart", ...)`: the one UserError it ends in."""

    def call(*words: str) -> UserError:
        with pytest.raises(UserError) as caught:
            planned(*words)
        assert not isinstance(caught.value, Problems), str(caught.value)
        assert caught.value.exit_code == 2
        return caught.value

    return call
