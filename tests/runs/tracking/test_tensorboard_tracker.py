"""TensorBoard's files of a run that was logged, read back by its own EventAccumulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_run import EVENTS, REWARDS, logged_run, write_evaluation
from tests.support.mirrored import Mirrored

pytest.importorskip("tensorboard", reason="pip install 'rlhf-cli[tensorboard]'")


class Read:
    """What TensorBoard shows of a run folder."""

    def __init__(self, folder: RunFolder) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self._of = EventAccumulator(str(folder.path / "tensorboard"))
        self._of.Reload()
        self.tags = self._of.Tags()

    def scalars(self, tag: str) -> dict[int, float]:
        points = self._of.Scalars(tag)
        assert len({point.step for point in points}) == len(points)  # no step twice
        return {point.step: point.value for point in points}

    def texts(self, tag: str) -> dict[int, str]:
        points = self._of.Tensors(f"{tag}/text_summary")
        return {point.step: point.tensor_proto.string_val[0].decode() for point in points}


def test_scalars_tables_and_configuration(place: Path, mirrored: Mirrored) -> None:
    folder = logged_run(place / "runs" / "quickstart" / "one")
    write_evaluation(folder, 4)
    assert mirrored(folder, "tensorboard") == []
    read = Read(folder)
    of_steps = [tag for tag in read.tags["scalars"] if tag.startswith(("train/", "eval/"))]
    assert set(of_steps) == {
        *("train/reward", "train/rewards/correct/mean", "train/epoch", "train/time_s"),
        *("eval/greedy/total", "eval/greedy/total/low", "eval/greedy/total/high"),
        *("eval/greedy/rewards/correct", "eval/pass@4/correct"),
    }
    assert read.scalars("train/reward") == pytest.approx(dict(enumerate(REWARDS, 1)))
    assert read.scalars("eval/greedy/total/low") == pytest.approx({4: 0.4})
    assert read.scalars("best/train/reward") == pytest.approx({0: 0.9})
    assert set(read.texts("completions")) == {1, 2, 3, 4}
    assert "| 2 | 1+1= | two at 2 | 1 | 0.5 |" in read.texts("completions")[2]
    assert "| 4 | greedy | rewards/correct | 0.3 | 0.4 | 0.8 |" in read.texts("evaluation")[4]
    shown = json.loads(read.texts("config")[0].strip("`").removeprefix("json"))
    assert shown["rewards"]["correct"]["weight"] == 2.0
    assert "_hparams_/session_start_info" in read._of.summary_metadata


def test_a_run_that_goes_on_takes_back_what_lies_after_its_checkpoint(place: Path, mirrored: Mirrored) -> None:
    """Steps 3 and 4 were logged as 0.4 and 0.5 and are trained again: as in metrics.jsonl, the later ones count."""
    folder = logged_run(place / "runs" / "quickstart" / "one")
    mirrored(folder, "tensorboard")
    again = [*EVENTS[:2], *({**event, "reward": 0.25} for event in EVENTS[2:4])]
    folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in again))
    assert mirrored(folder, "tensorboard", goes_on_from=2, recorded_to=4) == []
    assert Read(folder).scalars("train/reward") == pytest.approx({1: 0.1, 2: 0.9, 3: 0.25, 4: 0.25})
