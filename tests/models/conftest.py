"""A reward model of a few thousand random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.random_reward_model import save_random_reward_model


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one, for the tests of a file to read."""
    folder = tmp_path_factory.mktemp("rm")
    save_random_reward_model(folder)
    return folder
