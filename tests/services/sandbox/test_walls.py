"""Programs that try to reach files, secrets, the network, or to outlive their run."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest

from rlhf_cli.services.sandbox import launcher
from rlhf_cli.services.sandbox.running import Isolation, ProgramResult, protections, run_code
from tests.services.sandbox.sandbox_processes import Run, processes_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox wants Linux")


@pytest.mark.fault(36)
def test_the_environment_is_empty(run: Run, mode: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", "sk-planted-secret")
    outcome = run("import os\nprint(sorted(os.environ), os.environ['HOME'] == os.getcwd())")
    names = {"HOME", "LANG", "PATH", "PYTHONHASHSEED", "TMPDIR"}
    assert set(eval(outcome.stdout.rpartition(" ")[0])) - {"LC_CTYPE"} == names
    assert outcome.stdout.endswith("True\n")


def test_the_environment_of_others_is_hidden(run: Run, mode: Isolation) -> None:
    if not protections(mode)["environment_hidden"]:
        pytest.skip("limits alone do not hide this user's processes")
    script = "import time; print(flush=True); time.sleep(60)"
    victim = subprocess.Popen(
        [sys.executable, "-c", script], env={"PLANTED_KEY": "sk-planted-secret"}, stdout=subprocess.PIPE
    )
    try:
        assert victim.stdout is not None
        victim.stdout.readline()
        assert b"sk-planted" in Path(f"/proc/{victim.pid}/environ").read_bytes()
        source = """
import os
try: names = os.listdir("/proc")
except PermissionError: names = [str(os.getppid()), "1"]
for name in names:
    for kind in ("environ", "mem", "fd/0", "root/etc/passwd", "cwd/x"):
        try:
            with open(f"/proc/{name}/{kind}", "rb") as file: print(name.isdigit() and file.read(100000))
        except Exception: pass
print("looked")
"""
        outcome = run(source)
    finally:
        victim.kill()
        victim.communicate()
    assert "looked" in outcome.stdout
    assert "sk-planted" not in outcome.stdout


@pytest.mark.fault(36)
def test_netrc_is_hidden(run: Run, mode: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not protections(mode)["files_hidden"]:
        pytest.skip("a kernel without Landlock leaves the file system as it is")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    places = [home / ".netrc", Path("/var/tmp") / f"rlhf-test-{uuid4().hex}", Path("/etc/passwd"), Path(__file__)]
    for place in places[:2]:
        place.write_text("machine x login y password planted")
        place.chmod(0o644)
    try:
        source = f"""
import os
for place in {[str(place) for place in places]} + [os.path.expanduser("~/.netrc"), os.path.expanduser("~root/.netrc")]:
    try: print("READ", open(place).read())
    except OSError as error: print(type(error).__name__)
"""
        outcome = run(source)
    finally:
        places[1].unlink()
    assert outcome.returncode == 0
    assert set(outcome.stdout.split()) <= {"FileNotFoundError", "PermissionError"}


def test_nothing_of_the_system_can_be_written(run: Run, mode: Isolation) -> None:
    if not protections(mode)["files_hidden"]:
        pytest.skip("a kernel without Landlock leaves the file system as it is")
    with open("/proc/sys/kernel/hostname") as file:
        before = file.read()
    source = """
import os
for place in ("/", "/usr", "/etc", "/dev", "/proc", "/var/tmp", os.path.dirname(os.__file__)):
    try: open(place + "/planted", "w"); print("WROTE", place)
    except OSError as error: pass
    try: os.mkdir(place + "/planted"); print("MADE", place)
    except OSError as error: pass
for file in ("sys/kernel/hostname", "sys/kernel/core_pattern", "sysrq-trigger", "self/oom_score_adj"):
    file = "/proc/" + file
    for mode in ("w", "r+", "a"):
        try: open(file, mode).write("0"); print("WROTE", file)
        except OSError as error: pass
open("mine", "w").write("x")
os.mkdir("below")
os.rename("mine", "below/mine")
open("/dev/null", "w").write("x")
"""
    outcome = run(source)
    with open("/proc/sys/kernel/hostname") as file:
        assert file.read() == before
    own = "WROTE /proc/self/oom_score_adj\n"  # behind a wall it is the program's own
    assert (outcome.returncode, outcome.stdout.replace(own, "")) == (0, "")


LOOKS = """
import ctypes, json, os, resource, tempfile
def words(file): return list(map(str.split, open(file)))
def opened(name): return open("/dev/" + name, "rb").read(2).hex()
tempfile.TemporaryFile(dir="/dev/shm").close()
print(json.dumps({
    "limits": {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in %s},
    "status": {name.strip(":"): rest for name, *rest in words("/proc/self/status")},
    "mounts": {place: options.split(",") for _, place, _, options, *_ in words("/proc/self/mounts")},
    "spaces": {name: os.readlink("/proc/self/ns/" + name) for name in ("mnt", "pid", "net", "ipc", "uts")},
    "disk": os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize,
    "secure_bits": ctypes.CDLL(None).prctl(27, 0, 0, 0, 0),
    "is_own_session": [os.getsid(pid) == pid for pid in (os.getpid(), os.getppid())],
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "devices": [opened("null"), opened("zero"), len(opened("random")), len(opened("urandom"))],
}))
"""


def test_what_a_program_is_left_with(run: Run, mode: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits, its rights and, behind a wall, its own namespaces and what is mounted there."""
    monkeypatch.setattr("secrets.choice", lambda users: users[-1])
    megabyte = 1 << 20
    wanted = {"CORE": (0, 0), "CPU": (7, 8), "AS": (300 * megabyte,) * 2, "FSIZE": (2 * megabyte,) * 2}
    wanted |= {"NOFILE": (64, 64), "NPROC": (9, 9)}
    outcome = run(LOOKS % list(wanted), timeout_s=5.5, memory_mb=300, max_processes=9, max_file_mb=2)
    seen, here, walled = json.loads(outcome.stdout), protections(mode), mode != "limits"
    for name, limits in wanted.items():
        ceiling = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
        ceiling = max(wanted[name]) if ceiling == resource.RLIM_INFINITY else ceiling
        assert seen["limits"][name] == [min(limit, ceiling) for limit in limits], name
    status = seen["status"]
    assert {int(*status[name], 16) for name in ("CapPrm", "CapEff", "CapAmb", "SigBlk")} == {0}
    assert (status["NoNewPrivs"], seen["is_own_session"][0]) == (["1"], True)
    assert seen["devices"] == ["", "0000", 4, 4]
    assert seen["descriptors"] == ["0", "1", "2", "3"]  # the last is that of the list itself
    assert status["Seccomp"] == ["2" if here["no_network"] and not walled else "0"]
    if here["other_user"]:
        (user,) = {*status["Uid"], *status["Gid"]}
        assert (user, status["Groups"]) == ("65519", [])  # the last that systemd leaves to such users
    elif os.geteuid() == 0:
        assert seen["secure_bits"] == 3  # its children never get root's rights
    assert here.pop("bubblewrap") == (mode == "bubblewrap")
    assert {here[name] for name in ("namespaces", "disk_limit", "sure_end_of_processes")} == {walled}
    if not walled:
        assert seen["is_own_session"][1]  # and its guard's
        return
    assert not seen["spaces"].items() & {(name, os.readlink(f"/proc/self/ns/{name}")) for name in seen["spaces"]}
    assert seen["disk"] == 2 * megabyte
    assert "noexec" in seen["mounts"]["/proc"]
    for place, options in seen["mounts"].items():
        assert "nosuid" in options, place
        if not place.startswith("/dev/"):
            assert "nodev" in options, place
            assert ("ro" in options) == (place not in ("/tmp", "/proc")), place


MOUNTS = """
import json, os, sys
from rlhf_cli.services.sandbox import launcher
user, place, mounts = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
if launcher._libc.unshare(launcher._NEW_NS): sys.exit(4)
launcher._mount(None, "/", None, launcher._RECURSIVE | launcher._PRIVATE)
launcher._mount("tmpfs", place, "tmpfs", 0, "mode=777")
for number, flags in enumerate(mounts):
    os.mkdir(f"{place}/{number}")
    launcher._mount("tmpfs", f"{place}/{number}", "tmpfs", flags)
if user:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    launcher.prctl(launcher.DUMPABLE, 1)  # as after an exec, so that /proc/self is its own
spaces = {name: os.readlink("/proc/self/ns/" + name) for name in ("mnt", "net", "ipc", "uts")}
launcher.unshare_all()
assert not spaces.items() & {(name, os.readlink("/proc/self/ns/" + name)) for name in spaces}
for name in ("uid_map", "gid_map") if user else ():
    assert open("/proc/self/" + name).read().split() == ["65534", str(user), "1"]
found = []
for number in range(len(mounts)):
    os.mkdir(f"{place}/bound-{number}")
    launcher._bind(f"{place}/{number}", f"{place}/bound-{number}", 0)
    found.append([os.statvfs(f"{place}/{name}{number}").f_flag for name in ("", "bound-")])
print(json.dumps(found))
"""


@pytest.mark.parametrize("user", [0, 12345])
def test_what_is_shown_is_read_only_and_else_mounted_as_it_was(user: int) -> None:
    """linux/mount.h: read-only 1, nosuid 2, nodev 4, noexec 8, noatime 1024, nodiratime 2048, strictatime 1 << 24. The
    kernel lets only root drop one of them in a namespace.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can mount here and become another user")
    strict = 1 << 24
    given = [0, 4, 8, 1024, 2048, 1024 | 2048, strict, strict | 8, strict | 2048, 1 | strict | 2048, 1 | 8 | 1024]
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        words = [sys.executable, "-c", MOUNTS, str(user), place, json.dumps(given)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 4 or (user and "unshare: Operation not permitted" in done.stderr):
        pytest.skip("this machine does not let one make namespaces")
    assert done.returncode == 0, done.stderr
    for flags, (before, after) in zip(given, json.loads(done.stdout), strict=True):
        assert after == before | 1 | 2, flags


BECOMES = """
import os, sys, tempfile
from rlhf_cli.services.sandbox import launcher
for mode in (0o750, 0o755):
    os.setgroups([54321])
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        os.chown(file.name, 0, 54321)
        os.chmod(file.name, mode)
        print(launcher._can_become(61184, file.name), os.geteuid(), os.getegid())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_roots_groups_do_not_count_for_the_user_that_a_program_becomes() -> None:
    done = subprocess.run([sys.executable, "-c", BECOMES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False 0 0", "True 0 0"]


def test_no_limit_of_the_caller_is_raised() -> None:
    asks = """
import resource
from rlhf_cli.services.sandbox.running import run_code
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
print(run_code("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))", isolation="limits").stdout)
"""
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(50,", "50)"]


def test_with_limits_alone_only_unix_sockets_can_be_opened() -> None:
    if not protections("limits")["no_network"]:
        pytest.skip("no socket filter here")
    source = """
import ctypes, errno, socket
socket.socketpair()
for family in (2, 10, 16, 17):
    try: print(socket.socket(family))
    except PermissionError: pass
libc = ctypes.CDLL(None, use_errno=True)
for call in (425, (1 << 30) + 41):  # a ring could open sockets, and so could the same call under another number
    assert libc.syscall(call, 1, 1, 0) == -1 and ctypes.get_errno() == errno.EPERM, call
"""
    assert run_code(source, isolation="limits") == ProgramResult(0, "", "", False, None)


def filtered(program: bytes, architecture: int, call: int, family: int) -> int:
    """Run a seccomp program (linux/filter.h) on the data of a system call (linux/seccomp.h)."""
    data, lines = struct.pack("=IIQQ", call, architecture, 0, family), list(struct.iter_unpack("HBBI", program))
    place = loaded = 0
    while True:
        operation, if_true, if_false, operand = lines[place]
        jumps = {0x15: loaded == operand, 0x35: loaded >= operand}
        assert operation in jumps or if_true == if_false == 0
        if operation == 0x06:
            return int(operand)
        if operation == 0x20:
            (loaded,) = struct.unpack_from("=I", data, operand)
        place += 1 + (if_true if jumps.get(operation) else if_false)


@pytest.mark.parametrize(
    ("machine", "architecture", "call"), [("x86_64", 0xC000003E, 41), ("aarch64", 0xC00000B7, 198)]
)
def test_what_the_socket_filter_says_of_a_call(
    machine: str, architecture: int, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher.platform, "machine", lambda: machine)
    program = launcher.socket_filter()
    assert program is not None
    allowed, refused, killed = 0x7FFF0000, 0x00050001, 0x80000000  # refused with EPERM, 1
    for number, family, expected in (
        *((call, family, allowed if family == 1 else refused) for family in (0, 1, 2, 10, 16, 17)),
        *((number, family, refused) for number in (425, 1 << 30, (1 << 30) + call) for family in (0, 1)),
        *((number, family, allowed) for number in (0, call - 1, call + 1, 424, 426) for family in (0, 1, 2)),
    ):
        assert filtered(program, architecture, number, family) == expected, (number, family)
    assert filtered(program, architecture + 1, call, 1) == killed  # of 32 bits: the numbers mean other calls
    monkeypatch.setattr(launcher.platform, "machine", lambda: "riscv64")
    assert launcher.socket_filter() is None


def test_every_right_is_taken() -> None:
    """linux/landlock.h: run, read, write, remove and make (0 to 12), since version 2 to move, since 3 to truncate."""
    assert launcher._RIGHTS == (0x1FFF, 0x2000, 0x4000)


@pytest.mark.fault(36)
def test_no_network(run: Run, mode: Isolation) -> None:
    if not protections(mode)["no_network"]:
        pytest.skip("no network namespaces and no socket filter here")
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)

        def accept() -> None:
            try:
                while True:
                    server.accept()[0].close()
                    calls.append("call")
            except OSError:
                pass

        listener = threading.Thread(target=accept, daemon=True)
        listener.start()
        port = server.getsockname()[1]
        source = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2)\nprint('connected')"
        subprocess.run([sys.executable, "-c", source], check=True, capture_output=True)  # there is something to reach
        outcome = run(source)
        server.shutdown(socket.SHUT_RDWR)
        listener.join()
    assert (outcome.returncode, outcome.stdout) == (1, "")
    said = ("ConnectionRefusedError", "PermissionError", "Network is unreachable")
    assert any(text in outcome.stderr for text in said)
    assert calls == ["call"]


LEFT_ALIVE = """
import os, subprocess, sys, time
command = [sys.executable, "-c", "import time; time.sleep(60) # {marker}"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep({linger})
"""


@pytest.mark.parametrize("linger", [0.5, 60])
def test_a_grandchild_left_alive_is_gone(run: Run, linger: float) -> None:
    marker = f"grandchild-{uuid4().hex}"
    seen: list[int] = []

    def look() -> None:
        until = time.monotonic() + 5
        while not seen and time.monotonic() < until:
            seen.extend(processes_with(f"# {marker}"))
            time.sleep(0.01)

    looker = threading.Thread(target=look)
    looker.start()
    outcome = run(LEFT_ALIVE.format(marker=marker, linger=linger), timeout_s=1.5)
    looker.join()
    assert outcome.timed_out == (linger == 60)
    assert len(seen) >= 1  # it was there
    assert not processes_with(f"# {marker}")
    assert not any(Path(f"/proc/{pid}").exists() for pid in seen)


def test_its_guard_cannot_be_read_or_fooled(run: Run) -> None:
    source = """
import os
for pid in {os.getppid(), 1}:
    for number in range(3, 20):
        try: os.write(os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY), b'{"returncode": 0}')
        except OSError: pass
    for number in range(3, 20):
        try: os.write(number, b'{"returncode": 0}')
        except OSError: pass
exit(5)
"""
    assert run(source).returncode == 5


def test_a_guard_that_is_killed_is_no_success(run: Run, mode: Isolation) -> None:
    outcome = run("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(0.2)\nexit(0)")
    if protections(mode)["other_user"]:
        assert "PermissionError" in outcome.stderr
    elif mode != "namespaces":  # where it is process 1, which cannot be killed from inside
        assert (outcome.returncode, outcome.killed_reason) == (-signal.SIGKILL, "launcher")
