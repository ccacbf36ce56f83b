"""Outlive a single-process run and report why it ended if it could not do so itself: `python hang_keeper.py RUN`.

Its standard input is a pipe whose other end the run holds and never writes to. The pipe closes when the run ends. If
faulthandler has then left the stacks of a hang, this starts the report, else it exits. It imports only modules that
Python itself loads at startup, so it costs a few milliseconds and a few megabytes.
"""

import os
import signal
import sys

if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(_number, signal.SIG_IGN)
    _run, _dump = sys.argv[1:]
    while os.read(0, 1):
        pass
    if os.path.exists(_dump) and os.path.getsize(_dump):
        os.execv(sys.executable, [sys.executable, "-m", "rlhf_cli.launch.watchdog", _run])
