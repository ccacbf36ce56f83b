"""Knows the layout of a run folder, and finds runs by what a user types."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlhf_cli.errors import Prose, RunError
from rlhf_cli.json_values import JsonTree
from rlhf_cli.redaction import redacted_tree
from rlhf_cli.runs.checkpoint_folders import checkpoints_in, flush
from rlhf_cli.suggest import nearest
from rlhf_cli.yaml_loader import SAFE_LOADER

FIRST_RUN = "rlhf train +exp=quickstart"
"""What makes a run where there is none, in half a minute."""
_MOST_LINKS = 5
_LAST_FILE_OF_A_CHECKPOINT = "trainer_state.json"


@dataclass(frozen=True)
class RunFolder:
    """A run folder that knows the names of what lies in it. Creating the files is for those who own them."""

    path: Path

    @property
    def config(self) -> Path:
        """Return the path of the frozen configuration."""
        return self.path / "config.yaml"

    @property
    def provenance(self) -> Path:
        """Return the path of what it would take to make the run again."""
        return self.path / "provenance.json"

    @property
    def status(self) -> Path:
        """Return the path of the state of the run."""
        return self.path / "status.json"

    @property
    def metrics(self) -> Path:
        """Return the path of the log events, a JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Return the folder that the checkpoints lie in."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Return the folder of the trained model, which is there once the run has finished."""
        return self.path / "model"

    @property
    def critic(self) -> Path:
        """Return the folder of the trained critic, which only a run with a critic has."""
        return self.path / "critic"

    @property
    def reward_errors(self) -> Path:
        """Return the path of the rewards that failed, a JSON object a line; nothing is there while none has."""
        return self.path / "reward_errors.jsonl"

    @property
    def samples(self) -> Path:
        """Return the path of the pairs scored in training, a JSON object a line."""
        return self.path / "samples.jsonl"

    @property
    def traces(self) -> Path:
        """Return the folder of what torch's profiler saw of a few steps, which only a run with `profile=trace` has."""
        return self.path / "profile"

    @property
    def log(self) -> Path:
        """Return the path of what libraries logged and warned."""
        return self.path / "log.txt"

    @property
    def console(self) -> Path:
        """Return the path of what a job of a sweep printed; other runs print to the terminal."""
        return self.path / "console.txt"

    @property
    def sweep_group(self) -> str | None:
        """Return `<exp>/<sweep id>` when this run is a job of a sweep, else None."""
        parent = self.path.parent
        return f"{parent.parent.name}/{parent.name}" if (parent / "sweep.json").is_file() else None

    @property
    def label(self) -> str:
        """Return the last parts of the path, enough to tell runs apart on a screen."""
        depth = 3 if self.sweep_group else 2
        return "/".join(self.path.parts[-depth:])

    @property
    def shown(self) -> str:
        """Return the path as a user would type it: relative where the run lies below the current folder."""
        return os.path.relpath(self.path) if self.path.is_relative_to(Path.cwd()) else str(self.path)

    def read_config(self) -> JsonTree:
        """Read the frozen configuration. Raises RunError where it is no YAML, or not that of an experiment."""
        try:
            content = yaml.load(self.config.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise unreadable(self.config, _said(error)) from error
        if not isinstance(content, dict):
            raise unreadable(self.config, "nothing" if content is None else f"a {type(content).__name__}")
        return content

    def last_checkpoint(self) -> Path | None:
        """Return the newest checkpoint by names alone, None without any.

        A run goes on from `newest_whole` instead, which reads the files.
        """
        whole = [path for _, path in checkpoints_in(self.checkpoints) if (path / _LAST_FILE_OF_A_CHECKPOINT).is_file()]
        return whole[-1] if whole else None


def names_a_run(word: str) -> bool:
    """Return whether a typed word names a run and is no override: a folder that is there may have a `=` in its name, as
    those of a sweep's jobs do.
    """
    return not word.startswith(("-", "~")) and ("=" not in word or Path(word).is_dir())


def open_run(path: Path) -> RunFolder:
    """Return the run folder at `path`. Raises RunError when it is not one."""
    folder = RunFolder(path.resolve())
    if not folder.config.is_file():
        held = _runs_held(path)
        raise RunError(
            f"{path} is not a run folder",
            got=_what_is_there(path, held),
            expected="a folder that `rlhf train` made, such as runs/quickstart/20260131-101500",
            hint=os.path.relpath(held[1]) if held else _instead(path),
        )
    return folder


def _what_is_there(path: Path, held: tuple[str, Path] | None) -> str:
    if path.is_file():
        return "a file"
    return "no such folder" if not path.is_dir() else held[0] if held else "no config.yaml in it"


def refuse_links(folder: Path) -> None:
    """Raise RunError where a link in a folder leads out of it: what a run writes there would overwrite other files.

    Links within the folder, such as wandb's `latest-run`, stay.
    """
    inside = folder.resolve()
    links = (Path(root, name) for root, below, files in os.walk(folder) for name in (*below, *files))
    found = [link for link in links if link.is_symlink() and not link.resolve().is_relative_to(inside)]
    if found:
        shown = [f"{link.relative_to(folder)} -> {os.readlink(link)}" for link in found]
        raise RunError(
            "the run folder holds links that lead out of it, and going on would write where they lead",
            where=str(folder),
            got="\n".join(shown[:_MOST_LINKS]),
            expected="files and folders of its own",
            hint=f"rm {shlex.quote(str(found[0]))} && cp -r ... {shlex.quote(str(found[0]))}",
        )


def _instead(path: Path) -> str:
    """Return what was perhaps meant by a path that holds no run: the same below runs/, or a name nearly like it."""
    root = Path("runs")
    if path.is_file():
        around = next((folder for folder in path.parents if (folder / "config.yaml").is_file()), None)
        if around is not None:
            return os.path.relpath(around)
    if path.exists():
        return "ls " + os.path.relpath(path)
    if not path.is_absolute() and path.parts[:1] != root.parts and (root / path).is_dir():
        return str(root / path)
    folder = path.parent
    if not path.is_absolute() and folder == Path(".") and root.is_dir():
        folder = root  # an experiment's name alone
    names = sorted(place.name for place in folder.glob("*/"))
    longer = [name for name in names if name.startswith(path.name)]
    if (close := longer[-1] if longer else nearest(path.name, names)) is not None:
        return str(folder / close)
    while not folder.is_dir():
        folder = folder.parent
    if not path.is_absolute() and not root.is_dir():
        return FIRST_RUN
    return "rlhf status" if folder == root else f"ls {os.path.relpath(folder)}"


def _runs_held(path: Path) -> tuple[str, Path] | None:
    """Return what a folder is that holds runs, and the newest run or sweep in it; None for one that holds none."""
    for depth in ("", "*/", "*/*/"):
        sweeps = [file.parent for file in path.glob(f"{depth}sweep.json")]
        runs = [file.parent for file in path.glob(f"{depth}config.yaml") if file.parent.parent not in sweeps]
        if sweeps == [path]:
            return "a sweep: several runs of one command", path
        if sweeps or runs:
            counts = [(len(sweeps), "sweep"), (len(runs), "run")]
            told = " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count)
            return f"a folder that holds {told}", max([*sweeps, *runs], key=lambda folder: folder.stat().st_mtime)
    return None


def write_json(path: Path, content: Mapping[str, object], *, durable: bool = False) -> None:
    """Replace a JSON file in one step, so that a reader never sees half of it, nor any secret; see `write_text`."""
    write_text(path, json.dumps(redacted_tree(content), indent=2) + "\n", durable=durable)


def write_text(path: Path, content: str, *, durable: bool = False) -> None:
    """Replace a file in one step. `durable`: it is on the disk when this returns, and a power cut cannot take it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # half of it, on a full disk
        raise
    if durable:
        flush(path.parent)


def overwrite(path: Path, content: str) -> None:
    """Write over a file where it lies: on a full disk there is no room for another, and this one has its own."""
    with suppress(OSError), path.open("r+", encoding="utf-8") as stream:
        stream.write(content)
        stream.truncate()


def read_json(path: Path) -> JsonTree:
    """Return the content of a JSON file, or {} when there is none yet.

    Raises RunError where it is no JSON, or JSON of another shape: cut, empty, overwritten.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # a UnicodeDecodeError and a JSONDecodeError are ValueErrors
        raise unreadable(path, _said(error)) from error
    if not isinstance(content, dict):
        raise unreadable(path, f"a {type(content).__name__}, where an object belongs")
    return content


_WAYS_OUT = {
    "config.yaml": "the run cannot go on without it; the command that made it is in provenance.json",
    "provenance.json": "move it away: the run goes on, and data and reward code are not held against what they were",
    "status.json": "move it away: `rlhf resume` goes on from the newest checkpoint that is whole",
    "metrics.jsonl": "take that line out, or move the file away: the metrics so far are then gone, the checkpoints not",
}


def unreadable(path: Path, got: str) -> RunError:
    """Return the error that says that a file of a run folder cannot be read, and what can be done without it."""
    size = path.stat().st_size if path.is_file() else None
    return RunError(
        f"{path.name.partition(':')[0]} cannot be read",
        where=os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path),
        got="an empty file" if size == 0 else got,
        expected="what a run wrote there: a process that was killed, a full disk or an editor may have cut it",
        hint=Prose(_WAYS_OUT.get(path.name.partition(":")[0], "move it away")),
    )


def _said(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"no text (byte {error.start} is {error.object[error.start]:#04x})"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).splitlines()[0]
