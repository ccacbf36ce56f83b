"""wandb offline, read back from its own file: what a user would find in the web page."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs import tracking
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
from tests.support import small_reward_runs as reward_runs
from tests.support.small_runs import SMALL


def records(folder: RunFolder) -> list[dict[str, Any]]:
    (file,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    wandb = Path(sys.executable).with_name("wandb")
    done = subprocess.run([wandb, "leet", "inspect", "--json", file], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_type(found: list[dict[str, Any]], kind: str) -> list[Any]:
    return [record[kind] for record in found if record["type"] == kind]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> RunFolder:
    """The second job of a sweep that was mirrored while a login was there; several tests read it."""
    place = tmp_path_factory.mktemp("tracked")
    words = [*SMALL, "track=wandb_offline", "track.notes=a note", "track.tags=[mine]", "run.name=swept"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("RLHF_CACHE", str(model_cache))
        patch.setenv("WANDB_API_KEY", "local-0123456789abcdef0123456789abcdef01234567")
        assert main(["train", "-m", *words, "seed=1,2"]) == 0
    return RunFolder(place / "runs" / "quickstart" / "swept" / "seed=2")


def test_the_run_says_what_it_was(tracked: RunFolder) -> None:
    found = records(tracked)
    run = of_type(found, "run")[0]
    assert run["display_name"] == "quickstart/swept/seed=2"
    assert run["run_group"] == "quickstart/swept"
    assert run["job_type"] == "grpo"
    assert run["project"] == "rlhf"
    assert run["notes"] == "a note"
    assert set(run["tags"]) == {"quickstart", "tiny", "toy_sums", "mine"}
    config = run["config"]["update"]
    assert config["rewards"]["brevity"]["weight"] == 0.2
    assert config["seed"] == 2
    assert config["provenance"]["sha256"] == read_json(tracked.provenance)["sha256"]


def test_metrics_mirror_the_run_folder_over_the_global_step(tracked: RunFolder) -> None:
    found = records(tracked)
    logged = [event for event in of_type(found, "history") if "train/reward" in json.dumps(event)]
    text = json.dumps(logged)
    rewards = [event["reward"] for event in read_metrics(tracked.metrics) if "reward" in event]
    assert len(logged) == len(rewards) == 3
    assert all(str(reward) in text for reward in rewards)
    assert "train/global_step" in text
    assert "completions" in json.dumps(of_type(found, "history"))
    assert list(tracked.path.glob("wandb/offline-run-*/files/media/table/*.json"))


def test_each_job_is_a_run_of_its_own(tracked: RunFolder) -> None:
    first = RunFolder(tracked.path.parent / "seed=1")
    ids = {of_type(records(folder), "run")[0]["run_id"] for folder in (first, tracked)}
    assert len(ids) == 2


@pytest.mark.fault(48)
def test_no_secret_is_in_any_file(tracked: RunFolder) -> None:
    for file in tracked.path.rglob("*"):
        if file.is_file():
            assert b"0123456789abcdef0123456789abcdef" not in file.read_bytes(), file
    # The search would find it: the config that was written beside it is found this way.
    assert any(b"quickstart" in file.read_bytes() for file in tracked.path.rglob("*.json"))


def test_online_without_login_says_so_and_goes_on_offline(train, capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    code, folder = train("track=wandb")
    assert code == 0
    out = capsys.readouterr().out
    assert "no wandb login" in out
    assert "wandb sync" in out
    assert list(folder.path.glob("wandb/offline-run-*"))


def test_a_reward_models_samples_are_a_table(workplace: Path) -> None:
    words = [*reward_runs.SMALL, *reward_runs.WORLD, "track=wandb_offline", "run.name=one"]
    assert main(["train", *words, "reward_model.show_samples=2"]) == 0
    (folder,) = [RunFolder(file.parent) for file in (workplace / "runs").rglob("samples.jsonl")]
    (file,) = folder.path.glob("wandb/offline-run-*/files/media/table/samples*.json")
    table = json.loads(file.read_text())
    told = [{name: row[name] for name in table["columns"]} for row in reward_runs.samples(folder)]
    assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == told
    assert {"chosen", "rejected", "score_chosen", "score_rejected", "margin", "verdict"} <= set(table["columns"])
    assert "samples" in json.dumps(of_type(records(folder), "history"))


@pytest.mark.fault(16)
def test_a_run_that_was_moved_goes_on_in_the_same_wandb_run(train, workplace: Path) -> None:
    """The id was a hash of the folder's path once: a moved run began a second one in wandb."""
    code, folder = train("track=wandb_offline", "trainer.args.lr_scheduler_type=constant")
    assert code == 0
    began = of_type(records(folder), "run")[0]["run_id"]
    assert began == read_json(folder.provenance)["wandb_id"]
    moved = RunFolder(workplace / "elsewhere" / "moved")
    moved.path.parent.mkdir()
    folder.path.rename(moved.path)
    shutil.rmtree(moved.path / "wandb")
    assert main(["resume", str(moved.path), "trainer.args.max_steps=4"]) == 0
    assert of_type(records(moved), "run")[0]["run_id"] == began
    logged = [event for event in of_type(records(moved), "history") if "train/reward" in json.dumps(event)]
    assert len(logged) == 1  # step 4, after the three that the first recording has


def test_a_run_from_before_ids_were_kept_has_the_one_of_its_path(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "old")
    folder.path.mkdir()
    write_json(folder.provenance, {"seed": 0})
    expected = hashlib.sha256(str(folder.path).encode()).hexdigest()[:10]
    assert tracking._run_id(folder, read_json(folder.provenance)) == expected
    assert read_json(folder.provenance) == {"seed": 0, "wandb_id": expected}
    folder.path.rename(tmp_path / "new")
    moved = RunFolder(tmp_path / "new")
    assert tracking._run_id(moved, read_json(moved.provenance)) == expected
