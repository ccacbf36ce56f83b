"""Judge a broken run: return the problems, an empty list if it lost no work."""

from __future__ import annotations

import re
from itertools import pairwise
from signal import Signals

from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED
from scripts.chaos.outcomes import Blow, Broken, Ended

_SAVED = re.compile(r"saved step (\d+)")
_NOTHING = re.compile(r"nothing is saved yet|no checkpoint yet")
_NOT_BEGUN = "nothing was being trained"
_PARTS = ("model", "critic", "metrics")


def problems(broken: Broken) -> list[str]:
    """Return every broken promise, one per line, with the number of the blow."""
    found = [f"blow {number}: {line}" for number, blow in enumerate(broken.blows) for line in _of_blow(blow)]
    for blow, command in zip(broken.blows, broken.commands(), strict=True):
        if command.went_on_from is not None and command.went_on_from < blow.checkpoint:
            found.append(f"checkpoint {blow.checkpoint} verified, and it went on from {command.went_on_from}")
    # A kill may remove a checkpoint that was being replaced, never one that was complete.
    found += [
        f"checkpoint {before.checkpoint} was lost: {after.checkpoint} is the newest later on"
        for before, after in pairwise(broken.blows)
        if after.checkpoint < before.checkpoint
    ]
    found += [*_crashes(broken.last, "going on"), *_orphans(broken.last, "going on")]
    others = [part for part in _PARTS if getattr(broken.result, part) != getattr(broken.expected, part)]
    return [*found, *(f"the {part} is not that of the run that never stopped" for part in others)]


def _of_blow(blow: Blow) -> list[str]:
    return [
        *(_after_kill(blow) if blow.signal == Signals.SIGKILL.name else _after_wish(blow)),
        *_orphans(blow.ended, "the blow"),
        *([f"not readable: {blow.unreadable}"] if blow.unreadable else []),
        *(line for verb, ended in blow.readers.items() for line in _crashes(ended, f"rlhf {verb}")),
    ]


def _after_kill(blow: Blow) -> list[str]:
    if blow.victim != "rank":
        return [] if blow.ended.code == -Signals.SIGKILL else [f"it was killed and ended with {blow.ended.code}"]
    found = [] if blow.ended.code == EXIT_CRASH else [f"a rank was killed and it ended with {blow.ended.code}"]
    if "was killed by signal 9" not in blow.ended.said:
        found.append(f"a rank was killed and nothing says so\n{blow.ended.said[-2000:]}")
    return found


def _after_wish(blow: Blow) -> list[str]:
    if blow.ended.code != EXIT_PREEMPTED:
        return [f"it was asked to stop and ended with {blow.ended.code}\n{blow.ended.said[-2000:]}"]
    if _NOT_BEGUN in blow.ended.said:  # true if this command made no step
        return [] if blow.ended.first_step_s is None else ["it had begun, and says that it had not"]
    if blow.state is None:
        return ["it does not say what is saved"]
    found = [] if blow.state == "preempted" else [f"its state is {blow.state}"]
    said = _SAVED.search(blow.ended.said)
    if said is None:
        is_true = _NOTHING.search(blow.ended.said) is not None and blow.step == 0 and blow.checkpoint == 0
        return [*found, *([] if is_true else [f"step {blow.step} was not saved"])]
    if not int(said[1]) == blow.checkpoint == blow.step:
        steps = f"says {said[1]}, checkpoint {blow.checkpoint}, step {blow.step}"
        found.append(f"what it saved is not where it was: {steps}")
    return found


def _crashes(ended: Ended, what: str) -> list[str]:
    is_well = ended.code == EXIT_OK and "Traceback" not in ended.said
    return [] if is_well else [f"{what} ended with {ended.code}\n{ended.said[-2000:]}"]


def _orphans(ended: Ended, after: str) -> list[str]:
    return [f"left behind after {after}: {line}" for line in ended.orphans]
