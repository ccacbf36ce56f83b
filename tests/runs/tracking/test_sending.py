"""`rlhf sync` by wandb's own client, to a server that answers as wandb's does; and what it says where it cannot."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import sync
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import claim
from tests.runs.tracking.tracked_runs import CONFIG, EVENTS, REWARDS, Mirrored, logged_run

_PROJECT = {"id": "UHJv", "name": "rlhf", "entity": {"id": "RW50", "name": "me"}}
_STREAMS = ("historyLineCount", "logLineCount", "eventsLineCount")


class Server(ThreadingHTTPServer):
    """`runs` is run id -> the variables it was made with, `history` run id -> rows, `files` the names uploaded."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.runs: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.files: set[str] = set()
        self.refused: set[str] = set()

    @property
    def url(self) -> str:
        """Return what WANDB_BASE_URL is to be."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the data of an answer to a question of wandb's GraphQL."""
        run = variables.get("name") or variables.get("run")
        if name == "RunResumeStatus":
            return {"model": {**_PROJECT, "bucket": self._known(str(run)) if run in self.history else None}}
        if name == "UpsertBucket":
            self.runs.setdefault(str(run), {}).update({key: one for key, one in variables.items() if one is not None})
            return {"upsertBucket": {"bucket": self._known(str(run)), "inserted": True}}
        if name == "CreateArtifact":
            artifact = {"id": "QXJ0", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "QXJ0"}}}
            return {"createArtifact": {"artifact": artifact}}
        if name == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.url}/upload/{file}"} for file in variables["files"]]
            return {"createRunFiles": {"runID": "QnVja2V0", "uploadHeaders": [], "files": files}}
        return {}

    def _known(self, run: str) -> dict[str, Any]:
        rows = self.history.get(run, [])
        tail = json.dumps([json.dumps(rows[-1])]) if rows else "[]"
        counts = {**dict.fromkeys(_STREAMS, 0), "historyLineCount": len(rows)}
        tails = {"historyTail": tail, "eventsTail": "[]", "summaryMetrics": "{}", "wandbConfig": '{"t": 1}'}
        return {
            "id": "QnVja2V0",
            "name": run,
            "displayName": run,
            "config": "{}",
            "project": _PROJECT,
            **counts,
            **tails,
        }


class _Answers(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        self._body()
        self.server.files.add(self.path.removeprefix("/upload/"))
        self._reply({})

    def do_POST(self) -> None:
        body = self._body()
        if not body.startswith(b"{"):
            self._reply({})
            return
        content = json.loads(body)
        if self.path.endswith("graphql"):
            variables = content.get("variables") or {}
            if variables.get("name") in self.server.refused:
                self._reply({"errors": [{"message": "permission denied"}]}, status=403)
                return
            self._reply({"data": self.server.answer(content["operationName"], variables)})
            return
        rows = self.server.history.setdefault(self.path.split("/")[-2], [])
        history = content.get("files", {}).get("wandb-history.jsonl")
        if history is not None:
            rows[history["offset"] :] = [json.loads(line) for line in history["content"]]
        self._reply({"limits": {}})

    def _reply(self, content: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _body(self) -> bytes:
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body


@contextlib.contextmanager
def wandb_stand_in() -> Iterator[Server]:
    """Open a context in which the server answers."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


Said = pytest.CaptureFixture[str]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Somebody is logged in at a server that stands in for wandb's."""
    with wandb_stand_in() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        yield server


def record(folder: RunFolder, name: str = "offline-run-20261122_101500-0123abcd", *, sent: bool = False) -> Path:
    """Put a record of wandb's into a folder, which nobody reads."""
    file = folder.path / "wandb" / name / "run-0123abcd.wandb"
    file.parent.mkdir(parents=True)
    file.write_bytes(b":W&B")
    if sent:
        file.with_name(file.name + ".synced").touch()
    return file


@pytest.fixture
def logged_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody is logged in at a server that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        yield


@pytest.fixture
def by_wandb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[Path]]]:
    """`by_wandb(refuses=...)`: a client that sends all but the runs named; returns what it is asked to send."""

    def put(refuses: str = "nobody") -> list[list[Path]]:
        asked: list[list[Path]] = []

        def send(files: Sequence[Path]) -> str:
            asked.append(list(files))
            said = []
            for file in files:
                if refuses in str(file):
                    said.append(f"wandb: ERROR {file.parent.name}: permission denied")
                else:
                    file.with_name(file.name + ".synced").touch()
            return "\n".join(["wandb: Syncing...", *said, "wandb: done"])

        monkeypatch.setattr(sync, "upload", send)
        return asked

    return put


def test_a_recorded_run_arrives_and_is_sent_once(
    place: Path, mirrored: Mirrored, server: Server, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = logged_run(place / "runs" / "quickstart" / "one")
    mirrored(folder)
    assert main(["sync", "runs"]) == 0
    assert capsys.readouterr().out.split() == ["sent", "runs/quickstart/one"]
    assert {row["_step"]: row["train/reward"] for row in server.history["0123abcd"]} == dict(enumerate(REWARDS, 1))
    assert server.runs["0123abcd"]["displayName"] == "quickstart/one"
    assert any(name.startswith("media/table/completions_2_") for name in server.files)
    server.history.clear()
    assert main(["sync", "runs/quickstart/one"]) == 0
    assert capsys.readouterr().out.split() == ["already", "sent", "runs/quickstart/one"]
    assert server.history == {}


def test_a_run_that_was_killed_and_went_on_arrives_step_by_step_once(
    place: Path, mirrored: Mirrored, server: Server, capsys: Said
) -> None:
    """Its first record ends in the middle of something. wandb sends the rest twice then, and no second attempt."""
    folder = logged_run(place / "runs" / "quickstart" / "one")
    with pytest.raises(KeyboardInterrupt):
        mirrored(folder, error=KeyboardInterrupt())
    (first,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    first.write_bytes(first.read_bytes()[:-3])
    more = [*EVENTS[:4], {"step": 5, "time_s": 9.0, "reward": 0.7}]
    folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in more))
    mirrored(folder, goes_on_from=2, recorded_to=4)
    assert main(["sync", "runs"]) == 0, capsys.readouterr()
    assert [row["train/global_step"] for row in server.history["0123abcd"]] == [1, 2, 3, 4, 5]


def test_each_run_says_what_becomes_of_it(place: Path, logged_in: None, by_wandb, capsys: Said) -> None:
    sweep = place / "runs" / "quickstart" / "swept"
    new, refused, old, none, live, other = (logged_run(sweep / name) for name in "abcdef")
    track = {"mode": "none", "project": "sums"}
    none.config.write_text(json.dumps({**CONFIG, "track": track}))
    other.config.write_text(json.dumps({**CONFIG, "track": {**track, "mode": "offline", "tracker": "mlflow"}}))
    claim(live)
    waiting = [record(new), record(new, "offline-run-20261122_111500-0123abcd"), record(refused)]
    record(old, sent=True)
    record(live)
    asked = by_wandb(refuses="/b/")
    assert main(["sync", "runs", "--dry-run"]) == 0
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
        "e": ("still running", "it is sent when it has ended"),
        "f": ("nothing to send", "tracked by mlflow"),
    }


def test_nobody_is_logged_in(place: Path, by_wandb, capsys: Said) -> None:
    asked = by_wandb()
    record(logged_run(place / "runs" / "quickstart" / "one"))
    assert main(["sync", "runs"]) == 2
    said = capsys.readouterr().err
    assert "there is no wandb login for api.wandb.ai" in said
    assert "wandb login, or export WANDB_API_KEY=..." in said
    assert main(["sync", "runs", "--dry-run"]) == 0
    assert capsys.readouterr().out.split() == ["to", "send", "runs/quickstart/one"]
    assert asked == []
    shutil.rmtree(place / "runs" / "quickstart" / "one" / "wandb")
    assert main(["sync", "runs"]) == 0  # nothing to send needs no login


@pytest.mark.parametrize("words", [[], ["nowhere"], ["runs", "--everything"]])
def test_what_cannot_be_meant_is_refused(words: list[str], place: Path, capsys: Said) -> None:
    logged_run(place / "runs" / "quickstart" / "one")
    assert main(["sync", *words]) == 2
    assert "try:" in capsys.readouterr().err
