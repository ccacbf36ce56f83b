"""`rlhf show`: sections, changed values, runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.cli import main
from tests.support.begun_runs import begun

Said = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("place")


def said(capsys: Said, *words: str) -> str:
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def as_json(capsys: Said, *words: str) -> Any:
    return json.loads(said(capsys, *words, "--json"))


def test_a_section_is_shown_alone(capsys: Said) -> None:
    shown = yaml.safe_load(said(capsys, "+exp=quickstart", "rewards.brevity", "seed"))
    assert (list(shown), list(shown["rewards"])) == (["seed", "rewards"], ["brevity"])
    assert shown["rewards"]["brevity"]["weight"] == 0.2


def test_the_changed_values_make_the_same_experiment(capsys: Said, place: Path) -> None:
    """The output of --changed, pasted into a file, composes to the same configuration."""
    changed = said(capsys, "+exp=toy_ppo", "--changed")
    assert len(changed.splitlines()) < 40
    whole = as_json(capsys, "+exp=toy_ppo")["config"]
    (place / "conf" / "exp").mkdir(parents=True)
    (place / "conf" / "exp" / "again.yaml").write_text(f"# @package _global_\n{changed}")
    assert as_json(capsys, "+exp=again")["config"] == whole


def test_every_line_has_its_origin(capsys: Said) -> None:
    shown = said(capsys, "+exp=quickstart", "seed=4", "seed", "rewards.brevity.weight", "guards.no_signal").splitlines()
    assert [line.partition("# ")[2].split("/")[-1].partition(":")[0] for line in shown if "#" in line] == [
        "command line",
        "quickstart.yaml",
        "train.yaml",
    ]


def test_a_run_is_shown(capsys: Said) -> None:
    found = as_json(capsys, begun("seed=5").shown)
    assert found["config"]["seed"] == 5
    assert found["origins"]["seed"].startswith("runs/")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rewards"], "+exp=quickstart rewards, or rlhf list exp"),
        ([], "+exp=quickstart, or rlhf list exp"),
        (["+exp=quickstart", "brevity"], "rewards.brevity"),
        (["+exp=quickstart", "trainr"], "trainer"),
    ],
)
def test_wrong_words(words: list[str], hint: str, capsys: Said) -> None:
    assert main(["show", *words]) == 2
    assert f"try:      {hint}\n" in capsys.readouterr().err


def test_a_sweep_is_not_one_run(capsys: Said, place: Path) -> None:
    run = place / "runs/mine/sweep/seed=1"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 1\n")
    (run.parent / "sweep.json").write_text("{}")
    assert main(["show", "runs/mine/sweep"]) == 2
    assert "try:      runs/mine/sweep/seed=1\n" in capsys.readouterr().err
