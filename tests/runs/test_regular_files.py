"""Files that are no regular ones, or cut, empty, binary, deep, endless: one message, a way out, no other run hidden."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.errors import ModelError, RunError
from rlhf_cli.evaluation.evaluation_results import read_evaluation
from rlhf_cli.models.tokenizer_files import read_json as read_model_json
from rlhf_cli.runs.checkpoint_folders import MANIFEST, problem_with
from rlhf_cli.runs.heartbeat import heartbeat_files, while_running
from rlhf_cli.runs.metrics_file import iter_metrics, read_metrics
from rlhf_cli.runs.reward_records import failed_rows
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, run_result, update_status
from rlhf_cli.text.regular_files import lines_of, parse_json, read_object, read_regular
from tests.support.begun_runs import begun

FILES = ("config.yaml", "provenance.json", "status.json", "metrics.jsonl")
EVENT = {"step": 1, "time_s": 1.0, "reward": 0.5}
KINDS: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "device": lambda file: file.symlink_to("/dev/zero"),
    "too many levels": lambda file: file.write_text('{"step": 1, "time_s": 1, "a":' + "[" * 900 + "]" * 900 + "}\n"),
    "too deep objects": lambda file: file.write_text('{"step": 1, "time_s": 1, "a":' + '{"a":' * 900 + "1" + "}" * 901),
    "deep": lambda file: file.write_text('{"step": 1, "time_s": 1, "a":' + "[" * 200_000 + "]" * 200_000 + "}\n"),
    "309 digits": lambda file: file.write_text(f'{{"step": 1, "time_s": 1, "reward": {"9" * 309}}}\n'),
    "UTF-16": lambda file: file.write_text(json.dumps(EVENT) + "\n", encoding="utf-16"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_reader_waits_or_raises_anything_else(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    KINDS[kind](file)
    for read in (read_object, read_evaluation):
        with pytest.raises((OSError, ValueError)):
            read(file)
    with pytest.raises(ModelError, match=r"file\.json"):
        read_model_json(file)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_one_run_hides_no_other(kind: str, name: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = begun(name="good")
    good.metrics.write_text(json.dumps(EVENT) + "\n")
    bad = RunFolder(Path(shutil.copytree(good.path, good.path.with_name("bad"))))
    (bad.path / name).unlink()
    KINDS[kind](bad.path / name)
    for verb in ("status", "compare"):
        assert main([verb, "runs"]) == 0
        said = capsys.readouterr()
        assert "good" in said.out or verb == "compare"
        assert "Traceback" not in said.err
    assert main(["why", str(bad.path)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_the_smaller_files_of_a_run(workplace: Path) -> None:
    run = begun(step=7)
    os.mkfifo(run.reward_errors)
    assert failed_rows(run) == {}
    (run.checkpoints / "checkpoint-7" / MANIFEST).unlink()
    os.mkfifo(run.checkpoints / "checkpoint-7" / MANIFEST)
    assert MANIFEST in str(problem_with(run.checkpoints / "checkpoint-7"))
    os.mkfifo(run.path / "heartbeat-rank0")
    assert heartbeat_files(run.path), "the name of such a file has changed"
    assert while_running(run.path) == ""
    run.metrics.write_text("[" * 100_000 + "\n" + json.dumps(EVENT) + "\n")
    assert run_result(run)["step"] == 7


def test_a_log_is_read_line_by_line(tmp_path: Path) -> None:
    """The first event comes although the file's end is damaged; a list would have failed first."""
    (file := tmp_path / "metrics.jsonl").write_text(json.dumps(EVENT) + "\n{broken\n" + json.dumps(EVENT) + "\n")
    events = iter_metrics(file)
    assert next(events) == EVENT
    with pytest.raises(RunError, match="line 2"):
        next(events)


def test_an_endless_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)  # sparse: no line end anywhere
    with pytest.raises(OSError, match="line"):
        next(lines_of(file))
    with pytest.raises(OSError, match="bytes"):
        read_regular(file)
    with pytest.raises(RunError):
        read_metrics(file)


def test_what_is_still_read() -> None:
    assert parse_json('{"a": [1, -2.5, NaN, null], "b": ' + "[" * 90 + "]" * 90 + "}")
    assert parse_json("9" * 300) == int("9" * 300)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *itertools.product(FILES, (bytes(range(128, 256)), b'["not", "expected"]\n')),
        *itertools.product(FILES[:3], (b"",)),
        *(("config.yaml", bytes(99)), ("provenance.json", b'{"half'), ("status.json", b'{"half')),
    ],
)
def test_resume_names_it_and_ends_with_2(workplace: Path, capsys, name: str, content: bytes) -> None:
    """A kill leaves half of a log, no line or zeros: those are read."""
    folder = begun(name="bad")
    folder.metrics.write_text(json.dumps(EVENT) + "\n")
    (folder.path / name).write_bytes(content)
    assert main(["resume", str(folder.path)]) == 2
    told = capsys.readouterr().err
    assert f"{name} cannot be read" in told
    assert str(Path("bad") / name) in told
    assert "try: " in told or "advice: " in told
    assert "Traceback" not in told
    assert told.count("error:") == 1


def test_a_run_does_not_die_of_a_status_that_somebody_damaged(make_run) -> None:
    folder = make_run()
    folder.status.write_text('{"state": "runn')
    update_status(folder, step=4)
    assert (read_status(folder).state, read_status(folder).step) == ("running", 4)
