"""Find the files of a run whose content has changed since it started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.runs.provenance import PENDING_CONFIG, sha256
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.json_values import JsonTree, section

DATA, CODE, CONFIG = "data", "code", "config"
"""The values that `--allow` takes, one per kind of file."""
_SHOWN = 12


@dataclass(frozen=True)
class ChangedFile:
    """A file whose content has changed. `name` is its key in the provenance; `now` is None if the file is gone."""

    name: str
    kind: str
    path: Path
    before: str
    now: str | None

    def describe(self) -> str:
        """Return the file's name, path and both shortened hashes."""
        now = "gone" if self.now is None else self.now[:_SHOWN]
        what = self.name if str(self.path) in self.name else f"{self.name} ({self.path})"
        return f"{what}: sha256 {self.before[:_SHOWN]} -> {now}"


def changed_files(folder: RunFolder, provenance: JsonTree, files: Mapping[str, Path]) -> list[ChangedFile]:
    """Return the files whose content has changed since the run started.

    `files` maps name -> file or folder, as passed to `write_provenance`. Files without a recorded hash are skipped.
    """
    noted = section(provenance, "sha256")
    found = []
    for name, path in {CONFIG: folder.config, **files}.items():
        before = noted.get(name)
        if not isinstance(before, str):
            continue
        now = sha256(path)
        if now != before and not (name == CONFIG and now == noted.get(PENDING_CONFIG)):
            found.append(ChangedFile(name, kind_of_file(name), path, before, now))
    return found


def kind_of_file(name: str) -> str:
    """Return the kind of the file with this name in the provenance: configuration, data or code."""
    if name == CONFIG:
        return CONFIG
    return DATA if name == "data" or name.startswith(("data.", "data[")) else CODE
