"""`rlhf sync`: which records are sent, by wandb's own command, and what it says where it cannot."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import claim
from rlhf_cli.runs.tracking import wandb_files
from rlhf_cli.runs.tracking.wandb_files import Sending, cut_off_half_a_record, upload
from tests.runs.tracking.tracked_runs import CONFIG, logged_run, report
from tests.support.wandb_read_back import read_back

pytestmark = pytest.mark.whole

Said = pytest.CaptureFixture[str]


def record(folder: RunFolder, name: str = "offline-run-20261122_101500-0123abcd", *, sent: bool = False) -> Path:
    """Put a record of wandb's into a folder; its content does not matter."""
    file = folder.path / "wandb" / name / "run-0123abcd.wandb"
    file.parent.mkdir(parents=True)
    file.write_bytes(b":W&B")
    if sent:
        file.with_name(file.name + ".synced").touch()
    return file


@pytest.fixture
def logged_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretend a login at a server that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        yield


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """What wandb's client is given: one that sends all but the runs that are named b."""
    asked: list[list[Path]] = []

    def send(files: Sequence[Path]) -> str:
        asked.append(list(files))
        refused = [file for file in files if "/b/" in str(file)]
        for file in set(files) - set(refused):
            file.with_name(file.name + ".synced").touch()
        said = [f"wandb: ERROR {file.parent.name}: permission denied" for file in refused]
        return "\n".join(["wandb: Syncing...", *said, "wandb: done"])

    monkeypatch.setattr(wandb_files, "upload", send)
    return asked


def test_what_a_kill_cut_off_is_taken_away(place: Path) -> None:
    """The rest is whole to wandb's own reader; `wandb sync` would send it twice, and no later attempt."""
    folder = logged_run(place / "runs" / "quickstart" / "one")
    report(folder)
    (file,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    whole = file.read_bytes()
    cut_off_half_a_record(file)
    assert file.read_bytes() == whole
    file.write_bytes(whole[:-3])
    cut_off_half_a_record(file)
    kept = file.read_bytes()
    assert whole.startswith(kept)
    assert len(whole) - 3 > len(kept)
    found = read_back(file).text.splitlines()
    file.write_bytes(whole)
    assert found == read_back(file).text.splitlines()[: len(found)]
    assert len(found) > 4


def chunk(kind: int, size: int) -> bytes:
    """A chunk of LevelDB's log: checksum, length, type and data."""
    return bytes(4) + size.to_bytes(2, "little") + bytes([kind]) + bytes(size)


def test_records_of_several_chunks_are_kept_whole(tmp_path: Path) -> None:
    """By LevelDB's log_format.md: full 1, first 2, middle 3, last 4; five bytes at a block's end are padding."""
    block, file = 32 * 1024, tmp_path / "run-0.wandb"
    begun = bytes(7) + chunk(1, 100)
    first = begun + chunk(2, block - len(begun) - 7)
    middle = first + chunk(3, block - 7)
    last = middle + chunk(4, block - 5 - 7)
    padded = last + bytes(5) + chunk(1, 9)
    for written, kept in (
        *((begun, begun), (first, begun), (middle, begun), (last, last), (padded, padded), (padded[:-1], last)),
        (begun + chunk(1, 0), begun + chunk(1, 0)),
        *((begun + chunk(5, 9), begun), (begun + bytes(3), begun), (bytes(7) + chunk(0, 9), bytes(7) + chunk(0, 9))),
    ):
        file.write_bytes(written)
        cut_off_half_a_record(file)
        assert len(file.read_bytes()) == len(kept)


def test_records_of_attempts_are_sent_in_their_order_and_marked(tmp_path: Path) -> None:
    """An attempt without a network begins with another word, and a resumed one has the same id."""
    names = ("run-20261122_101500-0123abcd", "offline-run-20261122_101501-0123abcd", "run-20261122_101502-0123abcd")
    files = [record(RunFolder(tmp_path), name) for name in reversed(names)][::-1]
    assert wandb_files.unsent(tmp_path) == wandb_files.records_of(tmp_path) == files
    wandb_files.mark_sent(files[0].parent)
    assert wandb_files.unsent(tmp_path) == files[1:]


def test_wandb_cannot_ask_at_the_terminal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says before it fails is returned."""
    python = place / "python"
    python.write_text("#!/bin/sh\necho $*; echo 'not done ' >&2; exit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    given, run = dict[str, Any](), subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **words: given.update(words) or run(command, **words))
    assert upload([]) == "-m wandb sync --include-online\nnot done"
    assert given["stdin"] == subprocess.DEVNULL


def test_why_a_run_was_not_sent_is_the_line_about_it(place: Path) -> None:
    left = record(RunFolder(place))
    sending = Sending(place, "to send", (left,))
    other, own = "wandb: ERROR run-9.wandb: no disk", f"wandb: ERROR {left.stem}: no permission"
    for lines in ([own, other], [other, own]):
        assert wandb_files._after(sending, "\n".join(lines)).why == own.removeprefix("wandb: ")
    assert wandb_files._after(sending, other).why == other.removeprefix("wandb: ")


def test_each_run_says_what_becomes_of_it(place: Path, logged_in: None, asked: list[list[Path]], capsys: Said) -> None:
    sweep = place / "runs" / "quickstart" / "swept"
    new, refused, old, none, live, other, damaged = (logged_run(sweep / name) for name in "abcdefg")
    track = {"mode": "none", "project": "sums"}
    none.config.write_text(json.dumps({**CONFIG, "track": track}))
    other.config.write_text(json.dumps({**CONFIG, "track": {**track, "mode": "offline", "tracker": "mlflow"}}))
    claim(live)
    waiting = [record(new), record(new, "offline-run-20261122_111500-0123abcd"), record(refused)]
    record(old, sent=True)
    for run in (live, damaged):
        record(run)
    damaged.status.write_text("")
    assert main(["sync", "runs", "--dry-run"]) == 1
    capsys.readouterr()
    assert asked == []
    assert main(["sync", "runs", "--json"]) == 1
    rows = {row["run"].rpartition("/")[2]: (row["state"], row["why"]) for row in json.loads(capsys.readouterr().out)}
    assert asked == [waiting]
    assert rows == {
        "a": ("sent", ""),
        "b": ("not sent", "ERROR offline-run-20261122_101500-0123abcd: permission denied"),
        "c": ("already sent", ""),
        "d": ("nothing to send", "track=none"),
        "e": ("still running", "it is sent once it has ended"),
        "f": ("nothing to send", "tracked by mlflow"),
        "g": ("not sent", rows["g"][1]),
    }


def test_nobody_is_logged_in(place: Path, asked: list[list[Path]], capsys: Said) -> None:
    record(logged_run(place / "runs" / "quickstart" / "one"))
    assert main(["sync", "runs"]) == 2
    said = capsys.readouterr().err
    assert "there is no wandb login for api.wandb.ai" in said
    assert "try:      wandb login\n" in said
    assert "export WANDB_API_KEY=..." in said
    assert main(["sync", "runs", "--dry-run"]) == 0
    assert capsys.readouterr().out.split() == ["to", "send", "runs/quickstart/one"]
    assert asked == []
    shutil.rmtree(place / "runs" / "quickstart" / "one" / "wandb")
    assert main(["sync", "runs"]) == 0  # nothing to send needs no login
