"""`rlhf compare` of a folder with thirty runs shows the newest, lists the others, and fits the screen."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from tests.support.logged_runs import configured, write_run

KEYS = ("max_steps", "beta", "top_p", "epsilon", "warmup_steps", "weight_decay", "max_grad_norm", "adam_beta2")
CURVES = {f"rewards/{name}/mean": [0.5, 0.75] for name in ("correct", "brevity", "a_reward_of_a_long_name")}


@pytest.fixture
def thirty(place: Path) -> Path:
    """Return a folder with two sweeps and fifteen single runs that each change one key; the newest is last."""
    root = place / "runs" / "exp"
    made = []
    for name, key, values in (("weights", "weight", (0, 0.5, 1)), ("rates", "learning_rate", (0.1, 0.2))):
        (root / name).mkdir(parents=True)
        (root / name / "sweep.json").write_text(json.dumps({"swept": [key]}))
        for value in values:
            for seed in range(3):
                config = configured(value if key == "weight" else 0.2, seed)
                if key == "learning_rate":
                    config["trainer"]["args"][key] = value  # type: ignore[index, call-overload]
                curves = {metric: [value + 0.01 * seed] * 2 for metric in CURVES}
                made.append(write_run(root / name / f"{key}={value},seed={seed}", config, curves))
    for number in range(15):
        config = configured(0.2)
        config["trainer"]["args"][KEYS[number % len(KEYS)]] = number + 2  # type: ignore[index, call-overload]
        curves = {metric: [0.1 * number] * 2 for metric in CURVES}
        made.append(write_run(root / f"20260101-{number:06d}", config, curves))
    for number, run in enumerate(made):
        os.utime(run.config, (1e9 + number, 1e9 + number))
    return root


def compared(*words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["compare", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", ["80", None])
def test_the_newest_are_shown_and_the_others_listed(
    thirty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    lines = compared("runs/exp", capsys=capsys)
    assert lines[0] == "runs/exp: 12 runs, 12 settings"
    table = "\n".join(lines)
    assert "20260101-000014" in table
    assert "20260101-000003" in table
    assert "20260101-000002" not in table
    assert lines[-1] == (
        "not shown: 3 older in runs/exp, runs/exp/rates (6 runs), runs/exp/weights (9 runs); "
        "rlhf compare 'runs/exp/*' compares all"
    )
    assert max(map(len, lines[:-1])) <= int(columns or 200)


def test_the_newest_sweep_is_shown_whole(thirty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in (thirty / "weights").glob("*/config.yaml"):
        os.utime(run)
    text = "\n".join(compared("runs/exp", capsys=capsys))
    assert text.startswith("runs/exp/weights: 9 runs, 3 settings")
    assert "verdict on weight" in text
    assert "runs/exp (15 runs)" in text


@pytest.mark.parametrize("columns", ["80", None])
def test_one_table_of_all_runs_fits_the_screen(
    thirty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    lines = compared("runs/exp/*", capsys=capsys)
    assert lines[0].startswith("runs/exp: 30 runs, ")
    assert max(map(len, lines)) <= int(columns or 200)
    first = lines[: lines.index("", lines.index("") + 1)]
    rows = [line.split()[0] for line in first[first.index("") + 2 :] if not line.startswith("the same")]
    assert len(rows) == len(set(rows)) == 20


def test_json_and_runs_show_all_runs(thirty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(json.loads("\n".join(compared("runs/exp", "--json", capsys=capsys)))["runs"]) == 30
    assert compared("runs/exp", "--runs", capsys=capsys)[0].startswith("runs/exp: 30 runs")


def test_settings_with_different_steps_have_no_front(thirty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(compared("runs/exp/*", capsys=capsys))
    assert "no front: settings differ in steps" in text
    assert "●" not in text
