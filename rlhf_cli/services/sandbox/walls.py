"""Make system calls that Python does not wrap: namespaces, mounts, a socket filter, `prctl`. Linux only.

Used only by `launcher.py`, in a separate process; imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from typing import NoReturn

DEATH_SIGNAL, DUMPABLE, SECURE_BITS, SUBREAPER, NO_NEW_PRIVILEGES, AMBIENT = 1, 4, 28, 36, 38, 47

_SECCOMP = 22
_NEW_NS, _NEW_UTS, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _MOVE, _RECURSIVE, _PRIVATE = 4096, 8192, 16384, 1 << 18
_NOBODY = 65534

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: int | ctypes.c_char_p) -> None:
    """Make the system call prctl. Raises OSError."""
    padded = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *padded):
        _fail(f"prctl {option}")


def unshare_all() -> None:
    """Give this process its own namespaces: mounts, network, processes (from the next fork on), and users.

    Root needs no user namespace and can really change to another user without one. Any other user is mapped to user
    65534 there, and so loses all rights over the namespaces with the next exec. Raises OSError.
    """
    spaces = _NEW_NS | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(spaces if user == 0 else spaces | _NEW_USER):
        _fail("unshare")
    if user != 0:
        maps = {"setgroups": "deny", "uid_map": f"{_NOBODY} {user} 1", "gid_map": f"{_NOBODY} {group} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def new_root(root: str, visible: Sequence[str], scratch_bytes: int) -> None:
    """Switch to a root with `visible`, read-only, a few devices, /proc and an empty /tmp, and change to that /tmp.

    `root` is an empty folder to build it in; `scratch_bytes` is the size of /tmp. The caller must be the first process
    of a process namespace. Raises OSError.
    """
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEV, "size=1m,mode=755")
    os.mkdir(f"{root}/tmp")
    _mount("tmpfs", f"{root}/tmp", "tmpfs", _NO_SUID | _NO_DEV, f"size={scratch_bytes},mode=1777")
    for path in visible:
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
        else:
            _bind(path, target, _NO_DEV)
    os.mkdir(f"{root}/dev")
    for device in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/dev/{device}", f"{root}/dev/{device}", 0)
    os.symlink("/tmp", f"{root}/dev/shm")
    os.mkdir(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", _NO_SUID | _NO_DEV | _NO_EXEC)
    _mount(None, root, None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEV)
    os.chdir(root)
    _mount(root, "/", None, _MOVE)
    os.chroot(".")
    os.chdir("/tmp")


def _bind(path: str, target: str, flags: int) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        open(target, "w").close()
    _mount(path, target, None, _BIND | _RECURSIVE)
    # A user namespace may not drop a mount's flags; only relatime has different values as ST_ and MS_.
    has = os.statvfs(path).f_flag
    kept = (has & (_NO_SUID | _NO_DEV | _NO_EXEC | 1024 | 2048)) | ((1 << 21) if has & 4096 else 0)
    _mount(None, target, None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | flags | kept)


def socket_filter() -> bytes | None:
    """Return a seccomp program that refuses all sockets except Unix ones.

    Returns None on an architecture whose system call numbers are not listed here.
    """
    known = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
    if platform.machine() not in known:
        return None
    architecture, socket_call = known[platform.machine()]
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000  # refuse: the call fails with EPERM
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    program = [  # (operation, lines to skip if true, if false, operand)
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the system call
        (at_least, 5, 0, 0x40000000),  # x32: the same calls under other numbers
        (equal, 4, 0, 425),  # io_uring_setup: a ring can open sockets past this filter
        (equal, 0, 2, socket_call),
        (load, 0, 0, 16),  # its first argument, the family
        (equal, 0, 1, 1),  # AF_UNIX
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in program)


def install_filter(program: bytes) -> None:
    """Apply a seccomp program to this process and its children, permanently. Requires NO_NEW_PRIVILEGES."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    prctl(_SECCOMP, 2, ctypes.c_char_p(header))


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        _fail(f"mount {target}")


def _fail(call: str) -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")
