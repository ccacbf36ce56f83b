"""Report what a hanging rank was doing, where in its code, and what to do, even if the rank itself cannot.

    python -m rlhf_cli.launch.hang_report RUN

reports on a single-process run that ended because something held the GIL. No Python code runs in such a process;
faulthandler, which does not need the GIL, only wrote its stacks and ended it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from rlhf_cli.config.environment_references import resolved_references
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import EXIT_CRASH, RlhfError
from rlhf_cli.launch.rank_failures import RankFailure, failure_file, way_on
from rlhf_cli.launch.ranks import Ended
from rlhf_cli.redaction import redacted
from rlhf_cli.runs.pulse import LOADING, pulse_files, pulses
from rlhf_cli.runs.run_folder import RunFolder, open_run, write_json
from rlhf_cli.runs.run_status import FAILED, KILLED, RUNNING, read_status, update_status
from rlhf_cli.runs.running_reward import markers, running_rewards
from rlhf_cli.terminal_output import printable

_DUMP = "hang-rank*.txt"
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+|\?+) in (?P<function>.+)$')
_SHOWN_FRAMES = 3
_BEGINS = " in run_rank"
"""Stacks are shown from this frame on: the frames above are the same in every run."""
_SHOW_CURSOR = "\x1b[?25h\n"
_WAITING = ("/threading.py", "/queue.py", "/selectors.py", "/concurrent/futures/", "/multiprocessing/")
"""Files of the Python standard library in which an idle thread waits."""
_OF_REWARDS = ("/rlhf_cli/stack/calling.py", "/rlhf_cli/stack/reward_loop.py")
_OF_OTHERS = ("/torch/distributed/", "/accelerate/utils/operations.py", "/deepspeed/comm/", "/torch/autograd/graph.py")
"""Files in which a rank waits for others: in a collective, or in a backward pass that gathers gradients."""


@dataclass(frozen=True)
class Hang:
    """A rank that makes no progress, for `seconds`.

    `stacks` are those of its threads, main thread first, each a list of `file:line in function`, innermost last; empty
    if they could not be read. `holds_interpreter` means that one thread held the GIL, so no other could run.
    `is_stopped` means stopped by a signal such as SIGSTOP.
    """

    rank: int
    seconds: float
    phase: str
    rewards: tuple[str, ...] = ()
    stacks: tuple[tuple[str, ...], ...] = ()
    holds_interpreter: bool = False
    is_stopped: bool = False

    def error(self, timeout_s: float) -> RlhfError:
        """Return the error for the user: the activity, the place in the code, and what to do."""
        what = f"no sign of life for {self.seconds:.{0 if self.seconds >= 10 else 1}f} s"
        what += ": it is stopped, by a signal such as SIGSTOP" if self.is_stopped else f", in {self._does}"
        return RlhfError(
            what,
            where=f"rank {self.rank}, {self.phase}" + (f", {_quoted(self.rewards)}" if self.rewards else ""),
            got="\n".join(self.innermost()) or "nothing: it could not be asked where it is",
            expected=f"that it gets on within launch.hang_timeout_s={timeout_s:g}",
            hint=self._hint(),
        )

    def innermost(self) -> list[str]:
        """Return the innermost frames, innermost last: of a running reward if there is one, else of the main thread."""
        if not self.stacks:
            return []
        in_rewards = [stack for stack in self.stacks if _is_of_rewards(stack)]
        busy = [stack for stack in in_rewards if not any(one in stack[-1] for one in _WAITING)]
        stack = [*busy, *in_rewards, *self.stacks][0]
        ours = [place for place, line in enumerate(stack) if any(one in line for one in _OF_REWARDS)]
        return list(stack[(ours[-1] + 1 if ours else 0) :][-_SHOWN_FRAMES:] or stack[-_SHOWN_FRAMES:])

    def waits(self) -> bool:
        """Return whether its main thread only waits for other ranks."""
        return bool(self.stacks) and any(
            one in line for line in self.stacks[0][-2 * _SHOWN_FRAMES :] for one in _OF_OTHERS
        )

    def failure(self, timeout_s: float) -> RankFailure:
        """Return the hang as a failure of the rank, dated at its last sign of progress."""
        stacks = "\n".join("\n".join(("thread:", *(f"  {line}" for line in stack))) for stack in self.stacks)
        return RankFailure(
            self.rank,
            time.time() - self.seconds,
            message=str(self.error(timeout_s)),
            traceback=f"rank {self.rank} hangs; its threads, the innermost place last:\n{stacks or '  unknown'}",
        )

    @property
    def _does(self) -> str:
        return _quoted(self.rewards) or self.phase

    def _hint(self) -> str:
        longer = "launch.hang_timeout_s=3600  # or off, where it needs that long"
        if not self.rewards:
            return longer
        key = f"rewards.{self.rewards[0]}"
        if self.holds_interpreter:
            return f"{key}.isolate=true  # in processes that can be killed: here no deadline can interrupt it"
        return f"{key}.timeout_s=60  # ends a call after so long\n{key}.isolate=true  # ends a row\n{longer}"


def hang_of(folder: Path, rank: int, *, stacks: tuple[tuple[str, ...], ...] = (), **known: bool) -> Hang:
    """Return the hang of a rank, as far as its files show."""
    beat = pulses(folder).get(rank)
    rewards = tuple(one.name for one in running_rewards(folder) if one.rank == rank)
    age_s, phase = (beat.age_s, beat.phase) if beat is not None else (0.0, LOADING)
    return Hang(rank, age_s, phase, rewards, stacks, **known)


def own_stacks(main_thread: int) -> tuple[tuple[str, ...], ...]:
    """Return the stacks of this process: of the main thread, and of threads that run rewards."""
    frames = sys._current_frames()
    found = {ident: tuple(_lines(frame)) for ident, frame in frames.items()}
    rest = [stack for ident, stack in found.items() if ident != main_thread and _is_of_rewards(stack)]
    main = found.get(main_thread, ())
    begins = next((place for place, line in enumerate(main) if line.endswith(_BEGINS)), 0)
    return (main[begins:], *rest)


def dump_file(folder: Path, rank: int | str) -> Path:
    """Return the file to which faulthandler writes the stacks of a rank; rank `*` gives the pattern for all."""
    return folder / _DUMP.replace("*", str(rank))


def dumped(folder: Path, rank: int) -> Hang | None:
    """Return the hang of a rank that faulthandler ended, or None."""
    try:
        text = dump_file(folder, rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    stacks = [tuple(reversed(list(_places(block)))) for block in re.split(r"(?m)^(?:Current thread|Thread) ", text)[1:]]
    if not stacks:
        return None
    # faulthandler lists the main thread last. Of the others only those that run rewards are of interest.
    shown = [stacks[-1], *(stack for stack in stacks[:-1] if _is_of_rewards(stack))]
    since_s = time.time() - dump_file(folder, rank).stat().st_mtime
    hang = hang_of(folder, rank, stacks=tuple(shown), holds_interpreter=True)
    return replace(hang, seconds=max(0.0, hang.seconds - since_s))


def note(folder: RunFolder, hang: Hang, timeout_s: float) -> RankFailure:
    """Write a hang of a rank to its failure file and to the log, and return it as a failure."""
    failure = hang.failure(timeout_s)
    with contextlib.suppress(OSError):  # on a full disk, still report the rest
        write_json(failure_file(folder, hang.rank), asdict(failure))
        with folder.log.open("a", encoding="utf-8") as log:
            log.write(printable(redacted(f"{failure.traceback}\n{failure.message}")) + "\n")
    return failure


def tell(folder: RunFolder, hang: Hang, timeout_s: float) -> None:
    """Report on the terminal and in the status that the only process of a run hangs."""
    shown = _SHOW_CURSOR if os.isatty(2) else ""
    failure = note(folder, hang, timeout_s)
    where = f"{way_on(folder)}\nrun folder: {folder.shown}, whose log.txt has the whole stack"
    message = f"error: {failure.message}\n{where}\n"
    os.write(2, (shown + printable(redacted(message))).encode())  # sys.stderr may be locked by the hanging thread
    with contextlib.suppress(OSError):
        update_status(folder, state=FAILED, reason=failure.message, failing_rank=hang.rank)


def note_dumps(folder: RunFolder, ended: Sequence[Ended], timeout_s: float | str) -> None:
    """Write the failures of ranks that faulthandler ended; does nothing if `timeout_s` is off."""
    for one in ended:
        is_told = failure_file(folder, one.rank).is_file()
        hang = dumped(folder.path, one.rank) if one.code == EXIT_CRASH and not is_told else None
        if hang is not None and isinstance(timeout_s, float):
            note(folder, hang, timeout_s)


def traces(folder: RunFolder) -> Iterator[Path]:
    """Yield the failure and heartbeat files left by ranks of earlier runs in the same folder."""
    yield from folder.path.glob(failure_file(folder, "*").name)
    yield from folder.path.glob(_DUMP)
    yield from markers(folder.path)
    yield from pulse_files(folder.path)


def main(run: str) -> int:
    """Report why the only process of a run has ended."""
    folder = open_run(Path(run))
    hang = dumped(folder.path, 0)
    beat, status = pulses(folder.path).get(0), read_status(folder)
    # The run may have been resumed since; its status then belongs to another process.
    is_its_own = beat is not None and status.pid == beat.pid and status.state in (RUNNING, KILLED)
    if hang is not None and is_its_own:
        timeout_s = Experiment.model_validate(resolved_references(folder.read_config())).launch.hang_timeout_s
        tell(folder, hang, timeout_s if isinstance(timeout_s, float) else hang.seconds)
    return EXIT_CRASH


def _quoted(rewards: Sequence[str]) -> str:
    return "reward " + ", ".join(map(repr, rewards)) if rewards else ""


def _is_of_rewards(stack: Sequence[str]) -> bool:
    return any(one in line for line in stack for one in _OF_REWARDS)


def _lines(frame: FrameType) -> Iterator[str]:
    for one in traceback.extract_stack(frame):
        yield f"{one.filename}:{one.lineno} in {one.name}"


def _places(block: str) -> Iterator[str]:
    for line in block.splitlines():
        if (found := _FRAME.match(line)) is not None:
            yield f"{found['file']}:{found['line']} in {found['function']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
