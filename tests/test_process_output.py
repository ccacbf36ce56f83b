"""The exit code of a command whose output is not read to its end, and what a context puts back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.process import temporary_attributes

RLHF = f"'{sys.executable}' -m rlhf_cli"
WRONG = "check +exp=quickstart nosuch=3"
CASES = {
    # command: exit code, and the first word of stderr
    f"{RLHF} --help | true": (0, ""),  # it had finished before it wrote
    f"PYTHONUNBUFFERED=1 {RLHF} --help | true": (141, ""),
    f"{RLHF} list | true": (141, ""),
    f"{RLHF} {WRONG} | true": (2, "error:"),
    f"{RLHF} nosuch --json 2>&1 | true": (141, ""),
    f"{RLHF} list --json >&- 2>&-": (0, ""),
}
"""As `yes | true` in bash, 141 is 128 plus the number of SIGPIPE."""


def test_a_closed_stdout(place: Path) -> None:
    """Run all cases in one shell; the reader has ended before Python starts."""
    script = "unset PYTHONUNBUFFERED\n" + "".join(
        f"{{ {typed}; echo ${{PIPESTATUS[0]}} > {number}.code; }} 2> {number}.stderr\n"
        for number, typed in enumerate(["yes | true", *CASES])
    )
    subprocess.run(["bash", "-c", script], timeout=120, check=True)

    def ended(number: int) -> tuple[int, str]:
        stderr = (place / f"{number}.stderr").read_text()
        assert "BrokenPipe" not in stderr
        return int((place / f"{number}.code").read_text()), stderr.partition(" ")[0]

    assert ended(0) == (141, "")
    assert {typed: ended(number) for number, typed in enumerate(CASES, 1)} == CASES


@pytest.mark.parametrize("typed", ["list", "list --json", "--help", f"{WRONG} --json"])
def test_a_full_disk_under_stdout(typed: str, place: Path) -> None:
    """The output of a command that ends on a full disk, as /dev/full is, ends in a message and no traceback."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "rlhf_cli", *typed.split()]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
    assert "No space left on device" in ended.stderr
    assert ("nosuch" in typed) == ("nosuch" in ended.stderr)  # the mistake is named there, too


def test_a_locale_without_our_signs_shows_others(place: Path) -> None:
    program = "from rlhf_cli.text.redaction import safe_output\nwith safe_output(): print('loss \u2193 0.5 \u7b54')"
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=latin)
    assert done.stdout == "loss v 0.5 ?\n"


PRINTS = """
import subprocess, sys
from rlhf_cli.process import lasting_output
with {context}:
    for number in range(20000):
        print("a line of some length, number", number)
    subprocess.run(["sh", "-c", "echo of a child"], check=True)
    print("went on", file=sys.stderr)
"""


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("context", "code", "told"),
    [("lasting_output()", 0, "went on\n"), ('open("/dev/null")', 1, "BrokenPipeError")],
    ids=["a lasting program survives", "negative control: another program ends"],
)
def test_a_program_whose_stdout_is_closed_after_two_lines(context: str, code: int, told: str) -> None:
    command = f"'{sys.executable}' -c '{PRINTS.format(context=context)}' | head -2 > /dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert done.stderr == told if code == 0 else told in done.stderr


STUCK = """
import atexit, sys
from rlhf_cli.process import leave

class Stuck:
    def __del__(self, running=sys.is_finalizing):
        while running():  # while the interpreter shuts down
            pass

kept = Stuck()
atexit.register(print, "registered")
print("said", end=" ")
"""


def test_leave_keeps_the_exit_code_and_the_output_where_a_normal_exit_hangs() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK + "leave(3)"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "said registered\n")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", STUCK + "sys.exit(3)"], stdout=subprocess.DEVNULL, timeout=2)


class Thing:
    shown = "by the class"
    kept = "by the class"


def test_own_attributes_are_restored_and_others_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Thing()
    thing.kept = "its own"
    with temporary_attributes(thing, shown=1, kept=2, new=3):
        assert (thing.shown, thing.kept, vars(thing)["new"]) == (1, 2, 3)
    assert vars(thing) == {"kept": "its own"}
    with contextlib.suppress(KeyError), temporary_attributes(thing, kept=2, shown=1):
        del thing.kept
        raise KeyError
    assert vars(thing) == {"kept": "its own"}
    monkeypatch.setattr(Thing, "shown", "changed")  # a copy of the class's value on the instance would hide this
    assert thing.shown == "changed"
