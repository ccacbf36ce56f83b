"""Say which runs have records for wandb, and send them: what `rlhf sync` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rlhf_cli.errors import Prose, UserError
from rlhf_cli.runs.run_folder import RunFolder, runs_in
from rlhf_cli.runs.run_status import RUNNING, read_status
from rlhf_cli.runs.tracking.tracking_plan import has_login, no_answer, wandb_address
from rlhf_cli.runs.tracking.wandb_files import records_of, unsent
from rlhf_cli.text.json_values import section

Upload = Callable[[Sequence[Path]], str]
"""Uploads wandb's files and returns wandb's output. wandb marks files that were fully sent."""


@dataclass(frozen=True)
class Sending:
    """The upload state of a folder's records. `why` explains records that were not sent."""

    folder: Path
    state: Literal["to send", "sent", "already sent", "nothing to send", "still running", "not sent"]
    files: tuple[Path, ...] = ()
    why: str = ""


def to_send(places: Sequence[Path]) -> list[Sending]:
    """Return every run below `places`; one that trains is skipped. Raises RunError without runs."""
    return [_of_run(run) for run in dict.fromkeys(run for place in places for run in runs_in(place))]


def send(sendings: Sequence[Sending], *, upload: Upload) -> list[Sending]:
    """Upload pending records and return the result of each. Raises UserError without a wandb login."""
    files = [file for one in sendings if one.state == "to send" for file in one.files]
    if not files:
        return list(sendings)
    check_server()
    output = upload(files)
    return [_after(one, output) if one.state == "to send" else one for one in sendings]


def check_server() -> None:
    """Raise UserError, with the command to run, without a wandb login or if the server does not answer."""
    try:
        host, port = wandb_address()
    except ValueError as error:
        raise UserError("WANDB_BASE_URL is no address", got=str(error), hint="unset WANDB_BASE_URL") from None
    if not has_login(host):
        raise UserError(
            f"there is no wandb login for {host}",
            got="no WANDB_API_KEY, and no login in ~/.netrc",
            expected="an account for the runs to go to",
            hint="wandb login, or export WANDB_API_KEY=...",
        )
    if (silence := no_answer(host, port)) is not None:  # `wandb sync` would try for days
        raise UserError(
            "wandb cannot be reached", got=silence, hint=Prose("the same command again when there is a network")
        )


def _of_run(run: RunFolder) -> Sending:
    if records_of(run.path) and read_status(run).state == RUNNING:
        return Sending(run.path, "still running", why="it is sent when it has ended")
    if waiting := unsent(run.path):
        return Sending(run.path, "to send", tuple(waiting))
    if records := records_of(run.path):
        return Sending(run.path, "already sent", tuple(records))
    track = section(run.read_config(), "track")
    tracker = track.get("tracker", "wandb")
    why = "wandb recorded nothing" if tracker == "wandb" else f"tracked by {tracker}"
    return Sending(run.path, "nothing to send", why="track=none" if track.get("mode") == "none" else why)


def _after(sending: Sending, output: str) -> Sending:
    """Return the state after an upload: what is left was not sent, for the reason that wandb's output gives."""
    left = unsent(sending.folder)
    if not left:
        return replace(sending, state="sent")
    lines = [line.removeprefix("wandb:").strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if left[0].parent.name in line or left[0].stem in line]
    errors = [line for line in named or lines if "error" in line.lower()]
    return replace(sending, state="not sent", why=(errors or lines or ["wandb said nothing"])[-1])
