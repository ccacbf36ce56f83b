"""A sweep composes each of its jobs once: composing is most of what a command costs before the first job starts."""

from __future__ import annotations

from collections import Counter

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config import compose
from scripts import structure
from tests.support.quick_loader import QuickLoader
from tests.support.small_runs import SMALL

pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, ...]]:
    """How often what was composed, by its overrides in any order."""
    seen: Counter[tuple[str, ...]] = Counter()

    class Counting(QuickLoader):
        def compose(self, config_name, overrides):
            seen[tuple(sorted(overrides))] += 1
            return super().compose(config_name, overrides)

    monkeypatch.setattr(compose, "NotingLoader", Counting)
    return seen


@pytest.mark.parametrize(
    ("words", "num_jobs"),
    [
        (["seed=1,2,3"], 3),
        (["seed=1,2", "rewards.brevity.weight=0,0.5"], 4),
        (["seed=1,2", "trainer.args.max_steps=3"], 2),  # what is swept stands before what is not
        (["+exp=quickstart,toy_ppo"], 2),
        (["rewards.brevity.weight=0,1", "rewards.correct.weight=1"], 2),
    ],
    ids=str,
)
def test_each_job_once(composed: Counter[tuple[str, ...]], words: list[str], num_jobs: int) -> None:
    experiment = [word for word in SMALL if not (words[0].startswith("+exp") and word.startswith("+exp"))]
    assert main(["train", "-m", *experiment, *words, "--dry-run"]) == 0
    assert sorted(composed.values()) == [1] * num_jobs


def test_a_search_composes_its_corners_once(composed: Counter[tuple[str, ...]]) -> None:
    """Two weights between two ends have three corners; what they are is read in the section of a fourth composition."""
    search = ["sweep=weights", "sweep.objective=rewards/correct/mean", "sweep.trials=2", "rewards.correct.weight=1"]
    assert main(["train", "-m", *SMALL, *search, "--dry-run"]) == 0
    assert set(composed.values()) == {1}
    assert len(composed) == 4


def test_the_process_of_a_job_has_nothing_to_compose_with() -> None:
    """It reads the frozen file: whatever composes is out of the reach of what a worker imports."""
    files = structure.file_graph(structure.modules())
    assert "rlhf_cli.config.compose" not in reached(files, "rlhf_cli.jobs.rank_process")
    assert "rlhf_cli.config.compose" in reached(files, "rlhf_cli.cli.verbs.train")


def reached(files: structure.Graph, start: str) -> set[str]:
    """All that a file imports, and what that imports."""
    found, to_see = set(), [start]
    while to_see:
        found.add(one := to_see.pop())
        to_see += [other for other in files.get(one, set()) if other not in found]
    return found
