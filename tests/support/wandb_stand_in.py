"""A server that answers wandb's client as its own does, as far as sending a run goes, and keeps what it got."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
