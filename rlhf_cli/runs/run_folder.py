"""Know the layout of a run folder and find run folders."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlhf_cli.errors import RunError, writing
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.text.regular_files import SAFE_LOADER, read_object, read_regular
from rlhf_cli.text.suggest import nearest

FIRST_RUN = "rlhf train +exp=quickstart"  # the command that makes a first run, in half a minute
_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")
_LARGEST_CONFIG = 8 << 20
_WAYS_OUT = {
    "config.yaml": "the run cannot continue without it; provenance.json has the command that made it",
    "provenance.json": "move it away: the run continues, without comparing data and reward code with the old ones",
    "status.json": "move it away: `rlhf resume` continues from the newest complete checkpoint",
    "metrics.jsonl": "delete that line, or move the file away: that loses the metrics, not the checkpoints",
}
_DEEPEST = 4
SWEEP = "sweep.json"
PENDING_CONFIG = "config_to_be"  # key for the hash of a configuration about to be written: a kill may come first
EDITED_CONFIG = "config.yaml was changed after the run began"

HELD_OUT = "held_out"  # name of the evaluation on a run's own evaluation rows
TRAINING_ROWS = "training_rows"  # name of that evaluation if the run was trained on the prompts of all these rows
REWARD_MODEL, POLICY = "reward_model", "policy"
GREEDY, SAMPLED = "greedy", "sampled"  # the two ways a policy generates answers


@dataclass(frozen=True)
class _Below:
    name: str

    def __get__(self, run: RunFolder, owner: type | None = None) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """A run folder with the paths of its contents. It does not create them."""

    path: Path

    config = _Below("config.yaml")  # the frozen configuration
    provenance = _Below("provenance.json")  # the facts needed to reproduce the run
    status = _Below("status.json")
    metrics = _Below("metrics.jsonl")  # the log events, one JSON object per line
    checkpoints = _Below("checkpoints")
    model = _Below("model")  # the trained model, which exists once the run has finished
    critic = _Below("critic")
    reward_errors = _Below("reward_errors.jsonl")  # one JSON object per line, from the first failure of a reward on
    samples = _Below("samples.jsonl")  # the pairs scored in training, one JSON object per line
    log = _Below("log.txt")  # the libraries' log messages and warnings
    console = _Below("console.txt")  # a sweep job's output; other runs print to the terminal

    @property
    def sweep_group(self) -> str | None:
        """Return `<exp>/<sweep id>` if this run is a job of a sweep, else None."""
        parent = self.path.parent
        return f"{parent.parent.name}/{parent.name}" if (parent / "sweep.json").is_file() else None

    @property
    def label(self) -> str:
        """Return the last parts of the path, enough to tell runs apart on a screen."""
        depth = 3 if self.sweep_group else 2
        return "/".join(self.path.parts[-depth:])

    @property
    def shown(self) -> str:
        """Return the path as a user would type it: relative if the run is below the current folder."""
        return as_typed(self.path)

    @property
    def typed(self) -> str:
        """Return that path for a command, in quotes if a shell would not read it as one word."""
        return typed_path(self.path)

    def read_config(self) -> JsonTree:
        """Read the frozen configuration. Raises RunError if it is not a YAML mapping."""
        try:
            content = yaml.load(read_regular(self.config, _LARGEST_CONFIG), Loader=SAFE_LOADER)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise unreadable(self.config, said(error)) from error
        if not isinstance(content, dict):
            raise unreadable(self.config, "nothing" if content is None else f"a {type(content).__name__}")
        return content

    def is_config_edited(self) -> bool:
        """Return whether config.yaml is not the one that the run was trained with, False if no hash of it is known."""
        try:
            noted, written = section(read_json(self.provenance), "sha256"), read_regular(self.config)
        except (OSError, UnicodeError, RunError):
            return False  # who reads it says so
        hashes = {noted.get("config"), noted.get(PENDING_CONFIG)} - {None}
        return bool(hashes) and hashlib.sha256(written.encode()).hexdigest() not in hashes

    def last_checkpoint(self) -> Path | None:
        """Return the newest checkpoint by file names, or None; `newest_whole` also verifies the files."""
        whole = [path for _, path in checkpoints_in(self.checkpoints) if (path / "trainer_state.json").is_file()]
        return whole[-1] if whole else None


def as_typed(path: Path) -> str:
    """Return a path as a user would type it: relative if it is below the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def typed_path(path: Path) -> str:
    """Return that path for a command, in quotes if a shell would not read it as one word."""
    return shlex.quote(as_typed(path))


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every entry with a checkpoint's name, newest last, complete or not."""
    checkpoints = [(int(match[1]), path) for path in folder.glob("*") if (match := _CHECKPOINT.match(path.name))]
    return sorted(checkpoints)


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step` in `folder`, with transformers' folder name. It need not exist."""
    return folder / f"checkpoint-{step}"


def names_a_run(word: str) -> bool:
    """Return whether a typed word names a run, not an override. A folder of a sweep's job has a `=` in its name."""
    return not word.startswith(("-", "~")) and ("=" not in word or os.path.isdir(word))


def open_run(path: Path) -> RunFolder:
    """Return the run folder at `path`. Raises RunError if it is not one."""
    folder = RunFolder(path.resolve())
    if not folder.config.is_file():
        is_sweep = (path / SWEEP).is_file()
        held = runs_below(path) if path.is_dir() else []
        got = "a file" if path.is_file() else "no config.yaml in it" if path.is_dir() else "no such folder"
        if held:
            got = "a sweep: several runs of one command" if is_sweep else f"a folder with {len(held)} runs"
        newest = max(held, key=lambda run: run.config.stat().st_mtime, default=None)
        expected = "a folder that `rlhf train` made, such as runs/quickstart/20260131-101500"
        hint = _instead(path) if newest is None else newest.typed
        raise RunError(f"{path} is not a run folder", got=got, expected=expected, hint=hint)
    return folder


def _instead(path: Path) -> str:
    root = Path("runs")
    inside_of = (folder for folder in path.parents if any((folder / name).is_file() for name in ("config.yaml", SWEEP)))
    if path.exists() and (around := next(inside_of, None)) is not None:
        return typed_path(around)
    if path.suffix.lower() == ".gguf" or path.name.startswith("package:"):
        return f"rlhf generate {typed_path(path)} +exp=NAME, or rlhf train +exp=NAME model.path=..."
    if path.exists():
        return f"ls {typed_path(path)}"
    if not path.is_absolute() and path.parts[:1] != root.parts and (root / path).is_dir():
        return shlex.quote(str(root / path))
    if not path.is_absolute() and not root.is_dir():
        return FIRST_RUN
    if len(path.parts) == 1 and (inside := sorted(root.glob(f"*/{glob.escape(path.name)}/"))):
        return shlex.quote(str(inside[-1]))
    folder = root if path.parent == Path(".") else path.parent  # only an experiment's name was typed
    names = sorted(place.name for place in folder.glob("*/"))
    close = next((name for name in reversed(names) if name.startswith(path.name)), None) or nearest(path.name, names)
    return "rlhf status" if close is None else shlex.quote(str(folder / close))


def make_folder(what: str, folder: Path, hint: str) -> None:
    """Create a folder and try a file in it. Raise UserError if that fails: before the work, which is lost after it."""
    with writing(what, folder, hint):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def write_json(path: Path, content: Mapping[str, object], *, durable: bool = False) -> None:
    """Replace a JSON file atomically, with secrets removed; see `write_text`."""
    write_text(path, json.dumps(redacted_tree(content), indent=2) + "\n", durable=durable)


def write_text(path: Path, content: str, *, durable: bool = False) -> None:
    """Replace a file atomically. With `durable`, it is flushed to disk and survives a power cut."""
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
            temporary.unlink(missing_ok=True)  # half of the file, if the disk is full
        raise
    if durable:
        flush(path.parent)


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON object per line, without known secrets, in the format that `rlhf score --completions` reads."""
    lines = (json.dumps(redacted_tree(row, values_only=True), ensure_ascii=False, default=str) + "\n" for row in rows)
    write_text(path, "".join(lines))


def flush(path: Path) -> None:
    """Flush a file or a folder to disk; without this a rename may reach the disk before the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> JsonTree:
    """Return the content of a JSON file, or {} if it does not exist. Raise RunError if it is not a JSON object."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise unreadable(path, said(error)) from error


def unreadable(path: Path, got: str) -> RunError:
    """Return the error for an unreadable file of a run folder, with a hint how to continue without it."""
    size = path.stat().st_size if path.is_file() else None
    name, got = path.name.partition(":")[0], "an empty file" if size == 0 else got
    expected = "a file as the run wrote it: a kill, a full disk or an editor may have damaged it"
    advice = _WAYS_OUT.get(name, "move it away")
    return RunError(f"{name} cannot be read", where=as_typed(path), got=got, expected=expected, advice=advice)


def said(error: Exception) -> str:
    """Return in one line why a file cannot be read."""
    if isinstance(error, UnicodeDecodeError):
        return f"no text (byte {error.start} is {error.object[error.start]:#04x})"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0]


def runs_in(root: Path) -> list[RunFolder]:
    """Return the run at a folder, or the sorted runs below it. Raises RunError if there are none."""
    if found := runs_below(root):
        return found
    if not root.is_dir():
        return [open_run(root)]
    what = f"there is no run below {root}"
    raise RunError(what, expected="a run, a sweep, or a folder of them", hint=_instead(root))


def runs_below(root: Path) -> list[RunFolder]:
    """Return the run at a folder, or the runs below it; [] if the folder does not exist."""
    return [RunFolder(path.resolve()) for path in _run_folders(root, _DEEPEST)]


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    with suppress(PermissionError):  # another user keeps it private
        if (folder / "config.yaml").is_file():
            yield folder
        elif depth and folder.is_dir():
            for inside in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
                yield from _run_folders(inside, depth - 1)


def run_of(model: Path) -> RunFolder | None:
    """Return the run that trained this model, or None for a model folder outside a run."""
    folder = RunFolder(model.parent)
    return folder if model == folder.model and folder.config.is_file() else None


def evaluations_of(model: Path) -> Path:
    """Return `eval/` in the run folder, or in the model's own folder if it belongs to no run."""
    run = run_of(model)
    return (run.path if run is not None else model) / "eval"


def in_training(run: RunFolder) -> Path:
    """Return the folder of the evaluations made during training: `step-N.json`, or `step-N-NAME.json` of a set."""
    return run.path / "eval" / "training"


def in_step(step: int, eval_set: str) -> str:
    """Return the name of an evaluation in training, of a named set or the only one ('')."""
    return f"step-{step}-{eval_set}" if eval_set else f"step-{step}"
