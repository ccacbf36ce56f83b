"""A stand-in for `vllm serve`: takes its command line and answers GET /health.

`python -m tests.launch.stand_in_vllm serve MODEL --port P ...`. Variables: STAND_IN_START_S, seconds until it is
healthy; STAND_IN_DIES, what it says before it ends with code 255 in place of serving; STAND_IN_PIDS, a file for the
pids of it and of a process that it starts, as vLLM starts its engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if time.monotonic() > HEALTHY_AT else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


if __name__ == "__main__":
    if (words := os.environ.get("STAND_IN_DIES")) is not None:
        print(words, flush=True)
        sys.exit(255)
    HEALTHY_AT = time.monotonic() + float(os.environ.get("STAND_IN_START_S", "0"))
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if (file := os.environ.get("STAND_IN_PIDS")) is not None:
        Path(file).write_text(f"{os.getpid()} {engine.pid}")
    print("loading weights", flush=True)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
