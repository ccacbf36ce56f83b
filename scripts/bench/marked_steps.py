"""The reward of first_step.py for both sides, which records CPU seconds at the first and the last optimizer step.

`MARKS` names the file to write, `STEPS` the number of steps. CPU seconds are those of all processes of this session.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

_FIELD_OF_SESSION, _FIELDS_OF_CPU = 3, slice(11, 15)
"""Fields of /proc/PID/stat after the name: the session; the ticks of the process and of its finished children."""

_taken = 0
_is_listening = False


def session_cpu_s() -> float:
    """Return the CPU seconds of every process of this session and of their finished children."""
    mine, ticks = os.getsid(0), 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[_FIELD_OF_SESSION]) == mine:
            ticks += sum(map(int, fields[_FIELDS_OF_CPU]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _step_taken(*_: object) -> None:
    global _taken
    _taken += 1
    if _taken in (1, int(os.environ["STEPS"])):
        with open(os.environ["MARKS"], "a", encoding="utf-8") as stream:
            mark = {"cpu_s": session_cpu_s(), "process_s": time.process_time()}
            stream.write(json.dumps(mark) + "\n")


def correct(completions: list[str], a: list[int], b: list[int], **columns: object) -> list[float]:
    """Return 1 if the completion is the sum, else 0; the first call installs the clock."""
    global _is_listening
    if not _is_listening:
        _is_listening = True
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_step_taken)
    return [float(text.strip() == str(int(x) + int(y))) for text, x, y in zip(completions, a, b, strict=True)]
