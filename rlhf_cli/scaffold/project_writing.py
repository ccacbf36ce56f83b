"""Write the files of a new project, all or none, and never overwrite a file."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from rlhf_cli.errors import UserError


def refuse_to_overwrite(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError if one of the files exists, or the folder is or lies below a file."""
    above = next(place for place in (folder, *folder.parents) if place.exists())
    if not above.is_dir():
        raise UserError("a project is a folder", where=str(folder), got=f"{above} is a file", hint=_elsewhere(above))
    taken = [name for name in names if os.path.lexists(folder / name)]
    if taken:
        raise UserError(
            "these files are there, and `rlhf init` overwrites none",
            where=str(folder.resolve()),
            got=", ".join(taken),
            expected="a folder without them",
            hint=_elsewhere(folder),
        )


def _elsewhere(taken: Path) -> str:
    """Return the command that creates the project in a folder that does not exist yet."""
    usual = Path("my-project") if taken == Path() else taken
    numbered = (usual.with_name(f"{usual.name}-{number}") for number in itertools.count(2))
    free = next(place for place in itertools.chain([usual], numbered) if not os.path.lexists(place))
    return f"rlhf init {shlex.quote(str(free))}"


def write_project(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Create `folder`, write the files into it and return their paths; on failure remove everything again.

    Raises UserError if the disk is full or not writable, and as `refuse_to_overwrite` does.
    """
    refuse_to_overwrite(folder, files)
    made: list[Path] = []
    try:
        for name, text in files.items():
            file = folder / name
            missing = [place for place in (file.parent, *file.parent.parents) if not place.exists()]
            file.parent.mkdir(parents=True, exist_ok=True)
            made += reversed(missing)
            with file.open("x", encoding="utf-8", newline="\n") as stream:
                made.append(file)
                stream.write(text)
    except BaseException as error:
        for place in reversed(made):
            with suppress(OSError):
                place.rmdir() if place.is_dir() else place.unlink()
        if isinstance(error, OSError):
            raise UserError(
                "the project cannot be written", where=str(folder), got=f"{error.strerror}: {error.filename}"
            ) from error
        raise
    return [folder / name for name in files]
