"""End a rank that hangs, and report its phase and stack.

    python -m rlhf_cli.launch.watchdog RUN

reports on a single-process run that ended because something held the GIL. No Python code runs in such a process;
faulthandler, which does not need the GIL, only wrote its stacks and ended it.

If several ranks stand still, the one that hangs is to blame, not those that wait for it. Every rank passes the same
synchronization points, so the rank that has passed the fewest is behind. If several are equally far behind, the one to
blame is a stopped rank, else one that runs a reward, else one that does not wait in a collective. Only that rank ends
itself, and with it the run. Another rank ends the run only if the hanging one cannot, because it is stopped.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from os import _exit  # the original: os._exit is patched while rewards run
from pathlib import Path
from types import FrameType

from rlhf_cli.config.environment_references import frozen_experiment
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import EXIT_CRASH, RlhfError
from rlhf_cli.launch import hang_keeper
from rlhf_cli.launch.rank_failures import RankFailure, failure_file, resume_hint
from rlhf_cli.launch.stopping import handled
from rlhf_cli.runs.heartbeat import LOADING, Beat, Heartbeat, heartbeat_files, heartbeats
from rlhf_cli.runs.run_folder import RunFolder, open_run, write_json
from rlhf_cli.runs.run_status import FAILED, KILLED, RUNNING, read_status, update_status
from rlhf_cli.runs.running_reward import markers, running_rewards
from rlhf_cli.text.redaction import redacted
from rlhf_cli.text.terminal_output import printable

_DUMP = "hang-rank*.txt"
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+|\?+) in (?P<function>.+)$')
_SHOWN_FRAMES = 3
_BEGINS = " in run_rank"
"""Stacks are shown from this frame on: the frames above are the same in every run."""
_SHOW_CURSOR = "\x1b[?25h\n"
_WAITING = ("/threading.py", "/queue.py", "/selectors.py", "/concurrent/futures/", "/multiprocessing/")
"""Files of the Python standard library in which an idle thread waits."""
_OF_REWARDS = ("/rlhf_cli/rewards/stack/calling.py", "/rlhf_cli/rewards/stack/concurrency.py")
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
    beat = heartbeats(folder).get(rank)
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


def record_hang(folder: RunFolder, hang: Hang, timeout_s: float) -> RankFailure:
    """Write a hang of a rank to its failure file and to the log, and return it as a failure."""
    failure = hang.failure(timeout_s)
    with contextlib.suppress(OSError):  # on a full disk, still report the rest
        write_json(failure_file(folder, hang.rank), asdict(failure))
        with folder.log.open("a", encoding="utf-8") as log:
            log.write(printable(redacted(f"{failure.traceback}\n{failure.message}")) + "\n")
    return failure


def report_hang(folder: RunFolder, hang: Hang, timeout_s: float) -> None:
    """Report on the terminal and in the status that the only process of a run hangs."""
    shown = _SHOW_CURSOR if os.isatty(2) else ""
    failure = record_hang(folder, hang, timeout_s)
    where = f"{resume_hint(folder)}\nrun folder: {folder.shown}, whose log.txt has the whole stack"
    message = f"error: {failure.message}\n{where}\n"
    os.write(2, (shown + printable(redacted(message))).encode())  # sys.stderr may be locked by the hanging thread
    with contextlib.suppress(OSError):
        update_status(folder, state=FAILED, reason=failure.message, failing_rank=hang.rank)


def record_dump(folder: RunFolder, rank: int, timeout_s: float | str) -> None:
    """Write the failure of a rank that faulthandler ended; do nothing if another failure ended it."""
    is_recorded = failure_file(folder, rank).is_file()
    hang = dumped(folder.path, rank) if not is_recorded else None
    if hang is not None and isinstance(timeout_s, float):
        record_hang(folder, hang, timeout_s)


def traces(folder: RunFolder) -> Iterator[Path]:
    """Yield the failure and heartbeat files that ranks of earlier starts left in the same folder."""
    yield from folder.path.glob(failure_file(folder, "*").name)
    yield from folder.path.glob(_DUMP)
    yield from markers(folder.path)
    yield from heartbeat_files(folder.path)


def forget_failures(folder: RunFolder) -> None:
    """Remove the failure and heartbeat files of earlier starts."""
    for stale in traces(folder):
        stale.unlink()


def main(run: str) -> int:
    """Report why the only process of a run has ended."""
    folder = open_run(Path(run))
    hang = dumped(folder.path, 0)
    beat, status = heartbeats(folder.path).get(0), read_status(folder)
    # The run may have been resumed since; its status then belongs to another process.
    is_its_own = beat is not None and status.pid == beat.pid and status.state in (RUNNING, KILLED)
    if hang is not None and is_its_own:
        timeout_s = frozen_experiment(folder.read_config()).launch.hang_timeout_s
        report_hang(folder, hang, timeout_s if isinstance(timeout_s, float) else hang.seconds)
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


_LOOKS = 20
"""Number of checks within the timeout."""
_LONGEST_LOOK_S = 5.0
_LATE_LOOKS, _LATE_S = 4, 2.0
"""Extra time that a rank has to end itself before another rank reports its hang."""
_FAR_SHARE = 0.25
"""Share of the timeout that a rank waits longer if the ranks it waits for are on other machines."""


@contextlib.contextmanager
def watched(folder: RunFolder, experiment: Experiment, rank: int) -> Iterator[Heartbeat]:
    """Open a context in which this rank has a heartbeat, and a watchdog unless `launch.hang_timeout_s` is off."""
    heartbeat = Heartbeat(folder.path, rank)
    timeout_s, world_size = experiment.launch.hang_timeout_s, int(os.environ.get("WORLD_SIZE", "1"))
    try:
        if isinstance(timeout_s, float):
            with Watchdog(folder, heartbeat, timeout_s=timeout_s, world_size=world_size)():
                yield heartbeat
        else:
            yield heartbeat
    finally:
        heartbeat.close()


class Watchdog:
    """Checks that the rank of `heartbeat` makes progress; it is one of `world_size` ranks training in `folder`."""

    def __init__(self, folder: RunFolder, heartbeat: Heartbeat, *, timeout_s: float, world_size: int) -> None:
        self._folder = folder
        self._heartbeat = heartbeat
        self._timeout_s = timeout_s
        self._world_size = world_size
        self._look_s = min(_LONGEST_LOOK_S, timeout_s / _LOOKS)
        self._main_thread = threading.get_ident()
        self._is_closed = threading.Event()
        self._is_suspended = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Open a context in which the watchdog runs."""
        dump = dump_file(self._folder.path, self._heartbeat.rank)
        thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        with ExitStack() as stack:
            stack.callback(dump.unlink, missing_ok=True)
            self._stacks = stack.enter_context(dump.open("w", encoding="utf-8"))
            if self._world_size == 1:
                stack.enter_context(_kept(self._folder.path, dump))
            stack.callback(faulthandler.cancel_dump_traceback_later)
            if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
                stack.enter_context(handled({signal.SIGTSTP: self._suspend}))
            # Arm at once: the next operation may leave no time for a check.
            self._heartbeat.on_watched = self._arm
            stack.callback(setattr, self._heartbeat, "on_watched", bool)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._is_closed.set)
            yield

    def _look(self) -> None:
        looked_at = time.monotonic()
        while not self._is_closed.wait(self._look_s):
            late_s, looked_at = time.monotonic() - looked_at - self._look_s, time.monotonic()
            beat = self._heartbeat.read()
            if not beat.is_watched or self._is_suspended:
                faulthandler.cancel_dump_traceback_later()
                continue
            self._arm()
            if late_s > _LATE_LOOKS * self._look_s + _LATE_S:
                self._heartbeat.beat()  # no thread ran for a while, so the whole process was stopped: start again
            elif beat.age_s > self._timeout_s:
                self._judge(beat)

    def _arm(self) -> None:
        """Set the C timer. If it is not renewed because something holds the GIL, it ends the process."""
        faulthandler.dump_traceback_later(self._timeout_s + self._look_s, exit=True, file=self._stacks)

    def _judge(self, own: Beat) -> None:
        if self._world_size > 1 and any(self._folder.path.glob(failure_file(self._folder, "*").name)):
            return  # a rank has reported a failure, and this one will be ended soon
        hang = hang_of(self._folder.path, own.rank, stacks=own_stacks(self._main_thread))
        if hang.waits():
            self._heartbeat.say_waits()
        seen = heartbeats(self._folder.path)
        behind = _furthest_behind(self._folder.path, seen)
        far_s = self._timeout_s * _FAR_SHARE if len(seen) < self._world_size and hang.waits() else 0.0
        if behind.rank != own.rank:
            if behind.is_watched and behind.age_s > self._timeout_s + _LATE_LOOKS * self._look_s + _LATE_S + far_s:
                self._end(hang_of(self._folder.path, behind.rank, is_stopped=_is_stopped(behind.pid)))
        elif own.age_s > self._timeout_s + far_s and not self._may_wait_for_one(own, seen):
            self._end(hang)

    def _may_wait_for_one(self, own: Beat, seen: dict[int, Beat]) -> bool:
        """Return whether a rank at the same synchronization point still makes progress: this one may wait for it."""
        return any(one.seams == own.seams and one.age_s <= self._timeout_s for one in seen.values())

    def _end(self, hang: Hang) -> None:
        """Report the hang and exit, without touching anything that could block on the hanging thread."""
        try:
            if self._world_size == 1:
                report_hang(self._folder, hang, self._timeout_s)
                self._heartbeat.close()
            else:
                record_hang(self._folder, hang, self._timeout_s)
            dump_file(self._folder.path, self._heartbeat.rank).unlink(missing_ok=True)  # the keeper need not report
        finally:
            _exit(EXIT_CRASH)

    def _suspend(self, number: int, _: FrameType | None) -> None:
        """Suspend the process, for Ctrl-Z or a scheduler; the suspended time does not count."""
        self._is_suspended = True
        faulthandler.cancel_dump_traceback_later()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._heartbeat.beat()
        self._is_suspended = False


def _furthest_behind(folder: Path, seen: dict[int, Beat]) -> Beat:
    """Return the rank that the others wait for, as far as this machine can tell."""
    in_reward = {one.rank for one in running_rewards(folder)}

    def place(beat: Beat) -> tuple[int, bool, bool, bool, int]:
        return beat.seams, not _is_stopped(beat.pid), beat.rank not in in_reward, beat.waits, beat.rank

    return min(seen.values(), key=place)


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal; False if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "Tt"


@contextlib.contextmanager
def _kept(run: Path, dump: Path) -> Iterator[None]:
    """Open a context with a helper process that outlives this one, and reports its end from `dump`."""
    assert hang_keeper.__file__ is not None
    # Run it without site-packages, and without the file's folder on the module path.
    command = [sys.executable, "-I", "-S", hang_keeper.__file__, str(run), str(dump)]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
