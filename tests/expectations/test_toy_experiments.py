"""Every toy experiment comes to what it expects, and planted regressions are told: minutes each."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.config.schema.expect_section import expectations_of
from rlhf_cli.jobs.prepare import prepare
from scripts.expectations import PROBABILITY, Spread
from scripts.regressions.__main__ import has_told, run_planted
from scripts.regressions.plants import BY_NAME

TOYS = sorted(file.stem for file in (shipped_dir() / "exp").glob("*.yaml") if file.stem.startswith(("toy_", "quick")))
STAGES = {
    "toy_rlhf": [["+exp=toy_sft"], ["+exp=toy_reward", "model=local", "model.path=run:toy_sft"]],
}
"""What an experiment goes on from."""


def test_there_are_toys() -> None:
    assert len(TOYS) >= 10


@pytest.mark.parametrize("exp", TOYS)
def test_every_toy_expects_something(exp: str) -> None:
    assert expectations_of(prepare([f"+exp={exp}"], keep_run_names=True).experiment.expect)


def test_the_page_has_every_expectation_and_its_derivation() -> None:
    """A row of docs/expectations.md for each, in which the limit leaves the bound room."""
    text = (Path(__file__).parents[2] / "docs" / "expectations.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")
    ]
    told = {(row[0], row[1], row[2], row[-1]) for row in rows if row[0] in TOYS}
    expected = {
        (exp, one.metric, str(one.at), one.bound)
        for exp in TOYS
        for one in expectations_of(prepare([f"+exp={exp}"], keep_run_names=True).experiment.expect).values()
    }
    assert told == expected


def test_a_limit_by_hand() -> None:
    """Of 1, 2, 3 the mean is 2 and the deviation 1; t(0.995, 2) is 9.925 in any table, times sqrt(4/3) is 11.460."""
    spread = Spread((1.0, 2.0, 3.0))
    assert PROBABILITY == 0.995
    assert (spread.mean, spread.deviation) == (2.0, 1.0)
    assert spread.reach == pytest.approx(11.460, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("exp", TOYS)
def test_a_toy_comes_to_what_it_expects(workplace: Path, exp: str) -> None:
    for words in STAGES.get(exp, []):
        assert main(["train", *words, "track=none"]) == 0
    assert main(["train", f"+exp={exp}", "run.name=one", "track=none"]) == 0
    assert main(["verify", f"runs/{exp}/one"]) == 0


@pytest.mark.slow
def test_nine_of_ten_regressions_are_told(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    told = {name: has_told(run_planted(plant, workplace / "planted")) for name, plant in BY_NAME.items()}
    assert len(told) >= 10
    assert sum(told.values()) >= 0.9 * len(told), told
