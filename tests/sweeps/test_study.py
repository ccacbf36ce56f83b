"""The memory of a search: what it proposes is better than chance, what it stops is worse, and a stop loses nothing."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from rlhf_cli.config.schema.launch_sections import Sweep
from rlhf_cli.sweeps.search import SearchStudy
from rlhf_cli.sweeps.search_space import NumberRange, Space, read_objective

SPACE: Space = {"w": NumberRange(0.0, 1.0)}
BEST = 0.3


def memory(
    folder: Path, *, objective: str = "m", space: Space = SPACE, seed: int = 0, **section: object
) -> SearchStudy:
    """Return a memory of a search for `objective`, or for several that a comma separates."""
    objectives = [read_objective(text) for text in objective.split(",")]
    sweep = Sweep.model_validate({"objective": objective.split(","), **section})
    return SearchStudy(folder, sweep, objectives, space, seed=0)


def proposed(search: SearchStudy, *, less_is_better: bool = False) -> tuple[int, float]:
    asked = search.ask()
    value = float(asked.words[0].removeprefix("w="))
    distance = abs(value - BEST)
    search.tell(asked.number, [distance if less_is_better else -distance])
    return asked.number, value


@pytest.mark.parametrize("objective", ["m", "-m"])
def test_the_late_proposals_are_nearer_to_the_best_than_chance(tmp_path: Path, objective: str) -> None:
    """Uniform proposals lie (0.3² + 0.7²) / 2 = 0.29 from 0.3 on average, with a deviation of 0.2: the mean of 15 is
    below half of that by luck three times in a thousand.
    """
    search = memory(tmp_path, objective=objective)
    values = [proposed(search, less_is_better=objective == "-m")[1] for _ in range(30)]
    assert fmean(abs(value - BEST) for value in values[15:]) < 0.29 / 2
    (best,) = search.best()
    assert float(best.words[0].removeprefix("w=")) == min(values, key=lambda value: abs(value - BEST))


def test_a_search_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    first = memory(tmp_path)
    told = [proposed(first)[1] for _ in range(3)]
    left = first.ask()
    first.belongs_to(left.number, "trial=3")

    second = memory(tmp_path)
    trials = second.trials()
    assert [trial.state for trial in trials] == ["complete"] * 3 + ["running"]
    assert [float(trial.words[0].removeprefix("w=")) for trial in trials[:3]] == told
    assert trials[3].job == "trial=3"
    assert trials[3].words == left.words
    second.tell(left.number, [-0.5])
    assert second.trials()[3].values == (-0.5,)
    again = second.ask()
    assert again.number == 4
    assert float(again.words[0].removeprefix("w=")) not in told  # other random numbers than at the start


def test_several_objectives_end_in_a_front(tmp_path: Path) -> None:
    """Of (1, 1), (2, 3), (0, 0) and (3, 2), more of the first and less of the second is better: (2, 3) loses to (3, 2).

    (1, 1) and (0, 0) have less of the first and less of the second than (3, 2), so all three stay.
    """
    search = memory(tmp_path, objective="m,-n")
    for values in ((1.0, 1.0), (2.0, 3.0), (0.0, 0.0), (3.0, 2.0)):
        search.tell(search.ask().number, values)
    assert sorted(trial.values for trial in search.best()) == [(0.0, 0.0), (1.0, 1.0), (3.0, 2.0)]


@pytest.mark.parametrize(("prune", "stopped"), [("halving", True), ("median", True), ("off", False)])
def test_a_trial_that_does_worse_than_the_others_is_stopped(tmp_path: Path, prune: str, stopped: bool) -> None:
    search = memory(tmp_path, prune=prune)
    for value in (1.0, 0.9, 0.8, 0.95, 0.85, 0.7):
        number = search.ask().number
        for percent in (12, 34, 100):
            search.report(number, percent, value)
        search.tell(number, [value])
    bad = search.ask().number
    assert search.report(bad, 5, 0.0) is False  # nothing is stopped before the first rung
    assert search.report(bad, 34, 0.0) is stopped
    good = search.ask().number
    assert search.report(good, 34, 2.0) is False
