"""Run code of a run that another user made, submit its jobs or send its data only if this user trusts it."""

from __future__ import annotations

import sys
from pathlib import Path

from rlhf_cli.config.asked_keys import asked_of
from rlhf_cli.errors import RunError
from rlhf_cli.runs.provenance import add_to_provenance, is_made_by_us, made_by, maker_of
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, read_json
from rlhf_cli.runs.run_overview import words_in

_LONGEST = 300


def refuse_foreign_code(run: RunFolder, *, trust: bool, command: str) -> None:
    """Raise RunError if a run that this user did not make would run code, submit a job or send data.

    The error lists everything of this kind; with `trust` it is printed to stderr instead.
    `command` is the typed command, such as `rlhf resume RUN`.
    """
    asked = asked_of(run.read_config())
    if not is_made_by_us(run.provenance, asked):
        _refuse(run.config, asked, run.provenance, trust=trust, command=command)


def refuse_foreign_words(sweep: Path, *, trust: bool, command: str) -> None:
    """Do the same for a sweep whose other jobs are made from the words in its sweep.json."""
    file = sweep / SWEEP
    if not is_made_by_us(file, asked := words_in(read_json(file))):
        _refuse(file, asked, file, trust=trust, command=command)


def _refuse(where: Path, asked: list[str], record: Path, *, trust: bool, command: str) -> None:
    shown = [f"{line[:_LONGEST]}{'...' * (len(line) > _LONGEST)}" for line in asked]
    if not trust and asked:
        raise RunError(
            "this run would run code, submit a job or send data, and you may not have made it",
            where=str(where),
            got="\n".join([f"made by {maker_of(record)}", *shown]),
            expected="your own unchanged run, or settings that you have read and trust",
            hint=f"{command} --trust",
        )
    for line in shown:
        print(f"trusted: {line}", file=sys.stderr)


def take_as_ours(run: RunFolder) -> None:
    """Mark a run as this user's own, after the user said to trust its code and resumes it."""
    asked = asked_of(run.read_config())
    if asked and not is_made_by_us(run.provenance, asked):
        add_to_provenance(run, made_by=made_by(asked))
