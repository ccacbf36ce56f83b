"""Turn what TRL and transformers refuse when they build a trainer into an error that names the arguments."""

from __future__ import annotations

import contextlib
import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import rlhf_cli
from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import ConfigError, RlhfError

_LIBRARIES = ("trl", "transformers", "accelerate", "peft")
_BUILDING = ("__init__", "__post_init__", "create_optimizer", "create_scheduler")
_OURS, _STANDARD = Path(rlhf_cli.__file__).parent, Path(sysconfig.get_path("stdlib"))
_LONGEST = 600


@contextlib.contextmanager
def refusals_named(trainer: Trainer) -> Iterator[None]:
    """Open a context in which a library's refusal to build something raises ConfigError.

    A refusal is an exception that a library raises by a statement of its own while it builds a trainer, an optimizer or
    a schedule. Other errors pass unchanged, and so do those with the user's code among their frames.
    """
    try:
        yield
    except (ValueError, TypeError, NotImplementedError, ImportError, RuntimeError) as error:
        frames = list(traceback.walk_tb(error.__traceback__))[1:]
        packages = [_package_of(frame) for frame, _ in frames]
        is_building = any(
            package in _LIBRARIES and frame.f_code.co_name in _BUILDING
            for package, (frame, _) in zip(packages, frames, strict=True)
        )
        if isinstance(error, RlhfError) or not is_building or "" in packages or packages[-1] not in _LIBRARIES:
            raise
        last, line = frames[-1]
        if not linecache.getline(last.f_code.co_filename, line).strip().startswith("raise "):
            raise
        raise refusal(trainer, error) from error


def refusal(trainer: Trainer, error: Exception) -> ConfigError:
    """Return the error for a value that a library refuses; it names the given arguments in the library's message."""
    words = set(re.findall(r"\w+", str(error)))
    keys = [f"trainer.args.{name}" for name in trainer.args if name in words]
    quoted = [name for name in re.findall(r"`(\w+)`", str(error)) if name in trl_args.fields_of(trainer.trl)]
    return ConfigError(
        f"{trainer.trl} refuses these arguments",
        where=", ".join(keys or [f"trainer.args.{name}" for name in dict.fromkeys(quoted)]) or "trainer.args",
        got=f"{type(error).__name__}: {str(error)[:_LONGEST]}",
        hint=" or ".join(f"'~{key}'" for key in keys) or None,
    )


def _package_of(frame: FrameType) -> str:
    """Return the top package of a frame's code; empty for the user's own code."""
    file = Path(frame.f_code.co_filename)
    for place in {"site-packages", "dist-packages"} & set(file.parts):
        return file.parts[file.parts.index(place) + 1]
    is_known = file.is_relative_to(_OURS) or file.is_relative_to(_STANDARD) or file.name.startswith("<")
    return "rlhf_cli" if is_known else ""
