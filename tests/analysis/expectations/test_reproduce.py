"""`rlhf reproduce` finds equal runs equal, and names a change at the first step that it affects."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status

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
    for name in [
        name for name, module in sys.modules.items() if getattr(module, "__file__", "") == str(place / "mine.py")
    ]:
        del sys.modules[name]


def again(capsys: Say, *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["reproduce", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_equal_runs_and_every_kind_of_change(begun: RunFolder, workplace: Path, capsys: Say) -> None:
    """Run one run again unchanged, then with another seed, schedule, reward file and data file."""
    run = begun.shown
    before = begun.metrics.read_bytes(), begun.provenance.read_bytes()
    code, said = again(capsys, run)
    assert (code, said["equal"], said["steps"], said["first_difference"], said["causes"]) == (0, True, 3, None, [])
    assert [part["name"] for part in said["weights"]] == ["model"]
    assert said["again"] == "runs/reproduced/quickstart-one"

    code, said = again(capsys, run, "seed=1")
    assert (code, said["first_step"]) == (1, 1)
    assert [cause["name"] for cause in said["causes"]] == ["seed"]

    # Both schedules have the same learning rate at the first step.
    code, said = again(capsys, run, "trainer.args.lr_scheduler_type=constant")
    assert (code, said["equal"]) == (1, False)
    assert (said["first_step"], said["first_difference"]["name"]) == (2, "learning_rate")

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
    assert (code, said["first_step"]) == (1, 2)
    assert [cause["name"] for cause in said["causes"]] == ["sha256.data"]

    # The run itself is unchanged.
    assert (begun.metrics.read_bytes(), begun.provenance.read_bytes()) == before


def test_the_first_steps_have_the_schedule_of_the_whole_run(train, capsys: Say) -> None:
    _, folder = train("trainer.args.save_steps=2")
    code, said = again(capsys, folder.shown, "--steps", "2")
    new = RunFolder(Path(said["again"]))
    assert (code, said["equal"], said["steps"], read_status(new).step) == (0, True, 2, 2)
    assert [part["name"] for part in said["weights"]] == ["checkpoint-2"]
    code, said = again(capsys, folder.shown, "--steps", "2", "trainer.args.max_steps=2")
    assert (code, said["first_difference"]["name"]) == (1, "learning_rate")


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


def test_a_stopped_run_is_reproduced_up_to_its_last_step(train, capsys: Say) -> None:
    _, folder = train("stop.when=step >= 2")
    assert read_status(folder).step == 2
    code, said = again(capsys, folder.shown)
    assert (code, said["equal"], said["steps"]) == (0, True, 2)
