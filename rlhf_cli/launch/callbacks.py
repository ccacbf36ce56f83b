"""Report on a run while it trains: metrics, status, heartbeat, completions, phases."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState

from rlhf_cli.analysis.diagnosis.finding import Finding, RunSetup
from rlhf_cli.analysis.diagnosis.watch import Watch
from rlhf_cli.config.imported_code import imported_since
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.run_sections import KeepCompletions
from rlhf_cli.launch.progress import TrainingScreen
from rlhf_cli.runs.heartbeat import ENDING, OPTIMIZER, TRAINING, Heartbeat
from rlhf_cli.runs.metrics_file import Event, MetricsWriter, describe_held_out, prune_completions, read_metrics
from rlhf_cli.runs.provenance import add_to_provenance, note_files
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import update_status
from rlhf_cli.runs.tracking.mirror import Mirror
from rlhf_cli.trainers.trl_protocol import TrlBatch

_LOADED = frozenset(sys.modules)
"""The modules imported before this process imports the trainer and the rewards."""


class Recorder(TrainerCallback):
    """A callback that writes every logged metric and updates step and checkpoint in status.json.

    It passes each event to `mirror`, and adds to the provenance newly imported code and, after the first step, `modes`:
    which row packing and generation the step used. Use it in the main process only.
    """

    def __init__(
        self,
        folder: RunFolder,
        mirror: Callable[[Event], None],
        experiment: Experiment,
        modes: Callable[[], dict[str, object]],
    ) -> None:
        self._folder, self._mirror, self._experiment, self._loaded = folder, mirror, experiment, _LOADED
        self._metrics = MetricsWriter(folder.metrics)
        self._modes: Callable[[], dict[str, object]] | None = modes

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        update_status(self._folder, step=state.global_step, max_steps=state.max_steps)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        event = self._metrics.write(state.global_step, logs or {})
        update_status(self._folder, step=state.global_step)
        self._mirror(event)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._modes is not None:
            add_to_provenance(self._folder, **self._modes())
            self._modes = None

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the name of the newest checkpoint to status.json, or null if there is none."""
        self._metrics.flush()
        checkpoint = self._folder.last_checkpoint()
        update_status(self._folder, step=state.global_step, last_checkpoint=checkpoint and checkpoint.name)
        self._note_code()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._note_code()

    def _note_code(self) -> None:
        note_files(self._folder, imported_since(self._loaded, self._experiment))
        self._loaded = frozenset(sys.modules)


class ShowProgress(TrainerCallback):
    """A callback that advances the bar, and shows the newest total reward (or loss) and every evaluation.

    Use it in the main process only.
    """

    def __init__(self, screen: TrainingScreen) -> None:
        self._screen = screen
        self._latest = ""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._screen.start(state.global_step, state.max_steps)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._screen.move_to(state.global_step)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        """Show the newest reward, or the loss if there is no reward, beside the bar and on its own line."""
        for name in ("reward", "loss"):
            value = (logs or {}).get(name)
            if isinstance(value, float) and not math.isnan(value):
                self._latest = f"{name} {value:.3f}"
                break
        self._screen.say_latest(self._latest)
        if not any(name.startswith(("eval_", "train_runtime")) for name in logs or {}):
            self._screen.say_line(state.global_step, self._latest)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: Any, metrics: TrlBatch | None = None, **_: Any
    ) -> None:
        summary = describe_held_out(metrics or {})
        if summary:
            self._screen.print(Text(f"step {state.global_step}, held out: {summary}"))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._screen.stop()


class KeepHeartbeat(TrainerCallback):
    """A callback that reports the Trainer's phases to `heartbeat`, beyond those of trainers/logging_mixin.py.

    Use it on every rank.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Enter training: progress is watched from here on."""
        self._heartbeat.enter(TRAINING)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._heartbeat.enter(TRAINING)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Enter the optimizer phase: all gradients are complete."""
        self._heartbeat.enter(OPTIMIZER)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._heartbeat.enter(TRAINING)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Record progress after a batch of an evaluation."""
        self._heartbeat.beat()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Enter the ending phase, which is not watched because it may take any time."""
        self._heartbeat.enter(ENDING, is_watched=False)


class MirrorCompletions(TrainerCallback):
    """A callback that passes the newest tables to the run's mirror, before old ones are pruned.

    A step's table is written after the `on_log` callbacks. Use it in the main process only.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._mirror.completions(state.global_step)


_LOGS = 3
_NEARLY_ALL = 0.95
_log = logging.getLogger("rlhf")


class WatchCompletionEnds(TrainerCallback):
    """A callback that warns, on the terminal and in log.txt, about truncated or empty completions.

    It warns if in three consecutive logs at least 95 % of the completions were truncated, or no completion had more
    than one token (EOS). Each warning is given once. `limit` is TRL's max_completion_length, in tokens. Use it in the
    main process only.
    """

    def __init__(self, screen: TrainingScreen, limit: int | None) -> None:
        self._screen = screen
        self._limit = limit
        self._cut_off: list[float] = []
        self._num_empty = 0

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        share, longest = (logs or {}).get("completions/clipped_ratio"), (logs or {}).get("completions/max_length")
        if share is None or longest is None:
            return  # an evaluation, or the final log event
        self._cut_off = [*self._cut_off, share] if share >= _NEARLY_ALL else []
        if len(self._cut_off) == _LOGS:
            at = "" if self._limit is None else f" at trainer.args.max_completion_length={self._limit}"
            mean = sum(self._cut_off) / _LOGS
            self._warn(
                f"{mean:.0%} of the completions up to step {state.global_step} were cut off{at}: "
                "they have no room to end, or the policy never writes its end; `truncation` says what that is worth"
            )
        self._num_empty = self._num_empty + 1 if longest <= 1 else 0
        if self._num_empty == _LOGS:
            self._warn(
                f"every completion up to step {state.global_step} was empty: the policy ends before it has begun"
            )

    def _warn(self, text: str) -> None:
        _log.warning(text)
        self._screen.print(Text(f"warning: {text}"))


_KEPT_LOGS = 100
_IS_EVALUATION = "eval_"


@contextlib.contextmanager
def early_collection() -> Iterator[None]:
    """Open a context in which Python's garbage collector ignores all objects that exist already.

    Python collects old garbage once a quarter as many objects are new as there are old ones. The half million objects
    of the imports delay that by hundreds of steps, and each table logged to wandb (a cycle) waits for it in memory.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class ShortHistory(TrainerCallback):
    """A callback that keeps the newest 100 training and 100 evaluation log events, on every rank.

    The Trainer keeps all events in memory and writes them into every checkpoint: 2.6 kB per step of a small GRPO run.
    The full record is metrics.jsonl. Readers of the history only need its end, or whether an evaluation ever had a
    metric: choosing the best checkpoint, the tables of a model card.
    """

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Drop older events from `state.log_history`, in place, once it holds twice as many."""
        if len(state.log_history) <= 2 * _KEPT_LOGS:
            return
        kept = {True: 0, False: 0}
        newest: list[dict[str, float]] = []
        for event in reversed(state.log_history):
            is_evaluation = any(name.startswith(_IS_EVALUATION) for name in event)
            kept[is_evaluation] += 1
            if kept[is_evaluation] <= _KEPT_LOGS:
                newest.append(event)
        state.log_history[:] = reversed(newest)


class PruneCompletions(TrainerCallback):
    """A callback that deletes the completion tables that `run.keep_completions` does not keep.

    Use it in the main process only.
    """

    def __init__(self, folder: RunFolder, keep: KeepCompletions) -> None:
        self._folder = folder
        self._keep = keep

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Prune before the next step, because a step's table is written after the `on_log` callbacks."""
        self._prune(state.global_step)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._prune(0)

    def _prune(self, step: int) -> None:
        # Listing a folder is slow, so prune every tenth step only.
        if self._keep.last != "all" and step % 10 == 0:
            prune_completions(self._folder.path, last=self._keep.last, every=self._keep.every)


class SayFindings(TrainerCallback):
    """A callback that warns about findings in the log so far; `kinds` are the enabled ones.

    Findings from an earlier attempt at the run are not repeated. Use it in the main process only.
    """

    def __init__(self, folder: RunFolder, screen: TrainingScreen, kinds: Collection[str]) -> None:
        self._folder = folder
        self._screen = screen
        self._kinds = kinds
        self._watch: Watch | None = None
        self._has_said = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._kinds:
            setup = RunSetup.of(self._folder.read_config())
            self._watch = Watch(setup, self._kinds, state.max_steps, read_metrics(self._folder.metrics))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        if self._watch is not None:
            plain = {name: value.item() if hasattr(value, "item") else value for name, value in (logs or {}).items()}
            self._say(state.global_step, self._watch.take(state.global_step, plain))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._watch is not None:
            self._say(state.global_step, self._watch.look())

    def _say(self, step: int, findings: list[Finding]) -> None:
        for finding in findings:
            change = next(iter(finding.changes), None)
            advice = f"; {change.words} {change.reason}" if change else ""
            text = f"step {step}: {finding.what}{advice}"
            _log.warning(text)
            more = "" if self._has_said else f" (rlhf why {self._folder.shown} has the evidence)"
            self._has_said = True
            self._screen.print(Text(f"warning: {text}{more}"))
