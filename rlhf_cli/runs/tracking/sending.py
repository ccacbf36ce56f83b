"""Upload wandb's offline records: which run folders have any, and the result of `wandb sync`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rlhf_cli.errors import Prose, UserError
from rlhf_cli.runs.run_folder import RunFolder, runs_in
from rlhf_cli.runs.run_status import RUNNING, read_status
from rlhf_cli.runs.tracking.tracking_plan import has_login, no_answer, wandb_address
from rlhf_cli.runs.tracking.wandb_records import cut_off_half_a_record, records_of, unsent
from rlhf_cli.text.json_values import section
from rlhf_cli.text.redaction import redacted

State = Literal["to send", "sent", "already sent", "nothing to send", "still running", "not sent"]
Send = Callable[[Sequence[Path]], str]
"""Uploads wandb's files and returns its output. wandb marks files that were fully sent."""


@dataclass(frozen=True)
class Sending:
    """The upload state of a folder's records. `why` explains records that were not sent; `files` are the records."""

    folder: Path
    state: State
    files: tuple[Path, ...] = ()
    why: str = ""


def to_send(places: Sequence[Path]) -> list[Sending]:
    """Return every run below `places`, and the sweeps above them with a recorded report. Raises RunError without runs.

    Runs in training are skipped, because their records are incomplete.
    """
    runs = list(dict.fromkeys(run for place in places for run in runs_in(place)))
    above = dict.fromkeys(run.path.parent for run in runs)
    reports = [folder for folder in above if records_of(folder)]
    return [*map(_of_run, runs), *(_of_folder(folder) for folder in reports)]


def send(sendings: Sequence[Sending], *, by: Send) -> list[Sending]:
    """Upload pending records and return the result of each. Raises UserError without a wandb login."""
    files = [file for one in sendings if one.state == "to send" for file in one.files]
    if not files:
        return list(sendings)
    check_server()
    for file in files:
        cut_off_half_a_record(file)
    said = by(files)
    return [_after(one, said) if one.state == "to send" else one for one in sendings]


def check_server() -> None:
    """Raise UserError, with the command to run, without a wandb login or if the server does not answer."""
    try:
        host, port = wandb_address()
    except ValueError as error:
        raise UserError("WANDB_BASE_URL is no address", got=str(error), hint="unset WANDB_BASE_URL") from None
    if not has_login(host):
        raise UserError(
            f"nobody is logged in to wandb at {host}",
            got="no WANDB_API_KEY, and no login in ~/.netrc",
            expected="an account for the runs to go to",
            hint="wandb login, or export WANDB_API_KEY=...",
        )
    if (silence := no_answer(host, port)) is not None:  # `wandb sync` would try for days
        raise UserError(
            "wandb cannot be reached", got=silence, hint=Prose("the same command again when there is a network")
        )


def by_wandb(files: Sequence[Path]) -> str:
    """Upload files with `wandb sync`, several at a time, attempts of one run in order; return its output."""
    command = [sys.executable, "-m", "wandb", "sync", "--include-online", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return redacted((done.stdout + done.stderr).strip())


def _of_run(run: RunFolder) -> Sending:
    if records_of(run.path) and read_status(run).state == RUNNING:
        return Sending(run.path, "still running", why="it is sent when it has ended")
    track = section(run.read_config(), "track")
    tracker, mode = track.get("tracker", "wandb"), track.get("mode")
    why = (
        "track=none" if mode == "none" else f"tracked by {tracker}" if tracker != "wandb" else "wandb recorded nothing"
    )
    return _of_folder(run.path, otherwise=why)


def _of_folder(folder: Path, otherwise: str = "") -> Sending:
    waiting = unsent(folder)
    if waiting:
        return Sending(folder, "to send", tuple(record.file for record in waiting))
    if records := records_of(folder):
        return Sending(folder, "already sent", tuple(record.file for record in records))
    return Sending(folder, "nothing to send", why=otherwise)


def _after(sending: Sending, said: str) -> Sending:
    left = [record.file for record in unsent(sending.folder)]
    if not left:
        return replace(sending, state="sent")
    return replace(sending, state="not sent", why=_reason(said, left[0]))


def _reason(said: str, file: Path) -> str:
    """Return the line of wandb's output that mentions a record, else the last line."""
    lines = [line.removeprefix("wandb:").strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if file.parent.name in line or file.stem in line]
    errors = [line for line in named or lines if "error" in line.lower()]
    return (errors or lines or ["wandb said nothing"])[-1]
