"""MLflow's store of a run that was logged, read back by its client; needs mlflow, which is not part of make setup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.mlflow_tracker import metric_name
from tests.support.logged_run import EVENTS, REWARDS, logged_run, write_evaluation
from tests.support.mirrored import Mirrored


@pytest.mark.parametrize(
    ("ours", "mlflows"),
    [
        ("train/rewards/correct/mean", "train/rewards/correct/mean"),
        ("eval/pass@4/correct", "eval/pass_at_4/correct"),
        ("final/eval/greedy/total/low", "final/eval/greedy/total.low"),
        ("profiling/Time taken: GRPOTrainer.compute_loss", "profiling/Time taken: GRPOTrainer.compute_loss"),
        ("train/rewards/a(b)/mean", "train/rewards/a_b_/mean"),
    ],
)
def test_a_name_is_one_that_mlflow_takes(ours: str, mlflows: str) -> None:
    assert metric_name(ours) == mlflows


class Read:
    """What MLflow has of the one run in its store."""

    def __init__(self, place: Path) -> None:
        import mlflow

        self._client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")
        experiment = self._client.get_experiment_by_name("sums")
        (self.run,) = self._client.search_runs([experiment.experiment_id])
        self._artifacts = place / "mlartifacts" / self.run.info.run_id / "artifacts"

    def series(self, name: str) -> dict[int, float]:
        return {one.step: one.value for one in self._client.get_metric_history(self.run.info.run_id, name)}

    def artifact(self, name: str) -> Any:
        return json.loads((self._artifacts / name).read_text())


@pytest.fixture
def runs(place: Path) -> RunFolder:
    pytest.importorskip("mlflow", reason="pip install 'rlhf-cli[mlflow]'")
    folder = logged_run(place / "runs" / "quickstart" / "one", provenance={"cwd": str(place)})
    write_evaluation(folder, 4)
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_metrics_parameters_and_tables(runs: RunFolder, place: Path, mirrored: Mirrored) -> None:
    assert mirrored(runs, "mlflow") == []
    read = Read(place)
    assert (read.run.info.run_name, read.run.info.status) == ("quickstart/one", "FINISHED")
    assert read.run.data.params["rewards.correct.weight"] == "2.0"
    assert not any("hub_token" in name for name in read.run.data.params)
    assert read.run.data.tags["mine"] == "true"
    assert read.series("train/reward") == dict(enumerate(REWARDS, 1))
    assert read.series("eval/greedy/total.low") == {4: 0.4}
    assert read.run.data.metrics["best/train/reward"] == 0.9
    assert read.artifact("completions/000002.json")["data"][0][:3] == [2, "1+1=", "two at 2"]
    assert read.artifact("config.json")["trainer"]["name"] == "grpo"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_that_goes_on_is_the_same_run(runs: RunFolder, place: Path, mirrored: Mirrored) -> None:
    mirrored(runs, "mlflow")
    more = [*EVENTS[:4], {"step": 5, "time_s": 9.0, "reward": 0.7}]
    runs.metrics.write_text("".join(json.dumps(event) + "\n" for event in more))
    (said,) = mirrored(runs, "mlflow", goes_on_from=2, recorded_to=4)
    assert said.startswith("mlflow has steps 3 to 4")
    assert Read(place).series("train/reward") == {**dict(enumerate(REWARDS, 1)), 5: 0.7}
