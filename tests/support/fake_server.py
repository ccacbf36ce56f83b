"""A server on 127.0.0.1 for tests: it gives the answers that a test sets, and keeps the requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0


@dataclass
class Asked:
    path: str
    headers: Message
    payload: Any


class FakeServer:
    """`answers` is what to say, in turn, the last one for ever; one that can be called gets the payload."""

    def __init__(self, *answers: Answer | Callable[[Any], Answer]) -> None:
        self.asked: list[Asked] = []
        self.at_once = self._now = 0
        self._answers = list(answers)
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"] or 0)
                payload = json.loads(self.rfile.read(length)) if length else None
                with fake._lock:
                    fake.asked.append(Asked(self.path, self.headers, payload))
                    answer = fake._answers.pop(0) if len(fake._answers) > 1 else fake._answers[0]
                    fake._now += 1
                    fake.at_once = max(fake.at_once, fake._now)
                if callable(answer):
                    answer = answer(payload)
                time.sleep(answer.after_s)
                with fake._lock:
                    fake._now -= 1
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in {**answer.headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            handle_error = Handler.log_message  # a client that has gone away is what some tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/score"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(*answers: Answer | Callable[[Any], Answer]) -> Iterator[FakeServer]:
    server = FakeServer(*answers)
    try:
        yield server
    finally:
        server.close()


def reply(text: str | None, finish: str = "stop") -> Answer:
    """As an OpenAI-compatible server says it."""
    return Answer({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]})
