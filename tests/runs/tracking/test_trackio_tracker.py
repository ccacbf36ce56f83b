"""trackio's store of a run that was logged, read back; needs trackio, which is not part of make setup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.logged_run import EVENTS, REWARDS, logged_run, write_evaluation
from tests.support.mirrored import Mirrored


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """trackio's SQLite, in a folder of the test's own."""
    pytest.importorskip("trackio", reason="pip install 'rlhf-cli[trackio]'")
    from trackio import sqlite_storage

    for module in ("sqlite_storage", "utils", "media.utils", "fragments", "run"):
        with pytest.MonkeyPatch.context():
            monkeypatch.setattr(f"trackio.{module}.TRACKIO_DIR", tmp_path / "trackio", raising=False)
    return sqlite_storage.SQLiteStorage


@pytest.mark.filterwarnings("ignore")
def test_metrics_configuration_and_tables(place: Path, mirrored: Mirrored, storage: Any) -> None:
    folder = logged_run(place / "runs" / "quickstart" / "one")
    write_evaluation(folder, 4)
    assert mirrored(folder, "trackio") == []
    assert storage.get_runs("sums") == ["quickstart/one"]
    rows = storage.get_logs("sums", "quickstart/one")
    totals = {row["step"]: row["train/reward"] for row in rows if "train/reward" in row}
    assert totals == dict(enumerate(REWARDS, 1))
    assert [row["eval/greedy/total/low"] for row in rows if "eval/greedy/total/low" in row] == [0.4]
    assert [row["best/train/reward"] for row in rows if "best/train/reward" in row] == [0.9]
    completions = {row["step"]: row["completions"] for row in rows if "completions" in row}
    assert set(completions) == {1, 2, 3, 4}
    assert "two at 2" in json.dumps(completions[2])
    config = storage.get_run_config("sums", "quickstart/one")
    assert config["rewards"]["correct"]["weight"] == 2.0
    assert "hub_token" not in json.dumps(config)


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_goes_on_is_the_same_run(place: Path, mirrored: Mirrored, storage: Any) -> None:
    folder = logged_run(place / "runs" / "quickstart" / "one")
    mirrored(folder, "trackio")
    more = [*EVENTS[:4], {"step": 5, "time_s": 9.0, "reward": 0.7}]
    folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in more))
    (said,) = mirrored(folder, "trackio", goes_on_from=2, recorded_to=4)
    assert said.startswith("trackio has steps 3 to 4")
    rows = storage.get_logs("sums", "quickstart/one")
    assert [row["step"] for row in rows if "train/reward" in row] == [1, 2, 3, 4, 5]
