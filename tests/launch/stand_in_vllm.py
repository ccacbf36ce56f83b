"""A stand-in for `vllm serve`: takes its command line, and speaks the endpoints that TRL 1.16's client calls.

`python -m tests.launch.stand_in_vllm serve MODEL --port P ...`. Variables: STAND_IN_START_S, seconds until it is
healthy; STAND_IN_DIES, what it says before it ends with code 3 in place of serving; STAND_IN_PIDS, a file for the pids
of it and of a process that it starts, as vLLM starts its engine. It writes what it is asked to its output, a JSON a
line, with no buffer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOGPROB = -0.5
COMPLETIONS = ([58, 1], [70, 71, 72, 1])
"""The tokens that every prompt is answered with, in turn: one character and three, each with its end."""


def answer_of(path: str, payload: Any) -> Any:
    if path == "/v1/models":
        return {"data": [{"id": sys.argv[2]}]}
    if path.startswith("/server_info"):
        is_ready = "--weight-transfer-config" in sys.argv and os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        mode = sys.argv[sys.argv.index("--logprobs-mode") + 1]
        transfer = {"backend": "nccl"} if is_ready else None
        return {"vllm_config": {"weight_transfer_config": transfer, "model_config": {"logprobs_mode": mode}}}
    if path == "/get_world_size":
        return {"world_size": int(sys.argv[sys.argv.index("--tensor-parallel-size") + 1])}
    if path == "/v1/completions":
        choices = []
        for prompt in payload["prompt"]:
            for number in range(payload["n"]):
                tokens = COMPLETIONS[number % len(COMPLETIONS)]
                named = [f"token_id:{token}" for token in tokens]
                logprobs = {
                    "tokens": named,
                    "token_logprobs": [LOGPROB] * len(tokens),
                    "top_logprobs": [{name: LOGPROB} for name in named],
                }
                choices.append({"prompt_token_ids": prompt, "token_ids": tokens, "logprobs": logprobs})
        return {"choices": choices}
    return {"success": True}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200 if self.path != "/health" or time.monotonic() > HEALTHY_AT else 503, None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(200, json.loads(body) if body else None)

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _answer(self, status: int, payload: Any) -> None:
        if self.path != "/health":
            print(json.dumps({"path": self.path, "payload": payload}), flush=True)
        body = json.dumps(answer_of(self.path, payload)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    if (words := os.environ.get("STAND_IN_DIES")) is not None:
        print(words, flush=True)
        sys.exit(3)
    HEALTHY_AT = time.monotonic() + float(os.environ.get("STAND_IN_START_S", "0"))
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if (file := os.environ.get("STAND_IN_PIDS")) is not None:
        Path(file).write_text(f"{os.getpid()} {engine.pid}")
    print("loading weights", flush=True)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
