"""Keep the rows of a reward's failed batches: the first batch of each error, up to a limit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_cli.data import file_readers
from rlhf_cli.errors import RewardError, RewardFailed
from rlhf_cli.plan.stack_building import FailureRecorder
from rlhf_cli.rewards.stack.component import Component, FailedCall
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.reward_records import kept_batches
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.redaction import remember
from rlhf_cli.tools_and_environments import EnvironmentScore

BATCH: dict[str, Any] = {
    "prompts": ["zero", "one", "two", "three"],
    "completions": ["a", "b", [{"role": "assistant", "content": "c"}], "say open sesame"],
    "completion_ids": [[1], [1, 2], [1, 2, 3], [4]],
    "row": [0, 1, 2, 3],
    "levels": [np.array([0.5, 1.0])] * 4,
    "picture": [object()] * 4,
    "trainer_state": SimpleNamespace(global_step=6, max_steps=9, epoch=0.5),
}


class Keeps:
    """Runs one failing reward, `mine`, and knows the folder that takes its failures."""

    def __init__(self, folder: Path, *, rank: int = 0) -> None:
        self.run = RunFolder(folder)
        self.keep = FailureRecorder(self.run, rank)

    def __call__(self, score: Any, **rules: Any) -> BaseException | None:
        stack = RewardStack([Component("mine", score, **rules)], keep_failure=self.keep)
        try:
            stack.evaluate(**BATCH)
        except (RewardFailed, RewardError) as error:
            return error
        finally:
            stack.close()
        return None

    @property
    def names(self) -> list[str]:
        return list(kept_batches(self.run).values())


@pytest.fixture
def keeps(tmp_path: Path) -> Keeps:
    return Keeps(tmp_path)


def fails_at(bad: int, error: BaseException | None = None) -> Any:
    def score(row: list[int], **_: Any) -> list[float]:
        if bad in row:
            raise error or ValueError(f"odd {bad}")
        return [1.0] * len(row)

    return score


def test_rows_of_an_environment_are_kept_without_a_command_that_scores_them(keeps: Keeps) -> None:
    """`rlhf score` has no environment to ask. The control: the same rows under another reward."""
    asks = EnvironmentScore("get_reward", "rewards.mine.environment")
    assert keeps.keep(FailedCall(Component("mine", asks), BATCH, [0], 0, KeyError("gold"))) is None
    assert len(keeps.names) == 1
    assert keeps.keep(FailedCall(Component("other", len), BATCH, [0], 0, KeyError("gold"))) is not None


def test_the_rows_without_secrets_and_without_what_is_no_json(keeps: Keeps) -> None:
    remember("open sesame")
    error = keeps(fails_at(2))
    (file,) = (keeps.run.path / "failures").iterdir()
    rows = [row for _, row in file_readers.read_lines(file)]
    assert rows[2] == {
        "prompt": "two",
        "completion": BATCH["completions"][2],
        "completion_ids": [1, 2, 3],
        "row": 2,
        "levels": [0.5, 1.0],
    }
    assert [row["prompt"] for row in rows] == BATCH["prompts"]
    assert rows[3]["completion"] == "say ***"
    assert isinstance(error, RewardFailed)
    assert "failures/mine-ValueError.jsonl  # scores these rows again" in str(error.hint)


def test_a_reward_error_keeps_its_hint_beside_the_command_that_scores_its_rows(keeps: Keeps) -> None:
    own, bare = (keeps(fails_at(2, RewardError("odd", hint=hint))) for hint in ("export KEY=...", None))
    assert isinstance(own, RewardError)
    assert isinstance(bare, RewardError)
    assert "failures/mine-invalid.jsonl  # scores these rows again" in str(bare.command)
    assert (own.command, own.in_words) == (bare.command, "export KEY=...")


def test_the_first_of_each_error_eight_at_most_and_the_one_that_ends_the_run(keeps: Keeps) -> None:
    for number in [*range(20), 0]:
        keeps(fails_at(number % 4, type(f"Error{number}", (Exception,), {})("odd")), on_error="exclude")
    assert keeps.names == [f"mine-Error{number}" for number in range(8)]
    error = keeps(fails_at(1, type("Last", (Exception,), {})("odd")))
    assert keeps.names[8:] == ["mine-Last"]
    assert isinstance(error, RewardFailed)
    assert "failures/mine-Last.jsonl" in str(error.hint)


def test_ranks_do_not_write_into_each_others_files(tmp_path: Path) -> None:
    for rank in (0, 1):
        Keeps(tmp_path, rank=rank)(fails_at(rank))
    assert Keeps(tmp_path).names == ["mine-ValueError", "mine-ValueError-rank1"]
