"""Recorded differences that may change a step are possible causes; others are not."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest

from rlhf_cli.analysis.reproducibility import _weights, causes_of
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.json_values import JsonTree, JsonValue

SETTINGS: dict[str, object] = {
    **{"seed": 0, "trainer.args.learning_rate": 1e-3, "rewards.judge.fn": "rlhf_cli.rewards.judge:judge"},
    **{"run.name": "one", "run.root": "runs", "track.mode": "offline", "warn.kl": True, "stop": None, "expect": None},
    "trainer.args.logging_steps": 1,
}
PROVENANCE: JsonTree = {
    "sha256": {"config": "c" * 64, "data": "d" * 64, "rewards.judge": "e" * 64},
    "starting_model": {"path": "/m", "commit": None, "weights_sha256": "f" * 64},
    "versions": {"torch": "2.13.0", "trl": "1.16.0", "wandb": None},
    "rlhf_code": "1" * 64,
    "torch_threads": 1,
    "device": "cpu",
    "attention": "all rows at once",
    "world_size": 1,
    "host": {"name": "here", "processor": "A"},
    "environment": {"JUDGE_URL": "ab12"},
    "command": "rlhf train",
    "git": {"commit": "0", "dirty": False},
}


@pytest.mark.parametrize(
    ("key", "value", "is_cause"),
    [
        ("seed", 1, True),
        ("trainer.args.learning_rate", 2e-3, True),
        ("trainer.args.logging_steps", 10, True),  # logs other events
        ("trainer.args.weight_decay", 0.1, True),  # only one run sets it
        ("run.name", "two", False),
        ("track.mode", "none", False),
        ("warn.kl", False, False),
        ("stop", "step >= 3", False),
        ("expect", "x", False),
    ],
)
def test_settings(key: str, value: object, *, is_cause: bool) -> None:
    found = list(causes_of((SETTINGS, PROVENANCE), ({**SETTINGS, key: value}, PROVENANCE)))
    assert [(cause.kind, cause.name) for cause in found] == ([("configuration", key)] if is_cause else [])


def test_a_fact_that_was_not_recorded_is_no_difference() -> None:
    """Older versions recorded less."""
    older = {key: value for key, value in PROVENANCE.items() if key not in ("rlhf_code", "torch_threads")}
    older["host"] = {"name": "here"}
    assert list(causes_of((SETTINGS, older), (SETTINGS, PROVENANCE))) == []


def test_causes_are_short_and_the_most_probable_comes_first() -> None:
    other: JsonTree = {
        **PROVENANCE,
        "sha256": {"data": "0" * 64, "rewards.new": "9" * 64, "rewards.judge": "e" * 64},
        "starting_model": {"commit": "abc", "weights_sha256": "0" * 64},
        "versions": {"torch": "2.14.0", "trl": "1.16.0", "peft": "1"},
        "rlhf_code": "2" * 64,
        **{"device": "cuda:0", "torch_threads": 2, "world_size": 2, "environment": {"JUDGE_URL": "x", "A": "y"}},
        "host": {"processor": "B"},
    }
    before: JsonTree = {
        **PROVENANCE,
        "resumed": [{"step": 3, "changes": {"a": 1, "b": 2}, "files": {"data": "x"}}, "x"],
    }
    found = list(causes_of(({"seed": 0, "gone": 1}, before), ({"seed": 1, "new": None}, other)))
    assert [astuple(cause) for cause in found] == [
        ("configuration", "seed", "0", "1"),
        ("configuration", "gone", "1", "none"),
        ("resumed", "from step 3", "started without a, b, data", "with all from the start"),
        ("data", "data", "d" * 12, "0" * 12),
        ("reward code", "rewards.new", "none", "9" * 12),
        ("starting model", "commit", "none", "abc"),
        ("starting model", "weights_sha256", "f" * 12, "0" * 12),
        ("versions", "torch", "2.13.0", "2.14.0"),
        ("versions", "peft", "none", "1"),
        ("rlhf code", "rlhf_code", "1" * 12, "2" * 12),
        ("torch threads", "torch_threads", "1", "2"),
        ("device", "device", "cpu", "cuda:0"),
        ("world size", "world_size", "1", "2"),
        ("environment", "JUDGE_URL", "ab12", "x"),
        ("environment", "A", "none", "y"),
        ("processor", "processor", "A", "B"),
    ]


@pytest.mark.parametrize("resumed", [None, {"step": 1}, "x", [{"step": 3, "changes": {}, "files": {}}]])
def test_a_resume_without_changes_is_no_cause(resumed: JsonValue) -> None:
    assert list(causes_of(({}, {"resumed": resumed}), ({}, {}))) == []


def test_weights_are_compared_at_the_same_step(tmp_path: Path) -> None:
    """A checkpoint that only one run kept is not compared, nor missing weights at the end."""
    runs = [RunFolder(tmp_path / name) for name in ("one", "two")]
    for run, weights in zip(runs, (b"one", b"two"), strict=True):
        for step, content in ((3, b"same"), (6, weights)):
            folder = run.checkpoints / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_bytes(content)
    (runs[0].checkpoints / "checkpoint-9").mkdir()
    for step, is_equal in ((3, True), (6, False)):
        old, new = (weights_hash(run.checkpoints / f"checkpoint-{step}") for run in runs)
        assert _weights(*runs, step) == {f"checkpoint-{step}": (old, new)}
        assert (old == new) == is_equal
    assert _weights(*runs, 9) == _weights(*runs, None) == {}
