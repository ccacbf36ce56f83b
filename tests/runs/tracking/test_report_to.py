"""Runs reported to TensorBoard, trackio and MLflow by transformers' callbacks, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking import report_to
from rlhf_cli.runs.tracking.tracked_run import where_to_look
from tests.runs.tracking.tracked_runs import CONFIG, EVENTS, REWARDS, logged_run, report

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(place: Path) -> RunFolder:
    return logged_run(place / "runs" / "quickstart" / "one", provenance={"cwd": str(place)})


def log(folder: RunFolder, *events: Mapping[str, object]) -> None:
    folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in events))


def tensorboard_of(folder: RunFolder) -> Any:
    """What TensorBoard reads in a run folder."""
    pytest.importorskip("tensorboard", reason="pip install 'rlhf-cli[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder.path / "tensorboard"))
    read.Reload()
    return read


def totals(read: Any) -> dict[int, float]:
    points = read.Scalars("train/reward")
    assert len({point.step for point in points}) == len(points)  # no step twice
    return {point.step: point.value for point in points}


def test_tensorboard_has_every_number_and_the_experiment(folder: RunFolder) -> None:
    """A resumed run replaces what it has after the checkpoint: steps 3 and 4 were logged as 0.4 and 0.5."""
    assert report(folder, "tensorboard") == []
    read = tensorboard_of(folder)
    names = set(read.Tags()["scalars"])
    assert {name for name in names if not name.startswith("train/train_")} >= {
        *("train/reward", "train/rewards/correct/mean", "train/epoch"),
        *("eval/greedy/total", "eval/greedy/total/low", "eval/greedy/total/high", "eval/pass@4/correct"),
    }
    assert "train/kl" not in names  # null in metrics.jsonl
    assert totals(read) == pytest.approx(dict(enumerate(REWARDS, 1)))
    (point,) = read.Tensors("args/text_summary")
    config = json.loads(point.tensor_proto.string_val[0])
    assert (config["rewards"]["correct"]["weight"], config["tags"][-1]) == (2.0, "mine")
    log(folder, *EVENTS[:2], *({**event, "reward": 0.25} for event in EVENTS[2:4]))
    assert report(folder, "tensorboard", goes_on_from=2, recorded_to=4) == []
    assert totals(tensorboard_of(folder)) == pytest.approx({1: 0.1, 2: 0.9, 3: 0.25, 4: 0.25})


class Recording:
    """Stands in for one of transformers' callbacks: keeps its calls."""

    def __init__(self) -> None:
        self.calls = []  # type: ignore[var-annotated]

    def __getattr__(self, method: str) -> Any:
        def call(args: Any, state: Any, control: Any, **more: Any) -> None:
            assert state.is_world_process_zero, "a tracker of transformers does nothing on another rank"
            self.calls.append((method, args, more.get("logs")))

        return call


def test_names_of_the_run_and_of_its_metrics(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only trackio's callback puts `train/` before a name, and only MLflow refuses parameters that have changed."""
    for tracker, total in (("trackio", "reward"), ("mlflow", "train/reward")):
        inner = Recording()
        monkeypatch.setitem(report_to._BUILD, tracker, lambda run, inner=inner: inner)
        assert report(folder, tracker) == []  # type: ignore[arg-type]
        methods = [name for name, *_ in inner.calls]
        assert (methods[0], methods[-1]) == ("on_train_begin", "on_train_end")
        _, args, logs = inner.calls[1]
        assert (args.project, args.run_name) == ("sums", "quickstart/one")
        assert args.trackio_static_space_id is False
        assert args.to_dict()["trainer"]["name"] == "grpo"
        assert logs[total] == 0.1
        assert "kl" not in logs  # null in metrics.jsonl
        inner.calls.clear()
        report(folder, tracker, goes_on_from=2, recorded_to=4)  # type: ignore[arg-type]
        assert bool(inner.calls[0][1].to_dict()) == (tracker == "trackio")


def test_mlflow_has_one_run_over_both_attempts(folder: RunFolder, place: Path) -> None:
    pytest.importorskip("mlflow", reason="pip install 'rlhf-cli[mlflow]'")
    import mlflow

    with pytest.raises(KeyboardInterrupt):
        report(folder, "mlflow", error=KeyboardInterrupt())
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sums")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("quickstart/one", "KILLED")
    assert run.data.params["rewards.correct.weight"] == "2.0"
    assert run.data.tags["mine"] == "true"
    log(folder, *EVENTS[:4], {"step": 5, "time_s": 9.0, "reward": 0.7})
    assert report(folder, "mlflow", goes_on_from=4, recorded_to=4) == []
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    points = client.get_metric_history(run.info.run_id, "train/reward")
    assert {one.step: one.value for one in points} == {**dict(enumerate(REWARDS, 1)), 5: 0.7}


def test_trackio_continues_a_run_by_its_name(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio", reason="pip install 'rlhf-cli[trackio]'")
    from trackio.sqlite_storage import SQLiteStorage

    for module in ("sqlite_storage", "utils", "media.utils", "fragments", "run"):
        monkeypatch.setattr(f"trackio.{module}.TRACKIO_DIR", tmp_path / "trackio", raising=False)
    report(folder, "trackio")
    log(folder, *EVENTS[:4], {"step": 5, "time_s": 9.0, "reward": 0.7})
    assert report(folder, "trackio", goes_on_from=4, recorded_to=4) == []
    assert SQLiteStorage.get_runs("sums") == ["quickstart/one"]
    rows = SQLiteStorage.get_logs("sums", "quickstart/one")
    totals = {row["train/global_step"]: row["train/reward"] for row in rows if "train/reward" in row}
    assert totals == {**dict(enumerate(REWARDS, 1)), 5: 0.7}


# What the end of a run says to type next, for each tracker.


@pytest.mark.parametrize(
    ("track", "command"),
    [
        ({"tracker": "tensorboard"}, "tensorboard --logdir runs/quickstart"),
        ({"tracker": "trackio", "project": "my sums"}, "trackio show --project 'my sums'"),
        ({"tracker": "mlflow"}, "mlflow ui --backend-store-uri sqlite:///{place}/mlflow.db"),
        ({"tracker": "tensorboard", "mode": "none"}, None),
        ({"tracker": "wandb"}, None),
    ],
)
def test_the_command(track: dict[str, str], command: str | None, place: Path) -> None:
    """A run that wandb has not recorded, or that was sent, has nothing to send."""
    folder = logged_run(
        place / "runs" / "quickstart" / "one",
        config={**CONFIG, "track": {"mode": "offline", "project": "sums", **track}},
        provenance={"cwd": str(place)},
    )
    expected = [] if command is None else [command.format(place=place)]
    assert list(where_to_look(folder)) == expected
