"""Two processes learn what one does, in every kind of trainer: replayed completions, and the same rows of data."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.runs.run_folder import RunFolder
from tests.support.as_many_processes import PARTS, largest_difference, run_both, weights


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> dict[int, dict[str, RunFolder]]:
    """Number of processes -> trainer -> its finished run."""
    place = tmp_path_factory.mktemp("processes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("RLHF_CACHE", str(model_cache))
        return run_both(place)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), PARTS)
def test_two_processes_end_where_one_does(folders, name: str, part: str) -> None:
    """Half of the rows each, and the mean of their gradients: the same weights but for rounding."""
    alone, together = (weights(folders[count][name], part) for count in (1, 2))
    assert largest_difference(alone, together) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("part", ["model", "critic"])
def test_where_a_round_is_split_trl_s_shuffle_makes_other_minibatches_of_it(folders, part: str) -> None:
    """Each process shuffles its own rows. `dealt` differs in that alone, and is the same by one and by two."""
    alone, together = (weights(folders[count]["shuffled"], part) for count in (1, 2))
    assert 1e-4 < largest_difference(alone, together) < 0.1


@pytest.mark.slow
def test_control_another_run_ends_elsewhere(folders) -> None:
    """Compare two trainers that start with the same weights and the same completions."""
    dense, row = (weights(folders[1][name], "model") for name in ("dense", "row"))
    assert largest_difference(dense, row) > 1e-3
