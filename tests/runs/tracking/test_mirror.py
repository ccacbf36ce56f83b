"""A run survives a tracker that fails; no tracker gets a secret."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rlhf_cli.errors import Preempted
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking import mirror as mirror_module
from rlhf_cli.runs.tracking.mirror import Mirror, final_values
from rlhf_cli.runs.tracking.tracked_run import TrackedRun, TrackingPlan, name_in_log, shown_name, tracked_run
from rlhf_cli.text import redaction
from rlhf_cli.text.redaction import remember
from tests.runs.tracking.tracked_runs import CONFIG, REWARDS, logged_run, report, write_completions, write_evaluation
from tests.support.planted_secrets import tellers
from tests.support.wandb_read_back import leaves, records, tables

pytestmark = pytest.mark.whole

STEP = "train/global_step"


class Told:
    """A run of wandb's that keeps its calls, and raises in the given methods."""

    step, resumed = 0, False

    def __init__(self, *raises: str) -> None:
        self.raises = raises
        self.said: list[str] = []
        self.metrics: list[int] = []
        self.tables: list[tuple[str, int, Any]] = []
        self.summary: dict[str, float] = {}
        self.settings = SimpleNamespace(mode="offline", sync_dir="")
        self.define_metric = MagicMock()

    def _tell(self, method: str) -> None:
        self.said.append(method)
        if method in self.raises:
            raise OSError(28, "No space left on device")

    def opened(self, run: TrackedRun, mode: str) -> Told:
        self._tell("opened")
        return self

    def log(self, values: dict[str, Any], step: int | None) -> None:
        at = values.pop(STEP)
        tables = {name: value for name, value in values.items() if hasattr(value, "columns")}
        self._tell("table" if tables else "log")
        if not tables:
            self.metrics.append(at)
        self.tables += [(name, at, table.data) for name, table in tables.items()]

    def mark_preempting(self) -> None:
        self.said.append("preempted")

    def finish(self, exit_code: int) -> None:
        self._tell(f"finish {exit_code}")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`told(raises...)`: put a run of the test's own in wandb's place."""

    def put(*raises: str) -> Told:
        run = Told(*raises)
        monkeypatch.setattr(mirror_module, "opened", run.opened)
        return run

    return put


@pytest.fixture
def folder(place: Path) -> RunFolder:
    return logged_run(place / "runs" / "quickstart" / "one")


def test_what_wandb_keeps_is_not_logged_again(told, folder: RunFolder) -> None:
    """It has steps up to 3 from an attempt that began at 2, whose evaluation at 2 a signal broke off.

    Without wandb the mirror logs no step. A column is no secret for its name.
    """
    tracker, rows, printed = told(), [{"answer": "2", "password": "swordfish"}], list[str]()
    (folder.path / "wandb" / "run-1").mkdir(parents=True)
    (folder.path / "wandb" / "run-1" / "run-1.wandb").touch()
    mirror = Mirror(folder, TrackingPlan("offline"), say=printed.append)
    with mirror.attempt(goes_on_from=2, recorded_to=3):
        for step in (0, 2, 3, 4):
            mirror.table("answers", step, rows)
            mirror.event({"step": step, "reward": 0.5})
        mirror.table("answers", 5, [])
        assert tracker.tables == [("answers", step, [["2", "swordfish"]]) for step in (2, 4)]
    mirror.event({"step": 5, "reward": 0.5})
    assert tracker.metrics == [2, 4]  # nothing after its end
    assert tracker.summary["best/train/reward"] == 0.9  # of the whole run, not of its last attempt
    assert printed[0].startswith("wandb has steps 3 to 3 from before the stop and keeps them as they were")
    Mirror(folder, TrackingPlan("none", tracker="mlflow"), say=print).table("answers", 4, rows)


@pytest.mark.parametrize("method", ["opened", "log", "table", "finish 0"])
def test_what_fails_is_told_once_and_left_alone(
    method: str, told, folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = told(method)
    (said,) = report(folder)
    assert [record.exc_info is not None for record in caplog.records if record.name == "rlhf"] == [True]
    assert said.startswith("warning: wandb failed ")
    assert "OSError: [Errno 28] No space left on device" in said
    assert (tracker.said[-1], tracker.said.count(method)) == (method, 1)


@pytest.mark.parametrize(("every", "steps"), [(2, [1, 3, 4]), (3, [1, 4])])
def test_a_table_of_completions_is_sent_every_so_many_steps_and_at_the_end(
    every: int, steps: list[int], told, folder: RunFolder
) -> None:
    tracker = told()
    mirror = Mirror(folder, TrackingPlan("offline"), say=print, completions_every=every)
    with mirror.attempt():
        for event in read_metrics(folder.metrics):
            mirror.event(event)
            mirror.completions(event["step"])  # type: ignore[arg-type]
    assert [step for _, step, _ in tracker.tables] == steps


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        *(("loss", "train/loss"), ("reward", "train/reward"), ("epoch", "housekeeping/epoch")),
        *((name, name) for name in ("rewards/correct/mean", "rewards/calls/mean", "time/share/reward/judge")),
        ("sampling/draws", "sampling/draws"),
        ("rewards/correct/calls", "housekeeping/rewards/correct/calls"),
        *(("eval_greedy/total", "eval/greedy/total"), ("eval_loss", "eval/loss")),
        ("eval_rewards/correct/errors", "housekeeping/eval_rewards/correct/errors"),
        ("eval_samples_per_second", "housekeeping/eval_samples_per_second"),
    ],
)
def test_a_metric_has_a_section_of_wandb_and_is_found_again(logged: str, shown: str) -> None:
    assert (shown_name(logged), name_in_log(shown)) == (shown, logged)
    assert name_in_log(f"train/{logged}") == logged or logged.startswith("eval_"), "as earlier versions named it"


def test_how_a_run_ended_is_told_and_its_error_goes_on(told, folder: RunFolder) -> None:
    stopped = ["preempted", "finish 1"]
    for error, said in ((ValueError(), ["finish 1"]), (KeyboardInterrupt(), stopped), (Preempted("stopped"), stopped)):
        tracker = told("finish 1")
        with pytest.raises(type(error)):
            report(folder, error=error)
        assert tracker.said[-len(said) :] == said
        assert ("preempted" in tracker.said) == ("preempted" in said)


SECRETS = {"JUDGE_KEY": "judgekey-planted88", "HF_TOKEN": "hf_planted0123456789abcdefghij"}
NEEDLES = ("judgekey-planted88", "hf_planted0123456789", "notepw99")


def telling(place: Path) -> RunFolder:
    """A run that has a secret wherever one can be: configuration, notes, tags, a command, a completion."""
    key, token = SECRETS.values()
    track = {**CONFIG["track"], "notes": f"see http://me:notepw99@host/{key}", "tags": [f"by-{key}"]}  # type: ignore[dict-item]
    config = {**CONFIG, "track": track, "trainer": {"name": "grpo", "args": {"hub_token": token, "url": f"u?{key}"}}}
    of_command = {"command": f"rlhf train a={key}", "cwd": str(place)}
    folder = logged_run(place / "runs" / "quickstart" / "one", config=config, provenance=of_command)
    write_completions(folder, 1, prompt=f"say {key}", completion=f"{key} and {token}")
    return folder


def told_in(place: Path) -> set[str]:
    """Return the needles in what a tracker wrote: everything but the run folder's own files, which are not its."""
    ours = ("config.yaml", "provenance.json", "completions_00001.parquet", "metrics.jsonl")
    found = tellers(place, NEEDLES).items()
    return {needle for needle, files in found if any(not file.endswith(ours) for file in files)}


def test_wandb_gets_the_command_without_its_secrets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = SECRETS["HF_TOKEN"]
    monkeypatch.setattr(sys, "argv", ["rlhf", "train", "seed=12345678", f"trainer.args.hub_token={token}"])
    report(logged_run(place / "runs" / "quickstart" / "one"))
    assert set(tellers(place, ("seed=12345678", token))) == {"seed=12345678"}


@pytest.mark.fault(48)
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_no_secret(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control is in the same test: with nothing hidden the same search finds every secret."""
    pytest.importorskip("tensorboard", reason="pip install 'rlhf-cli[tensorboard]'")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
        remember(value)
    folder = telling(place)
    assert report(folder, "tensorboard") == []
    assert told_in(place) == set()
    monkeypatch.setattr(redaction, "_forms", lambda values: [])
    monkeypatch.setattr(redaction, "_SHAPES", {})
    monkeypatch.setattr(redaction, "_IN_TEXT", ())
    monkeypatch.setattr(redaction, "_is_hidden_by_key", lambda key, value: False)
    report(folder, "tensorboard")
    assert told_in(place) == set(NEEDLES)


# What a run is summed up as: where it ended, its best with the step, and an evaluation's interval, by hand.


def test_the_best_stretch_is_as_wide_as_the_last_and_ends_at_its_step() -> None:
    """Of 30 events a tenth is three. 0, 0, 0 but for 0.6 at the events 10 to 12 and 0.9 alone at 20: the best three
    are those, 0.6 against 0.3, and end at step 12 * 5; the last three have 0.1, 0.2 and 0.3.
    """
    values, name = [0.0] * 30, "rewards/correct/mean"
    values[9:12], values[19], values[27:] = [0.6] * 3, 0.9, [0.1, 0.2, 0.3]
    found = final_values([{"step": 5 * place, "time_s": 0.1, name: value} for place, value in enumerate(values, 1)])
    assert found == {f"final/{name}": pytest.approx(0.2), f"best/{name}": pytest.approx(0.6), f"best_step/{name}": 60}


def test_of_a_loss_the_least_is_the_best_and_of_an_accuracy_the_greatest() -> None:
    losses, accuracies, evaluated = (0.7, 0.4, 0.6, 0.5), (0.5, 0.4, 0.8, 0.7), (None, 0.6, 0.5, 0.8)
    log = [{"step": 1 + place, "time_s": 0.1, "loss": loss} for place, loss in enumerate(losses)]
    for event, accuracy, loss in zip(log, accuracies, evaluated, strict=True):
        event |= {"accuracy": accuracy, **({} if loss is None else {"eval_loss": loss})}
    found = final_values(log)
    assert (found["final/train/loss"], found["best/train/loss"], found["best_step/train/loss"]) == (0.5, 0.4, 2)
    assert (found["best/train/accuracy"], found["best_step/train/accuracy"]) == (0.8, 3)
    assert (found["final/eval/loss"], found["best/eval/loss"], found["best_step/eval/loss"]) == (0.8, 0.5, 3)


def test_a_structure_in_a_table_is_json_that_people_read() -> None:
    assert mirror_module._plain({"stadt": "Köln"}) == '{"stadt": "Köln"}'


def test_what_wandb_was_sent_live_is_marked_and_what_it_recorded_offline_is_not(told, folder: RunFolder) -> None:
    for mode, is_sent in (("online", True), ("offline", False)):
        record = folder.path / mode / "run-1.wandb"
        record.parent.mkdir()
        record.touch()
        told().settings = SimpleNamespace(mode=mode, sync_dir=record.parent)
        with Mirror(folder, TrackingPlan(mode), say=print).attempt():  # type: ignore[arg-type]
            pass
        assert (len(list(record.parent.iterdir())) == 2) == is_sent


# wandb's own record of a run that was logged, read back: what its users would find in the browser.


@pytest.fixture
def job(place: Path) -> RunFolder:
    """A job of a sweep, with an evaluation at step 4."""
    sweep = place / "runs" / "quickstart" / "swept"
    folder = logged_run(sweep / "weight=2,seed=3")
    (sweep / "sweep.json").write_text("{}")
    write_evaluation(folder, 4)
    return folder


def test_wandb_is_silent_and_gives_up_in_time(job: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("wandb.init", lambda **words: given.update(words) or MagicMock(step=0, resumed=False))
    mirror_module.opened(tracked_run(job), "offline")
    settings = given["settings"]
    assert (settings.silent, settings.console, settings.finish_timeout_raises) == (True, "off", True)
    assert (settings.init_timeout, settings.finish_timeout) == (30, 60)


def test_one_run_says_everything_once(job: RunFolder) -> None:
    """One record is read for all: importing and running wandb is what these tests cost.

    `final` of four events is the last (a tenth of four, at least one), `best` the greatest: 0.9 at step 2.
    """
    assert report(job) == []
    (read,) = records(job.path)
    assert (read.run["display_name"], read.run["run_group"]) == ("weight=2,seed=3", "quickstart/swept")
    assert (read.run["job_type"], read.run["project"], read.run["notes"]) == ("grpo", "sums", "n")
    assert set(read.run["tags"]) == {"quickstart", "tiny", "toy_sums", "mine"}
    assert (read.run["run_id"], read.exit_code) == ("0123abcd", 0)
    # The configuration is the experiment as it is nested, and a few words of provenance.
    own = {name: value for name, value in read.config.items() if name not in ("_wandb", "provenance")}
    assert own == CONFIG
    assert set(read.config["provenance"]) == {"command", "versions"}
    assert leaves(read.config["provenance"]) == 4
    # Every metric is over the optimizer's step, which is wandb's step too, and has the name of metrics.jsonl.
    assert read.axes == {"*": STEP}
    assert list(read.steps) == [1, 2, 3, 4] == list(read.series(STEP).values())
    assert read.series("train/reward") == dict(enumerate(REWARDS, 1))
    of_training = {"train/reward", "rewards/correct/mean", "housekeeping/epoch", "housekeeping/time_s", STEP}
    of_evaluation = {"eval/greedy/total", "eval/greedy/total/low", "eval/greedy/total/high"}
    of_evaluation |= {"eval/greedy/rewards/correct", "eval/pass@4/correct"}
    assert read.metrics == of_training | of_evaluation
    assert set(read.series("eval/greedy/total")) == {4}
    expected = {
        **{"final/train/reward": 0.5, "best/train/reward": 0.9, "best_step/train/reward": 2},
        **{"final/rewards/correct/mean": 0.25, "best/rewards/correct/mean": 0.45},
        **{"final/eval/greedy/total": 0.6, "final/eval/greedy/rewards/correct": 0.3},
        **{"final/eval/greedy/total/low": None, "final/eval/greedy/total/high": None},
        **{"train_runtime": 6.5, "train_loss": 0.01, "train/reward": 0.5},
    }
    assert {name: read.summary.get(name) for name in expected} == expected
    # Tables: one a step under one name, and an evaluation's answers.
    by_step = tables(job.path, "completions")
    assert [table["data"][0][:3] for table in by_step] == [[step, "1+1=", f"two at {step}"] for step in range(1, 5)]
    (answers,) = tables(job.path, "evaluation_answers")
    assert dict(zip(answers["columns"], answers["data"][0], strict=True)) == {
        **{"step": 4, "prompt": "user: 1+1=", "completion": "2\u2028", "part": "greedy", "sample": 0},
        **{"total": 0.6, "correct": 0.3},
    }
