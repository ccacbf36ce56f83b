"""`rlhf reproduce`: runs that should be equal are compared up to their first difference, without clocks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml

from rlhf_cli.analysis.verification import NOT_LOGGED, Reproduction, compare_again
from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.tables.metrics import is_of_the_clock

Log = list[dict[str, Any]]
SETTINGS = {"seed": 0, "trainer": {"args": {"learning_rate": 1e-3, "logging_steps": 1}}, "run": {"name": "one"}}
PROVENANCE: dict[str, Any] = {
    "sha256": {"config": "c", "data": "d"},
    "starting_model": {"path": "/m", "commit": None, "weights_sha256": "f"},
    "versions": {"torch": "2.13.0", "wandb": None},
    "host": {"name": "here", "processor": "A"},
    "git": {"commit": "0"},
}


def log(**changes: dict[str, Any]) -> Log:
    """Return six steps, an evaluation after the third, and the line that summarises the call; `s4` changes step 4."""
    events: Log = []
    for step in range(1, 7):
        logged = {"loss": 0.1 / step, "reward": step / 7, "rewards/a/seconds": 0.01 * step, "kl": None}
        events.append({"step": step, "time_s": 1.1 * step, **logged, **changes.get(f"s{step}", {})})
        if step == 3:
            events.append({"step": 3, "time_s": 3.5, "eval_loss": 0.2, **changes.get("eval", {})})
    return [*events, {"step": 6, "time_s": 9.0, "train_runtime": 9.0, "train_loss": 0.05}]


@pytest.fixture
def compared(tmp_path: Path):
    """`compared(log, log, ...)`: two runs with these logs, settings and facts, compared."""

    def of(one: Log, two: Log, *, settings: Any = None, facts: Any = None, up_to: int | None = None) -> Reproduction:
        runs = [RunFolder(tmp_path / name) for name in ("one", "two")]
        added = [({}, {}), (settings or {}, facts or {})]
        for run, events, (more, known) in zip(runs, (one, two), added, strict=True):
            run.path.mkdir(exist_ok=True)
            run.metrics.write_text("".join(json.dumps(event) + "\n" for event in events))
            run.config.write_text(yaml.safe_dump({**SETTINGS, **more}))
            run.provenance.write_text(json.dumps({**PROVENANCE, **known}))
        return compare_again(*runs, up_to=up_to)

    return of


def test_equal_but_for_the_clock(compared) -> None:
    found = compared(log(), log(s2={"rewards/a/seconds": 9.0, "time_s": 77.0}))
    assert (found.equal, found.steps, found.first_step, found.causes) == (True, 6, None, [])
    assert found.numbers == 6 * 3 + 1  # loss, reward and kl of six steps; the loss of one evaluation


@pytest.mark.parametrize(
    ("change", "step", "metric", "before", "after"),
    [
        ({"s4": {"reward": 4 / 7 * (1 + 2**-52)}}, 4, "reward", 4 / 7, 4 / 7 * (1 + 2**-52)),  # the last bit counts
        ({"s1": {"kl": 0.0}}, 1, "kl", None, 0.0),  # null is equal only to null
        ({"s2": {"entropy": 1.0}}, 2, "entropy", NOT_LOGGED, 1.0),
        ({"s3": {"loss": 5.0}, "eval": {"eval_loss": 1.0}}, 3, "loss", 0.1 / 3, 5.0),  # an evaluation follows its step
        ({"s5": {"loss": 9.0, "kl": 2.0, "reward": 0.0}}, 5, "reward", 5 / 7, 0.0),  # the order of computation
    ],
)
def test_the_first_difference(change: Any, step: int, metric: str, before: Any, after: Any, compared) -> None:
    found = compared(log(), log(**change))
    first = found.first_difference
    assert (found.equal, found.first_step) == (False, step)
    assert (first.name, first.before, first.after) == (metric, before, after)


def test_all_that_differs_at_the_step_and_nothing_later(compared) -> None:
    found = compared(log(), log(s3={"loss": 5.0}, eval={"eval_reward": 1.0}, s4={"loss": 7.0}))
    assert (found.first_step, found.also) == (3, ["eval_reward"])
    assert compared(log(), log(s4={"loss": 7.0}), up_to=3).equal
    # A run that was resumed after step 3 has the line of its first call there.
    (*before, summary), after = log(), log(s4={"loss": 7.0})[4:]
    assert compared(log(), [*before[:4], summary, *before[4:]]).equal
    assert compared(log(), [*before[:4], summary, *after]).first_step == 4


def test_a_run_that_ended_earlier_differs(compared) -> None:
    short = [event for event in log() if event["step"] < 5]
    found = compared(log(), short)
    assert (found.first_step, found.first_difference.after) == (5, NOT_LOGGED)
    assert compared(log(), short, up_to=4).equal
    assert not compared(short, log()).equal
    empty = compared([], [])
    assert (empty.equal, empty.steps, empty.numbers, compared([], log()).numbers) == (True, 0, 0, 0)
    assert compared(log(), []).numbers == 19  # those of the run that is made again


def test_an_evaluation_is_compared_with_an_evaluation(compared) -> None:
    """The second run logged only this at the third step."""
    found = compared(log(), [event for event in log() if event["step"] != 3 or "eval_loss" in event])
    assert {found.first_difference.name, *found.also} == {"kl", "loss", "reward"}


def test_several_events_of_a_step_are_compared_in_their_order(compared) -> None:
    """A step that is no whole number is read as elsewhere."""
    one, other = (
        [{"step": 2.5, "time_s": 1.0, "loss": loss} for loss in losses] for losses in ((1.0, 2.0, 3.0), (1.0, 9.0, 8.0))
    )
    found = compared(one, other)
    first = found.first_difference
    assert (found.first_step, first.before, first.after, found.numbers) == (2, 2.0, 9.0, 3)


@pytest.mark.parametrize(
    ("settings", "facts", "causes"),
    [
        ({"seed": 1}, {}, ["seed"]),
        ({"trainer": {"args": {"learning_rate": 1e-3, "logging_steps": 10}}}, {}, ["trainer.args.logging_steps"]),
        ({"run": {"name": "two"}, "warn": {"kl": False}, "expect": "x", "track": {"mode": "none"}}, {}, []),
        ({}, {"sha256": {"config": "x", "data": "e"}}, ["sha256.data"]),
        ({}, {"starting_model": {"path": "/n", "weights_sha256": "0"}}, ["starting_model.weights_sha256"]),
        ({}, {"versions": {"torch": "2.14.0", "wandb": "1"}}, ["versions.torch"]),
        ({}, {"host": {"name": "there", "processor": "B"}, "git": None}, ["host.processor"]),
        ({}, {"torch_threads": 2}, []),  # the first run is of a version that did not record it
    ],
)
def test_possible_causes(settings: Any, facts: Any, causes: list[str], compared) -> None:
    found = compared(log(), log(), settings=settings, facts=facts)
    assert ([cause.name for cause in found.causes], found.equal) == (causes, True)


def test_weights_are_compared_at_the_same_step(compared, tmp_path: Path) -> None:
    """A checkpoint that only one run kept is not compared, nor missing weights at the end."""
    for name, weights in (("one", b"one"), ("two", b"two")):
        for step, content in ((3, b"same"), (6, weights)):
            folder = tmp_path / name / "checkpoints" / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_bytes(content)
    (tmp_path / "one" / "checkpoints" / "checkpoint-5").mkdir()
    for step, is_equal in ((3, True), (6, False)):
        found = compared(log(), log(), up_to=step)
        assert ([part.name for part in found.weights], found.equal) == ([f"checkpoint-{step}"], is_equal)
    assert compared(log(), log(), up_to=5).weights == compared(log(), log()).weights == []


@pytest.mark.whole
def test_the_table_of_clocks_has_all_that_differs_between_two_equal_runs(train) -> None:
    """Two equal runs differ in clocks only, and in every clock that they log."""
    words = ["trainer.args.eval_strategy=steps", "trainer.args.eval_steps=3", "data.eval.fraction=0.1"]
    logs = [
        [json.loads(line) for line in train(*words, name=name)[1].metrics.read_text().splitlines()]
        for name in ("one", "two")
    ]
    differing = {
        name
        for one, other in zip(*logs, strict=True)
        for name in one.keys() | other.keys()
        if one.get(name, "-") != other.get(name, "-")
    }
    assert {name for name in differing if not is_of_the_clock(name)} == set()
    assert {"time_s", "step_time", "rewards/correct/seconds", "eval_runtime"} <= differing


SCORES = "def score(completions, **columns):\n    return [float(text[:1] {sign} 'P') for text in completions]\n"
"""A reward whose values depend on its sign."""
Say = pytest.CaptureFixture[str]


@pytest.fixture
def begun(train, workplace: Path) -> RunFolder:
    """Return a run of three steps with its own reward and data file."""
    write_reward(workplace, "<")
    rows = [{"prompt": f"{a}+{b}=", "a": a, "b": b} for a in range(8) for b in range(8)]
    (workplace / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, folder = train("+rewards.mine.fn=./mine.py:score", "data=file", "data.path=rows.jsonl", "~data.args")
    assert code == 0
    return folder


def write_reward(place: Path, sign: str) -> None:
    """Write the reward's file and unload its module, which the tests' process imports only once."""
    (place / "mine.py").write_text(SCORES.format(sign=sign))
    for name in [name for name, mod in sys.modules.items() if getattr(mod, "__file__", "") == str(place / "mine.py")]:
        del sys.modules[name]


def again(capsys: Say, *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["reproduce", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.whole
def test_equal_runs_and_every_kind_of_change(begun: RunFolder, workplace: Path, capsys: Say) -> None:
    """Run one run again unchanged, then with another seed, schedule, reward file and data file."""
    run = begun.shown
    before = begun.metrics.read_bytes(), begun.provenance.read_bytes()
    code, said = again(capsys, run)
    assert (code, said["equal"], said["steps"], said["first_difference"], said["causes"]) == (0, True, 3, None, [])
    assert ([part["name"] for part in said["weights"]], said["again"]) == (["model"], "runs/reproduced/quickstart-one")

    code, said = again(capsys, run, "seed=1")
    assert (code, said["first_step"], [cause["name"] for cause in said["causes"]]) == (1, 1, ["seed"])

    assert again(capsys, run, "launch.nodes=2")[0] == 2  # it would train on this machine alone

    # Both schedules have the same learning rate at the first step.
    code, said = again(capsys, run, "trainer.args.lr_scheduler_type=constant")
    assert (code, said["equal"], said["first_step"], said["first_difference"]["name"]) == (1, False, 2, "learning_rate")

    write_reward(workplace, ">")
    code, said = again(capsys, run)
    assert (code, said["first_step"]) == (1, 1)
    assert said["first_difference"]["name"].startswith("rewards/mine/")
    assert [cause["name"] for cause in said["causes"]] == ["sha256.rewards.mine"]
    write_reward(workplace, "<")

    # A row that the second step uses first.
    prompt = pyarrow.parquet.read_table(begun.path / "completions" / "completions_00002.parquet")["prompt"][0].as_py()
    text = (workplace / "rows.jsonl").read_text()
    (workplace / "rows.jsonl").write_text(text.replace(f'"{prompt}"', '"77+77="'))
    code, said = again(capsys, run)
    assert (code, said["first_step"], [cause["name"] for cause in said["causes"]]) == (1, 2, ["sha256.data"])

    # The run itself is unchanged.
    assert (begun.metrics.read_bytes(), begun.provenance.read_bytes()) == before


@pytest.mark.whole
def test_the_first_steps_have_the_schedule_of_the_whole_run(train, capsys: Say) -> None:
    _, folder = train("trainer.args.save_steps=2")
    code, said = again(capsys, folder.shown, "--steps", "2")
    new = RunFolder(Path(said["again"]))
    assert (code, said["equal"], said["steps"], read_status(new).step) == (0, True, 2, 2)
    assert [part["name"] for part in said["weights"]] == ["checkpoint-2"]
    code, said = again(capsys, folder.shown, "--steps", "2", "trainer.args.max_steps=2")
    assert (code, said["first_difference"]["name"]) == (1, "learning_rate")


@pytest.mark.whole
def test_two_existing_runs(train, workplace: Path, capsys: Say) -> None:
    _, folder = train()
    shutil.copytree(folder.path, workplace / "copy")
    assert again(capsys, folder.shown, "--against", "copy")[0] == 0
    weights = next((workplace / "copy" / "model").glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    code, said = again(capsys, folder.shown, "--against", "copy")
    assert (code, said["equal"], said["first_difference"], said["weights"][0]["name"]) == (1, False, None, "model")


@pytest.mark.whole
def test_a_stopped_run_is_reproduced_up_to_its_last_step(train, capsys: Say) -> None:
    """Its deadline has passed since then, as for any run of yesterday."""
    _, folder = train("stop.when=step >= 2", "launch.must_save_by=2090-01-01T06:00")
    assert read_status(folder).step == 2
    folder.config.write_text(folder.config.read_text().replace("2090-", "2020-"))
    code, said = again(capsys, folder.shown)
    assert (code, said["equal"], said["steps"]) == (0, True, 2)
