"""Outlives a run of one process, to say why it ended where the process could not: `python hang_keeper.py RUN`.

It is started with a pipe as its standard input, whose other end the run holds and never writes into. When that is
closed, faulthandler may have left the stacks of a run that hung; else there is nothing to say. It imports nothing but
what Python starts with, so that it costs a few milliseconds and some megabytes.
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
        os.execv(sys.executable, [sys.executable, "-m", "rlhf_cli.launch.hang_report", _run])
