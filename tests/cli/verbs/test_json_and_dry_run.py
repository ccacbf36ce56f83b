"""The JSON of every verb has the keys of docs/reference/json.md (tests/agents tests those that train); `--dry-run`
shows the commands of all processes and starts and writes nothing.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import VERBS
from tests.support.begun_runs import begun
from tests.support.json_shapes import described, is_described

Said = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("place")
QUICKSTART = "+exp=quickstart"


@pytest.mark.parametrize(
    "words",
    [
        *(["check", QUICKSTART], ["check", QUICKSTART, "--rows", "2"], ["train", "--dry-run", "+exp=toy_ppo"]),
        *(["list", "reward", "judge"], ["list", "trainer", "grpo"], ["list", "exp", "quickstart"]),
        *(["list", "keys", "rewards"], ["list", "metrics", "entropy"], ["show", QUICKSTART, "--changed"]),
        ["score", QUICKSTART, "--completions", "said.jsonl", "--label", "good"],
        *(["audit", QUICKSTART, "--limit", "4"], ["doctor"], ["init", "here"], ["status"]),
        ["schema", "--out", "a.json"],
    ],
    ids=" ".join,
)
def test_the_printed_json_has_the_documented_keys(words: list[str], place: Path, capsys: Said) -> None:
    row = {"prompt": "1+1=", "a": 1, "b": 1, "answer": "2"}
    rows = [{**row, "completion": text, "good": text == "2"} for text in ("2", "two", "3")]
    (place / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([*words, "--json"]) == 0
    assert is_described(words[0], json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"completion"}))
def test_problems_have_the_same_keys_in_every_verb(verb: str, capsys: Said) -> None:
    assert main([verb, "--no-such-option", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["problems"][0]["where"] == "command line"
    assert set(said["problems"][0]) == {"kind", "what", "where", "got", "expected", "try", "advice"}


def test_every_verb_is_described_and_an_undocumented_key_is_noticed() -> None:
    assert set(described()) == set(VERBS) - {"completion"}
    printed = {"can_train": True, "conditions": []}
    assert is_described("doctor", printed)
    assert not is_described("doctor", {**printed, "more": 1})
    assert not is_described("doctor", {"can_train": True})


TRAIN = ["train", QUICKSTART, "track=none"]
ROWS = "trainer.args.per_device_train_batch_size=32"


def dry(capsys: Said, *words: str) -> list[str]:
    assert main([*TRAIN, "--dry-run", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_two_ranks(place: Path, narrow: None, capsys: Said) -> None:
    lines = dry(capsys, "launch.processes=2", ROWS, "run.name=mine")
    assert list(place.iterdir()) == []
    (rank,) = [line for line in lines if line.startswith("rank 1  ")]
    assert rank.startswith("rank 1  RANK=1 LOCAL_RANK=1 ")
    assert rank.endswith(f"-m rlhf_cli.launch.rank_process {place}/runs/quickstart/mine")
    (shared,) = [line for line in lines if line.startswith("every rank  export ")]
    assert "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=0" in shared
    assert {"log  runs/quickstart/mine/log.txt", "resume  rlhf resume runs/quickstart/mine"} <= set(lines)
    assert lines[-1] == "nothing was started or written"


def test_two_machines(place: Path, narrow: None, capsys: Said) -> None:
    """Show the torchrun command to type on each machine. Without torchrun, the run is refused."""
    words = ("launch=cpu", "launch.nodes=2", "run.name=mine", ROWS)
    (line,) = [line for line in dry(capsys, *words) if line.startswith("every machine  ")]
    assert "torchrun --nnodes=2 --nproc-per-node=1 " in line
    assert {QUICKSTART, "launch=cpu", "launch.nodes=2"} <= set(line.partition("rlhf train ")[2].split())
    for more in ([], ["-m", "seed=1,2"], ["-m", "sweep=weights", "sweep.objective=correct"]):
        assert main([*TRAIN, *words, *more]) == 2
        error = capsys.readouterr().err
        assert "where:    launch.nodes (command line)" in error
        assert "torchrun" in error
    assert list(place.iterdir()) == []


def test_a_search_needs_m(narrow: None, capsys: Said) -> None:
    words = [*TRAIN, "sweep.objective=[correct, loss]", "sweep=weights", "--dry-run"]
    assert main(words) == 2
    typed = shlex.split(capsys.readouterr().err.partition("try:")[2])
    assert sorted(typed) == sorted(["rlhf", "train", "-m", *words[1:]])
    assert main(typed[1:]) == 0


def test_the_plan_of_a_sweep_has_its_runs(narrow: None, capsys: Said) -> None:
    assert main([*TRAIN, "-m", "seed=1,2", "--dry-run", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (is_described("train", printed), [job["values"] for job in printed["planned"]]) == (
        True,
        [{"seed": "1"}, {"seed": "2"}],
    )


def test_the_plan_of_a_resume(place: Path, narrow: None, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun("launch=cpu", "track=none")
    monkeypatch.setattr("rlhf_cli.launch.resuming.train_frozen", lambda *_, **__: pytest.fail("it was started"))
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert main(["resume", run.shown, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was started or written"
    assert main(["resume", run.shown, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (is_described("resume", planned), planned["folder"], planned["resumes"]) == (True, run.shown, True)
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before
