"""Every toy experiment meets its expectations, and planted regressions miss them: minutes each."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.analysis.verification import MISSED
from rlhf_cli.cli import main
from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.config.schema.run_sections import entries_of
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_status import FINISHED
from scripts.expectations import PROBABILITY, Spread
from scripts.regressions import BY_NAME, run_planted

TOYS = sorted(file.stem for file in (shipped_dir() / "exp").glob("*.yaml") if file.stem.startswith(("toy_", "quick")))
STAGES = {"toy_rlhf": {"toy_sft/one": [], "toy_reward/of_sft": ["model=local", "model.path=run:toy_sft"]}}
"""What an experiment goes on from: a run of another, and the words beside; as its file says."""
Trained = Callable[..., str]


@pytest.mark.parametrize("exp", TOYS)
def test_every_toy_expects_something(exp: str) -> None:
    assert entries_of(prepare([f"+exp={exp}"], keep_run_names=True).experiment.expect)


def test_the_page_has_every_expectation_and_its_derivation() -> None:
    """Each has a row in docs/how-to/expectations.csv, in which the bound is within the limit."""
    with (Path(__file__).parents[3] / "docs" / "how-to" / "expectations.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    told = {(row[0], row[1], row[2], row[-1]) for row in rows if row[0] in TOYS}
    expected = {
        (exp, one.metric, str(one.at), one.bound)
        for exp in TOYS
        for one in entries_of(prepare([f"+exp={exp}"], keep_run_names=True).experiment.expect).values()
    }
    assert told == expected
    assert min(len(TOYS), len(BY_NAME)) >= 10


def test_a_limit_by_hand() -> None:
    """Of 1, 2, 3 the mean is 2 and the deviation 1; t(0.995, 2) is 9.925 in any table, times sqrt(4/3) is 11.460."""
    spread = Spread((1.0, 2.0, 3.0))
    assert (PROBABILITY, spread.mean, spread.deviation) == (0.995, 2.0, 1.0)
    assert spread.reach == pytest.approx(11.460, abs=1e-3)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all tests of this file train in: what one of them has trained another goes on from."""
    return tmp_path_factory.mktemp("toys")


@pytest.fixture
def trained(toys: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """`trained("toy_sft/one", word, ...)`: the folder of that run, which is trained where it is not there yet."""
    monkeypatch.chdir(toys)

    def call(run: str, *words: str) -> str:
        exp, name = run.split("/")
        if not (toys / "runs" / run).is_dir():
            assert main(["train", f"+exp={exp}", *words, f"run.name={name}", "track=none"]) == 0
        return f"runs/{run}"

    return call


@pytest.mark.slow
@pytest.mark.parametrize("exp", TOYS)
def test_a_toy_meets_its_expectations(trained: Trained, exp: str) -> None:
    for run, words in STAGES.get(exp, {}).items():
        trained(run, *words)
    assert main(["verify", trained(f"{exp}/one")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_planted_regression_is_missed(
    toys: Path, monkeypatch: pytest.MonkeyPatch, workplace: Path, name: str
) -> None:
    """Train the planted run to its end, where expectations apply; the test above trains the unchanged experiments."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    verified = run_planted(BY_NAME[name], toys / "planted")
    assert (verified.state, verified.status.state) == (MISSED, FINISHED)
