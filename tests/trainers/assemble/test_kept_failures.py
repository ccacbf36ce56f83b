"""What is kept of a reward's failed batch: the rows it was given, which of them is to blame, no more than so much."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.data import json_files
from rlhf_cli.errors import RewardError, RewardFailed
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.gates import ScoreGate
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.failure_capsules import Capsule, capsules_of
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.redaction import remember
from rlhf_cli.trainers.assemble import stack_building
from rlhf_cli.trainers.assemble.stack_building import FailureRecorder

BATCH: dict[str, Any] = {
    "prompts": ["zero", "one", "two", "three"],
    "completions": ["a", "b", [{"role": "assistant", "content": "c"}], "d"],
    "completion_ids": [[1], [1, 2], [1, 2, 3], [4]],
    "row": [0, 1, 2, 3],
    "levels": [np.array([0.5, 1.0])] * 4,
    "picture": [object()] * 4,
    "trainer_state": SimpleNamespace(global_step=6, max_steps=9, epoch=0.5),
}


class Keeps:
    """Runs one failing reward, `mine`, behind a gate or without, and knows the folder that takes its failures."""

    def __init__(self, folder: Path, *, rank: int = 0) -> None:
        self.run = RunFolder(folder)
        experiment: Any = SimpleNamespace(rewards={"mine": Reward(fn="m:f", args={"unit": "words"}, timeout_s=5.0)})
        self.keep = FailureRecorder(self.run, experiment, rank)

    def __call__(self, score: Any, *others: Component, **rules: Any) -> BaseException | None:
        stack = RewardStack([*others, Component("mine", score, **rules)], keep_failure=self.keep)
        try:
            stack.evaluate(**BATCH)
        except (RewardFailed, RewardError) as error:
            return error
        finally:
            stack.close()
        return None

    @property
    def only(self) -> tuple[list[dict[str, Any]], Capsule]:
        ((file, capsule),) = capsules_of(self.run).items()
        return [row for _, row in json_files.read_lines(file)], capsule


@pytest.fixture
def keeps(tmp_path: Path) -> Keeps:
    return Keeps(tmp_path)


def fails_at(bad: int, error: BaseException | None = None) -> Any:
    def score(row: list[int], **_: Any) -> list[float]:
        if bad in row:
            raise error or ValueError(f"odd {bad}")
        return [1.0] * len(row)

    return score


def test_a_failure_that_ends_the_run(keeps: Keeps) -> None:
    error = keeps(fails_at(2))
    rows, capsule = keeps.only
    assert [row["prompt"] for row in rows] == BATCH["prompts"]
    assert [row["completion"] for row in rows] == BATCH["completions"]
    assert [row["completion_ids"] for row in rows] == BATCH["completion_ids"]
    assert rows[2]["levels"] == [0.5, 1.0]
    assert (capsule.reward, capsule.kind, capsule.error) == ("mine", "ValueError", "ValueError: odd 2")
    assert (capsule.row, capsule.batch_row, capsule.rank) == (2, 2, 0)
    assert (capsule.step, capsule.max_steps, capsule.epoch) == (6, 9, 0.5)
    assert (capsule.scored_by, capsule.args, capsule.timeout_s) == ("m:f", {"unit": "words"}, 5.0)
    assert capsule.left_out_columns == ["picture"]
    assert error is not None
    assert capsule.traceback == "".join(traceback.format_exception(error.__cause__))
    assert isinstance(error, RewardFailed)
    assert "failures/mine-ValueError.jsonl  # fails in the same way" in str(error.hint)


def test_behind_a_gate_only_the_rows_it_left(keeps: Keeps) -> None:
    gate = Component("gate", lambda row, **_: [float(index % 2) for index in row])
    keeps(fails_at(3), gate, gates=(ScoreGate("gate", low=1.0),))
    rows, capsule = keeps.only
    assert [row["row"] for row in rows] == [1, 3]
    assert (capsule.row, capsule.batch_row) == (1, 3)


@pytest.mark.parametrize(
    ("score", "kind", "row"),
    [
        (lambda **_: [1.0, 1.0, float("nan"), 1.0], "nonsense", 2),
        (lambda **_: [1.0], "nonsense", None),
        (lambda **_: __import__("time").sleep(9), "timeout", None),
        (lambda **_: __import__("sys").exit(3), "SystemExit", None),
        (lambda row, **_: [OSError("in its place") if one == 1 else 0.0 for one in row], "OSError", 1),
    ],
    ids=["NaN", "too few", "hangs", "sys.exit", "returned error"],
)
def test_however_it_fails(keeps: Keeps, score: Any, kind: str, row: int | None) -> None:
    error = keeps(score, timeout_s=0.1)
    rows, capsule = keeps.only
    assert (len(rows), capsule.kind, capsule.row) == (4, kind, row)
    assert f"failures/mine-{kind}.jsonl" in str(error)


class TestWhileTheRunGoesOn:
    def test_the_first_of_each_kind(self, keeps: Keeps) -> None:
        """Failures of two kinds, each in four batches."""

        def score(row: list[int], **_: Any) -> list[float]:
            if 1 in row:
                raise ValueError("one")
            if 3 in row:
                raise KeyError("three")
            return [1.0]

        for _ in range(4):
            assert keeps(score, on_error="exclude") is None
        kept = {file.name: capsule.row for file, capsule in capsules_of(keeps.run).items()}
        assert kept == {"mine-ValueError.jsonl": 1, "mine-KeyError.jsonl": 3}

    def test_so_many_and_one_more_that_ends_the_run(self, keeps: Keeps) -> None:
        for number in range(20):
            keeps(fails_at(1, type(f"Error{number}", (Exception,), {})("odd")), on_error="exclude")
        assert len(capsules_of(keeps.run)) == 8
        assert "Last-2" not in str(keeps(fails_at(1, type("Last", (Exception,), {})("odd"))))
        assert "mine-Last.jsonl" in [file.name for file in capsules_of(keeps.run)]


def test_ranks_do_not_write_into_each_others_files(tmp_path: Path) -> None:
    for rank in (0, 1):
        Keeps(tmp_path, rank=rank)(fails_at(rank))
    found = {file.name: capsule.rank for file, capsule in capsules_of(RunFolder(tmp_path)).items()}
    assert found == {"mine-ValueError.jsonl": 0, "mine-ValueError-rank1.jsonl": 1}


def test_without_secrets(keeps: Keeps, monkeypatch: pytest.MonkeyPatch) -> None:
    remember("open sesame")
    monkeypatch.setitem(BATCH, "completions", ["say open sesame", "b", "c", "d"])
    keeps(fails_at(0, ValueError("got open sesame")))
    written = "".join(file.read_text() for file in (keeps.run.path / "failures").iterdir())
    assert "sesame" not in written
    assert "say ***" in written


def test_a_full_disk_does_not_hide_the_failure(keeps: Keeps, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stack_building, "write_capsule", full)
    error = keeps(fails_at(2))
    assert isinstance(error, RewardFailed)
    assert error.got == "ValueError: odd 2"
    assert str(error.hint).startswith("rewards.mine.on_error=exclude")
