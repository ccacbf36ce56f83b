"""Programs that take too much, in every kind of sandbox that this machine can make.

Each is bounded by itself too, so that a sandbox that fails costs a failed test and no more.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.services.sandbox import launcher
from rlhf_cli.services.sandbox import running as sandbox
from rlhf_cli.services.sandbox.launcher import Brood
from rlhf_cli.services.sandbox.running import Isolation, ProgramResult, command, protections, run_code
from tests.services.sandbox.sandbox_processes import Run, processes_with
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox wants Linux")


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("files_hidden", "it can read files open to all"),
        ("environment_hidden", "the environment of that user's processes"),
        ("no_network", "it can reach the network"),
        ("process_limit", "its processes are counted only from time to time"),
    ],
)
def test_limits_alone_are_warned_of_with_what_they_lack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, warning: str
) -> None:
    kinds = ("other_user", "files_hidden", "environment_hidden", "no_network", "process_limit")
    for lacks in (False, True):
        probed = {"limits": (dict.fromkeys(kinds, True) | {name: not lacks}, None)}
        monkeypatch.setattr(sandbox, "_probe", lambda mode, bwrap, probed=probed: probed.get(mode, ({}, "forbidden")))
        caplog.clear()
        sandbox._warn_once.cache_clear()
        assert sandbox._pick("auto")[0] == "limits"
        assert (warning in caplog.text) == lacks
        assert "bubblewrap: forbidden; namespaces: forbidden" in caplog.text


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of living processes, those just made, links and other users' folders stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, alive, theirs, link = (tmp_path / f"rlhf-sandbox-{name}" for name in ("dead", "alive", "theirs", "link"))
    for folder in (dead, alive, theirs):
        (folder / "closed").mkdir(parents=True)
        (folder / "main.py").touch()
    (dead / "closed").chmod(0)
    link.symlink_to(alive)
    kept = {alive, link, theirs}
    if os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
        os.chown(dead, 61184, 61184)  # as a program's with limits alone
    else:
        kept -= {theirs}
    with sandbox._locked(str(alive)):
        sandbox._clear_left.__wrapped__()
        assert dead.exists(), "it is a moment old"
        monkeypatch.setattr(sandbox, "_JUST_MADE_S", 0.0)
        sandbox._clear_left.__wrapped__()
        until(lambda: {*tmp_path.iterdir()} == kept, 60)
    assert (alive / "main.py").exists()


def test_a_program_that_is_well(run: Run, tmp_path: Path) -> None:
    source = "import json, sys\nprint('hellö', repr(sys.stdin.read()))\nprint('there', file=sys.stderr)\nexit(3)"
    opened = os.listdir("/proc/self/fd")
    assert run(source) == ProgramResult(3, "hellö ''\n", "there\n", False, None)
    assert list(tmp_path.iterdir()) == []
    assert os.listdir("/proc/self/fd") == opened
    assert run("print(1)", max_processes=1).stdout == "1\n"


def test_no_package_is_seen(run: Run) -> None:
    assert "ModuleNotFoundError" in run("import httpx2").stderr


@pytest.mark.fault(36)
def test_endless_loop(run: Run) -> None:
    started = time.monotonic()
    outcome = run("print('begun', flush=True)\nwhile True: pass", timeout_s=0.5)
    assert time.monotonic() - started < 3
    assert outcome == ProgramResult(-signal.SIGKILL, "begun\n", "", True, "time")


@pytest.mark.fault(36)
def test_fork_bomb(run: Run, mode: Isolation) -> None:
    marker = f"bomb-{uuid4().hex}"
    # Doubles at most six times; where the kernel counts, at most ten times.
    times = 10 if protections(mode)["process_limit"] else 6
    last = f"os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(20) # {marker}'])"
    started = time.monotonic()
    outcome = run(f"import os, sys\nfor _ in range({times}): os.fork()\n{last}", timeout_s=3.0, max_processes=8)
    assert time.monotonic() - started < 10
    assert outcome.returncode != 0
    assert "BlockingIOError" in outcome.stderr or outcome.killed_reason == "processes"
    assert not processes_with(f"# {marker}")


@pytest.mark.fault(36)
def test_100_gb(run: Run) -> None:
    outcome = run("x = bytearray(100 << 30)")
    assert outcome.returncode == 1
    assert "MemoryError" in outcome.stderr


def test_many_processes_with_a_little_memory_each(run: Run) -> None:
    source = "import os, time\nfor _ in range(2): os.fork()\nx = b'x' * (60 << 20)\ntime.sleep(20)"
    assert run(source, memory_mb=150, timeout_s=10.0).killed_reason == "memory"


@pytest.mark.parametrize(
    ("sizes", "reason"), [([50, 50], "time"), ([50, 51], "memory"), ([1, 1], "time"), ([1, 1, 1], "processes")]
)
def test_a_limit_may_be_used_up(monkeypatch: pytest.MonkeyPatch, sizes: list[int], reason: str) -> None:
    """Two processes and a hundred bytes are allowed, of all together."""
    looks = iter([list(range(len(sizes)))] * 50)  # three are enough
    monkeypatch.setattr(Brood, "reap", lambda self: True)
    monkeypatch.setattr(launcher, "descendants", lambda: next(looks))
    monkeypatch.setattr(launcher, "_resident_bytes", lambda pid: sizes[pid])
    limits = {"until": time.monotonic() + 0.05, "memory_bytes": 100, "max_processes": 2}
    assert Brood().watch(-1, **limits) == reason


def test_a_huge_file(run: Run) -> None:
    source = "with open('big', 'wb') as file:\n  for _ in range(64): file.write(bytes(1 << 20))"
    outcome = run(source, max_file_mb=2)
    assert outcome.returncode == 1
    assert "OSError" in outcome.stderr


def test_many_files(run: Run, mode: Isolation) -> None:
    source = "for n in range(32):\n  with open(f'{n}', 'wb') as file: file.write(bytes(1 << 20))\nprint('written')"
    outcome = run(source, max_file_mb=4)
    assert (outcome.returncode != 0) == protections(mode)["disk_limit"]


@pytest.mark.parametrize(
    "source",
    [
        "import os, itertools\nfor number in itertools.count(): os.mkdir(str(number))",
        "import os\nwhile True:\n  os.mkdir('d' * 200)\n  os.chdir('d' * 200)",
        "import itertools\nfor number in itertools.count(): open(str(number), 'w').close()",
    ],
    ids=["side by side", "within each other", "files"],
)
def test_many_folders_do_not_hold_the_caller(run: Run, mode: Isolation, source: str) -> None:
    """They were removed one by one before the result came: 86 s for a program that had 3."""
    if mode != "limits":
        pytest.skip("behind a wall the folder ends with its file system")
    before = set(Path(tempfile.gettempdir()).glob("rlhf-sandbox-*"))
    started = time.monotonic()
    assert run(source, timeout_s=1.0).timed_out
    assert time.monotonic() - started < 1 + 6
    until(lambda: not set(Path(tempfile.gettempdir()).glob("rlhf-sandbox-*-left")) - before, 90)


def test_a_folder_that_the_program_has_closed(run: Run, tmp_path: Path) -> None:
    """Root reads it nevertheless; any other user has to open it first."""
    outcome = run("import contextlib, os\nwith contextlib.suppress(OSError):\n os.chmod('.', 0)\nprint('closed')")
    assert outcome.stdout == "closed\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.fault(36)
def test_far_more_output_than_is_kept(run: Run, stream: str) -> None:
    source = f"import sys\nfor _ in range(8): sys.{stream}.write('x' * (1 << 20))\nsys.{stream}.write('the end')"
    outcome = run(source, timeout_s=60.0)
    text = getattr(outcome, stream)
    assert outcome.returncode == 0
    assert text.startswith("xxx")
    assert text.endswith("xthe end")
    assert f"... {(8 << 20) + 7 - 65_536} bytes left out ..." in text
    assert len(text) < 65_536 + 100


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["ab", "c"], "abc"),
        (["abcdefgh"], "abcdefgh"),
        (["abc", "defgh"], "abcdefgh"),
        (["abcdefghi"], "abcd\n... 1 bytes left out ...\nfghi"),
        (["ab", "cdef", "gh", "ijk", "l"], "abcd\n... 4 bytes left out ...\nijkl"),
    ],
)
def test_the_first_and_the_last_half_are_kept(parts: list[str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "OUTPUT_BYTES", 8)
    kept = sandbox._Capped()
    for part in parts:
        kept.add(part.encode())
    assert kept.text() == expected


def test_a_sandbox_that_cannot_start_raises(monkeypatch: pytest.MonkeyPatch, mode: Isolation) -> None:
    monkeypatch.setattr(sandbox, "interpreter", lambda: "/bin/false")
    with pytest.raises(RewardError):
        run_code("pass", isolation=mode)


def test_isolation_that_is_unknown_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RewardError):
        run_code("pass", isolation="vault")  # type: ignore[arg-type]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RewardError) as caught:
        run_code("pass", isolation="bubblewrap")
    assert caught.value.where == "args.isolation"
    assert sandbox._probe.__wrapped__("limits", None)[1] is None


def test_nothing_is_shown_twice() -> None:
    shown = sandbox.visible()
    assert [one for one in shown for other in shown if one.startswith(f"{other}/") or shown.count(one) > 1] == []
    assert any(f"{sandbox.interpreter()}/".startswith(f"{one}/") for one in shown)


@pytest.mark.parametrize(
    ("name", "most_refused"), [("timeout_s", 0), ("max_processes", 0), ("max_file_mb", 0), ("memory_mb", 63)]
)
def test_a_limit_that_leaves_nothing_is_refused(name: str, most_refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next larger one is passed on, beside the others' defaults, which are documented."""
    passed: list[dict[str, object]] = []
    monkeypatch.setattr(sandbox, "_run", lambda *given: (passed.append({"timeout_s": given[2], **given[3]}), None))
    monkeypatch.setattr(sandbox, "_pick", lambda isolation: (isolation, {}))
    with pytest.raises(RewardError) as caught:
        run_code("pass", **{name: most_refused})  # type: ignore[arg-type]
    assert caught.value.where == f"args.{name}"
    limits = {"timeout_s": 5.0, "memory_mb": 512, "max_processes": 16, "max_file_mb": 16, name: most_refused + 1}
    run_code("pass", **{name: most_refused + 1})  # type: ignore[arg-type]
    assert passed == [limits]


@pytest.mark.parametrize(
    ("does", "reports", "expected"),
    [
        ("exit 0", [{"in_force": {}}, {"returncode": 3, "killed_reason": None}], (3, False, None)),
        ("exit 0", [{"in_force": {}}, {"returncode": -9, "killed_reason": "time"}], (-9, True, "time")),
        ("exit 0", [{"in_force": {}}, {"returncode": -9, "killed_reason": "memory"}], (-9, False, "memory")),
        ("exit 0", [{"in_force": {}}, {"returncode": -24, "killed_reason": None}], (-24, True, "cpu")),
        ("exit 0", [{"in_force": {}}], (-9, False, "launcher")),
        ("sleep 60", [{"in_force": {}}], (-9, False, "launcher")),
        ("exit 3", [], "ended with 3"),
        ("echo it broke >&2; exit 3", [], "it broke"),
        ("exit 1", [{"failed": "no rights"}], "no rights"),
        ("exit 1", [{"in_force": {}}, {"failed": "later"}], "later"),
    ],
)
def test_what_a_launcher_reports_of_a_program(does: str, reports: list[object], expected: Any) -> None:
    """One that reports no end was killed, one that reports no start has failed; neither is waited for without end."""
    file = io.BytesIO("".join(json.dumps(report) + "\n" for report in reports).encode())
    pipe = subprocess.PIPE
    process = subprocess.Popen(["sh", "-c", does], stdout=pipe, stderr=pipe, start_new_session=True)
    if isinstance(expected, str):
        with pytest.raises(RewardError) as caught:
            sandbox._listen(process, file, 20)
        assert expected in str(caught.value.got)
        return
    found, _ = sandbox._listen(process, file, 0.5 if "sleep" in does else 20)
    assert (found.returncode, found.timed_out, found.killed_reason) == expected
    assert process.returncode == (-signal.SIGKILL if "sleep" in does else 0)


def test_a_launcher_reports_why_it_failed() -> None:
    words = [sys.executable, launcher.__file__, "0", "1"]  # reads its job from stdin, reports to stdout
    ended = subprocess.run(words, input="not a job", capture_output=True, text=True)
    assert json.loads(ended.stdout)["failed"].startswith("JSONDecodeError: ")


def test_falling_back_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real = sandbox._probe

    def only_limits(mode: Any, bwrap: str | None) -> tuple[dict[str, bool], str | None]:
        return real(mode, bwrap) if mode == "limits" else ({}, "forbidden in this test")

    monkeypatch.setattr(sandbox, "_probe", only_limits)
    sandbox._warn_once.cache_clear()
    assert run_code("print(1)").stdout == "1\n"
    run_code("pass")
    assert caplog.text.count("runs with limits only") == 1
    assert "namespaces: forbidden in this test" in caplog.text
    assert protections()["disk_limit"] is False


# The command line: what it shows to the launcher inside is all that the launcher imports.


_IMPORTED = """
import sys
import rlhf_cli.services.sandbox.launcher
print(*[module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "rlhf_cli"], sep="\\n")
"""


@pytest.mark.parametrize("is_root", [True, False])
def test_bubblewrap_is_shown_every_file_that_the_launcher_imports(
    is_root: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root keeps the rights to become another user, and any other user becomes `nobody` in its own namespace."""
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    # The launcher's PATH is a shorter one, in which a program of the user's own may be missing.
    monkeypatch.setattr(shutil, "which", lambda name: f"/home/me/bin/{name}")
    job: Any = {"visible": [], "python": sys.executable, "max_file_bytes": 1 << 20}
    words = command("bubblewrap", job, 3, 4)
    assert (words[0], words[-2:]) == ("/home/me/bin/bwrap", ["3", "4"])
    assert command("limits", job, 3, 4) == words[words.index(sys.executable) :]
    said = " ".join(words)
    rights = [words[place + 1] for place, word in enumerate(words) if word == "--cap-add"]
    assert rights == [f"CAP_{name}" for name in ("SETUID", "SETGID", "SETPCAP", "CHOWN", "KILL") if is_root]
    assert ("--cap-drop ALL" in said, "--unshare-user --uid 65534 --gid 65534" in said) == (is_root, not is_root)
    assert said.count("--size 1048576 --tmpfs") == 2
    shown = {Path(words[place + 2]) for place, word in enumerate(words) if word == "--ro-bind"}
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    needed = {Path(line) for line in done.stdout.splitlines()}
    assert len(needed) >= 3
    assert needed <= shown
    assert all(file.is_file() for file in shown)


def test_where_bubblewrap_is_installed_it_works() -> None:
    """The other tests skip a sandbox that fails to start; this one reports it."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed here")
    if subprocess.run(["bwrap", "--ro-bind", "/", "/", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let bubblewrap make namespaces")
    assert protections("bubblewrap")["files_hidden"] is True


# A program ends with the process that started it, also after kill -9.


PROGRAM = """
import ctypes, os, time
def call_itself(name):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    call_itself(b"{marker}-2")
    time.sleep(600)
call_itself(b"{marker}-1")
time.sleep(600)
"""
ASKS = """
import sys
from rlhf_cli.services.sandbox.running import run_code
run_code(sys.argv[1], isolation=sys.argv[2], timeout_s=600.0)
"""


def named(marker: str) -> list[int]:
    """Return the ids of processes with this name: a command line does not contain the source."""
    return [one.pid for one in psutil.process_iter(["name"]) if (one.info["name"] or "").startswith(marker)]


@pytest.mark.fault(36)
def test_a_program_ends_with_whoever_asked_for_it(mode: Isolation) -> None:
    """It sleeps, so that no limit of time on a CPU ends it, and so does what it has started, in another session."""
    marker = f"sleeps-{mode[:8]}"
    asks = subprocess.Popen([sys.executable, "-c", ASKS, PROGRAM.format(marker=marker), mode])
    try:
        until(lambda: asks.poll() is not None or len(named(marker)) == 2, 30)
        assert asks.poll() is None
    finally:
        asks.kill()
        asks.wait()
    latest = time.monotonic() + 5
    while named(marker) and time.monotonic() < latest:
        time.sleep(0.02)
    left = named(marker)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
