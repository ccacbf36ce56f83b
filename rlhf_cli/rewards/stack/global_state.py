"""Keep what a user's function does to the process away from the training.

Its random streams are seeded by its arguments, so that a resumed run repeats them; then those of the training continue.
Environment variables, locale and umask are not put back: rewards set the first on purpose, and the others do not
change the numbers.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast


@contextlib.contextmanager
def kept(given: object) -> Iterator[None]:
    """Open a context for a function; afterwards the process's state is put back. Does nothing in other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, before = os.getpid(), {name: read() for name, (read, _, _) in _settings().items()}
    streams = _seeded(zlib.crc32(repr(given).encode(errors="replace")))
    try:
        yield
    finally:
        if os.getpid() != owner:
            os._exit(1)  # the function has forked, and the child must not train on
        for name, (read, write, usual) in _settings().items():
            was = before.get(name, usual)
            if was is not None and read() != was:
                write(None if str(was) == "cpu" else was)  # as it is where no device was set, and quicker
        for put_back in streams:
            put_back()


def _seeded(seed: int) -> list[Callable[[], object]]:
    """Seed the random streams of the loaded libraries, and return functions that put them back."""
    torch, numpy = (cast(Any, sys.modules.get(library)) for library in ("torch", "numpy.random"))
    streams: list[Callable[[], object]] = [partial(random.setstate, random.getstate())]
    random.seed(seed)
    if hasattr(numpy, "get_state"):
        streams.append(partial(numpy.set_state, numpy.get_state()))
        numpy.seed(seed)
    if hasattr(torch, "default_generator"):
        streams.append(partial(torch.set_rng_state, torch.get_rng_state()))
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            streams.append(partial(torch.cuda.set_rng_state, torch.cuda.get_rng_state()))
    return streams


def _settings() -> dict[object, Any]:
    """Return how each setting is read and written, and what it is if the function was the first to import torch."""
    found: dict[object, Any] = {"folder": (lambda: os.getcwd() if os.path.isdir(".") else None, os.chdir, None)}
    for number in signal.valid_signals():
        found[number] = (partial(signal.getsignal, number), partial(signal.signal, number), None)
    if hasattr(torch := cast(Any, sys.modules.get("torch")), "set_deterministic_debug_mode"):  # else half imported
        usual = {"default_dtype": torch.float32, "default_device": torch.device("cpu"), "num_threads": None}
        for name, value in (usual | {"deterministic_debug_mode": 0, "float32_matmul_precision": "highest"}).items():
            found[name] = (getattr(torch, f"get_{name}"), getattr(torch, f"set_{name}"), value)
        found["grad"] = (torch.is_grad_enabled, torch.set_grad_enabled, True)
    return found
