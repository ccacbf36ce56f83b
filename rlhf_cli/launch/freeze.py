"""Create the run folder, freeze everything the ranks read into it, and plan what was frozen."""

from __future__ import annotations

import glob
import secrets
import socket
import sys
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import cast

import yaml

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.environment_references import resolved_references, with_references
from rlhf_cli.config.imported_code import asked_of
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import RunError, writing
from rlhf_cli.launch.run_states import without_lost_jobs
from rlhf_cli.plan.launch_plan import LaunchPlan, plan_launch
from rlhf_cli.runs import provenance
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, read_json, write_text
from rlhf_cli.runs.run_status import RunState, describe_state, read_status, update_status, words_in
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

_PATHS = ("path", "model", "tokenizer", "accelerate_config", "chat_template_path")  # keys that may hold a local path
_FUNCTIONS = ("fn", "class", "callbacks", "aggregate")  # keys that may hold `./file.py:function`
_LONGEST = 300


def existing_run(experiment: Experiment, composed: Composed) -> RunFolder | None:
    """Return the run folder that this experiment would resume, or None for a new run.

    Raises RunError if a run of that name exists and must not be resumed, its status cannot be read, or a process on
    this machine trains it. Processes on other machines are checked when the folder is locked (runs/writer_lock.py).
    """
    if (name := experiment.run.name) is None:
        return None
    folder = RunFolder(new_folder(experiment, composed))
    if not folder.path.exists():
        return None
    if not folder.config.is_file():
        if experiment.run.resume == "auto" and _is_unbegun(folder.path):
            return None
        what, hint = "a folder of that name exists, and it is not a run", f"run.name={name}-2"
        raise RunError(what, where=str(folder.path), got="no config.yaml in it", expected="another name", hint=hint)
    status = without_lost_jobs({folder: read_status(folder)})[folder]
    is_new, expected = experiment.run.resume == "never", "another name"
    hint = f"run.name=ANOTHER, or rlhf status {folder.typed}"
    if status.state == RunState.RUNNING and (is_new or status.host == socket.gethostname()):
        problem, job = "is being trained right now", f", job {status.job_id}" if status.job_id is not None else ""
        got = f"process {status.pid} on {status.host}{job}, step {status.step}"
    elif status.state == RunState.QUEUED:
        problem, got = "is queued: Slurm will start it", f"job {status.job_id}"
    elif is_new:
        problem, got = "exists already", f"it is {describe_state(status.state, status.reason)}, at step {status.step}"
        expected = "another name, or run.resume=auto to continue that run"
        hint = f"run.name={name}-2" if status.state == RunState.FINISHED else "run.resume=auto"
    else:
        return folder
    raise RunError(f"run {name!r} {problem}", where=str(folder.path), got=got, expected=expected, hint=hint)


def new_folder(experiment: Experiment, composed: Composed, *, is_dry: bool = False) -> Path:
    """Return the folder for a new run. Without a name it is made and named by the time; `is_dry`: only described."""
    name, root = experiment.run.name, Path(experiment.run.root).expanduser()
    parent = (root / experiment_name(composed)).resolve()
    return timed_folder(parent) if name is None and not is_dry else parent / (name or "YYYYMMDD-HHMMSS")


def timed_folder(parent: Path) -> Path:
    """Make and return a folder named by the time; another may be made in the same second. Raise UserError."""
    folder = parent / time.strftime("%Y%m%d-%H%M%S")
    with writing_run(folder):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            folder = folder.with_name(f"{folder.name}-{secrets.token_hex(2)}")
            folder.mkdir()
    return folder


def create_run(
    experiment: Experiment, composed: Composed, *, files: dict[str, Path], at: Path | None = None
) -> RunFolder:
    """Create the run folder `at` (None: a new one) with config.yaml, provenance.json and the status `created`.

    `files` are hashed into the provenance. Raise UserError if the folder exists or cannot be written;
    an error here leaves no file. The configuration, which makes the folder a run, is written after the hashing.
    """
    folder = RunFolder(at.resolve() if at is not None else new_folder(experiment, composed))
    frozen, text = frozen_config(experiment, composed)
    asked = {"choices": composed.choices, "overrides": list(composed.overrides), "seed": experiment.seed}
    with writing_run(folder.path):
        folder.path.mkdir(parents=True, exist_ok=_is_unbegun(folder.path))
        try:
            provenance.write_provenance(folder, text, files, **asked, made_by=provenance.made_by(asked_of(frozen)))
            write_text(folder.config, text, durable=True)
            update_status(folder, state=RunState.CREATED)
        except BaseException:
            for file in (folder.config, folder.provenance, folder.status):
                file.unlink(missing_ok=True)
            with suppress(OSError):
                folder.path.rmdir()
            raise
    return folder


def frozen_config(experiment: Experiment, composed: Composed) -> tuple[JsonTree, str]:
    """Return what config.yaml holds, and its text."""
    frozen = absolute_paths(with_references(experiment.model_dump(mode="json"), composed.references))
    return cast(JsonTree, frozen), yaml.safe_dump(frozen, sort_keys=False, allow_unicode=True)


def writing_run(folder: Path) -> AbstractContextManager[None]:
    """Open a context in which a run folder, or a sweep's, that cannot be written raises UserError."""
    return writing("the run folder", folder, "run.root=SOMEWHERE_ELSE")


def _is_unbegun(folder: Path) -> bool:
    """Return whether a folder holds only hidden files and provenance, as after a kill before it became a run."""
    known = RunFolder(folder).provenance
    return folder.is_dir() and all(entry.name.startswith(".") or entry == known for entry in folder.iterdir())


def absolute_paths(value: JsonValue, *, key: str = "") -> JsonValue:
    """Return the value of a key with absolute local paths, so that the run can be resumed from any folder.

    A `model` of a function's own arguments is what a server calls it, so it is a path only if it begins like one.
    """
    if isinstance(value, dict):
        is_name = key == "args" and str(value.get("model"))[:1] not in "/.~"
        places = {name: item for name, item in value.items() if not (is_name and name == "model")}
        return value | {name: absolute_paths(item, key=name) for name, item in places.items()}
    if isinstance(value, list):
        return [absolute_paths(item, key=key) for item in value]
    if not isinstance(value, str):
        return value
    head, colon, tail = value.partition(".py:")
    if key not in (_FUNCTIONS if colon else _PATHS):
        return value
    local = Path(head + ".py" if colon else value).expanduser()
    place = local.resolve()
    if place.suffix != local.suffix:  # a link into the hub's cache, whose files have no suffix
        place = local.absolute()
    return f"{place}{colon and ':'}{tail}" if local.exists() or glob.glob(str(local)) else value


def experiment_name(composed: Composed) -> str:
    """Return the name of the chosen experiment, or of the trainer if none was chosen."""
    return composed.choices.get("exp") or composed.choices.get("trainer") or "run"


def plan_frozen(folder: RunFolder, *, resume: bool) -> tuple[LaunchPlan, Launch]:
    """Plan the frozen run in `folder` for this machine. Return the plan and the run's launch settings."""
    experiment = Experiment.model_validate(resolved_references(folder.read_config()))
    accelerate_env = None
    if (file := experiment.launch.accelerate_config) is not None:
        from rlhf_cli.config.accelerate_file import accelerate_environment

        accelerate_env = accelerate_environment(Path(file), where=str(folder.config))
    return plan_launch(experiment, folder.path, resume=resume, accelerate_env=accelerate_env), experiment.launch


def refuse_foreign_code(run: RunFolder, *, trust: bool, command: str) -> None:
    """Raise RunError if a run that this user did not make would run code, submit a job or send data.

    With `trust`, print to stderr what it would do instead. `command` is what was typed, such as `rlhf resume RUN`.
    """
    _refuse(run.config, run.provenance, asked_of(run.read_config()), trust=trust, command=command)


def refuse_foreign_words(sweep: Path, *, trust: bool, command: str) -> None:
    """Do the same for a sweep whose other jobs are made from the words in its sweep.json."""
    file = sweep / SWEEP
    _refuse(file, file, words_in(read_json(file)), trust=trust, command=command)


def _refuse(where: Path, record: Path, asked: list[str], *, trust: bool, command: str) -> None:
    if provenance.is_made_by_us(record, asked):
        return
    shown = [f"{line[:_LONGEST]}{'...' * (len(line) > _LONGEST)}" for line in asked]
    if not trust and asked:
        what = "this run would run code, submit a job or send data, and you may not have made it"
        known = read_json(record)
        user, host = section(known, "made_by").get("user"), section(known, "host").get("name")
        maker = f"{user or 'somebody'} on {host}" if host else user or "an unknown user"
        got = "\n".join([f"made by {maker}", *shown])
        expected = "your own unchanged run, or settings that you have read and trust"
        raise RunError(what, where=str(where), got=got, expected=expected, hint=f"{command} --trust")
    for line in shown:
        print(f"trusted: {line}", file=sys.stderr)


def take_as_ours(run: RunFolder) -> None:
    """Mark a run as this user's own, after the user said to trust its code and resumes it."""
    asked = asked_of(run.read_config())
    if asked and not provenance.is_made_by_us(run.provenance, asked):
        provenance.add_to_provenance(run, made_by=provenance.made_by(asked))
