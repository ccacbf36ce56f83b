"""A search from what is typed to what it has found, and what is refused before the first trial."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.sweeps.search_space import NumberRange, search_plan
from tests.support.small_runs import SMALL

OBJECTIVE = "sweep.objective=rewards/correct/mean"
SEARCH = ["sweep=weights", OBJECTIVE, "sweep.trials=2", "rewards.correct.weight=1"]


def test_two_trials_are_two_runs_and_the_better_is_named(workplace: Path, sweep, capsys) -> None:
    code, runs = sweep(*SEARCH, "-j", "2")
    assert code == 0
    assert [run.path.name.partition(",")[0] for run in runs] == ["trial=0", "trial=1"]
    assert [read_status(run).state for run in runs] == ["finished"] * 2
    said = capsys.readouterr().out
    assert "search for more rewards/correct/mean" in said
    assert "★ the best; 2 complete" in said
    again = next(line for line in said.splitlines() if line.strip().startswith("rlhf train -m"))
    assert "rewards.correct.weight=1" in again
    assert "run.name" not in again
    folder = runs[0].path.parent
    assert (folder / "report.html").is_file()
    assert json.loads((folder / "sweep.json").read_text())["swept"] == [
        "rewards.format.weight",
        "rewards.brevity.weight",
    ]
    assert main(["resume", str(folder)]) == 0
    assert "2 complete" in capsys.readouterr().out
    assert main(["resume", str(folder), "--failed"]) == 2
    assert "proposes something else" in capsys.readouterr().err


def test_what_is_typed_as_an_interval_is_searched_beside_the_section(place: Path) -> None:
    plan = search_plan([*SMALL, *SEARCH, "trainer.args.learning_rate=tag(log,interval(1e-5,1e-3))"])
    assert plan is not None
    assert list(plan.space) == ["rewards.format.weight", "rewards.brevity.weight", "trainer.args.learning_rate"]
    assert plan.space["trainer.args.learning_rate"] == NumberRange(1e-5, 1e-3, is_log=True)
    assert [word for word in plan.fixed if "sweep" in word] == []
    assert len(plan.corners()) == 4  # all at their first end, then each of the three at its other


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*SEARCH, "seed=1,2"], "the best seed is luck"),
        (["sweep=weights", "sweep.objective=reward"], "the search itself changes"),
        (["sweep=weights", "sweep.objective=rewards/corect/mean"], "sweep.objective=rewards/correct/mean"),
        (["sweep=weights", "sweep.objective=[loss,-kl]", "sweep.prune=median"], "by one objective alone"),
        ([*SEARCH, "rewards.format.weight=1", "rewards.brevity.weight=1"], "a search that may set nothing"),
        ([*SEARCH, "trainer.args.lerning_rate=interval(0,1)"], "trainer.args.learning_rate"),
        ([*SEARCH, "launch=slurm"], "to wait for its trials"),
        (["rewards.format.weight=interval(0,1)"], "sweep=weights"),
    ],
)
def test_what_is_wrong_is_told_before_the_first_trial(
    workplace: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["train", "-m", *SMALL, *words]) == 2
    said = capsys.readouterr().err
    assert says in " ".join(said.split())
    assert not (workplace / "runs").exists()
