"""Run one rank: read the frozen config, assemble, check that the launch came out as asked, train, save.

With one process this runs inside the user's command; with several, in a process per rank (launch/rank_process.py).
Either way its only input is the run folder. accelerate and transformers fall back silently: FSDP 2 on a CPU becomes
plain DDP, one process with several GPUs DataParallel, and an environment variable can change the precision.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, cast

from rich.text import Text

import rlhf_cli
from rlhf_cli.config.environment_references import resolved_references
from rlhf_cli.config.imported_code import imported_since
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.config.schema.section import entries_of
from rlhf_cli.display.terminal import Screen, spinner
from rlhf_cli.errors import ConfigError, Preempted, RlhfError, RunError, UserError
from rlhf_cli.launch.stopping import Stopping, must_save_by, out_of_memory, preempted, record_failure, record_stop
from rlhf_cli.launch.watchdog import watched
from rlhf_cli.models.foreign_files import naming_foreign_files
from rlhf_cli.plan.launch_plan import log_name
from rlhf_cli.plan.rank_group import NODE
from rlhf_cli.process import environment
from rlhf_cli.runs.checkpoint_folders import full_disk
from rlhf_cli.runs.heartbeat import Heartbeat, PhaseClock
from rlhf_cli.runs.metrics_file import rewind
from rlhf_cli.runs.provenance import add_to_provenance, code_hash, other_versions, weights_hash
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import ANOTHER_RANK, FINISHED, claim, preempt, update_status
from rlhf_cli.runs.tracking.tracked_run import plan_tracking
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.text.redaction import SafeStream, printable, redacted

if TYPE_CHECKING:
    from rlhf_cli.analysis.diagnosis.live_rules import StopByRule
    from rlhf_cli.evaluation.scored_pairs import ScoredPair
    from rlhf_cli.launch.stop_callback import StopBetweenSteps
    from rlhf_cli.runs.tracking.mirror import Mirror
    from rlhf_cli.trainers.extensions import ExtendedTrainer
    from rlhf_cli.trainers.step_profile import TokenSlots
    from rlhf_cli.trainers.trl_protocol import TrlTrainer

Profiled: TypeAlias = "tuple[PhaseClock, TokenSlots]"
"""The profiler of a trainer: a clock that listens to its heartbeat, and a counter of its token slots."""
_QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "WANDB_SILENT": "true",
}
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OURS = os.path.dirname(rlhf_cli.__file__) + os.sep
_LOG_WIDTH = 140
_LOADED = frozenset(sys.modules)  # the modules imported before this process imports the trainer and the rewards
_log = logging.getLogger("rlhf")


def run_rank(folder: RunFolder, *, resume: bool) -> None:
    """Train the run in `folder` on this rank, with `resume` from its newest checkpoint."""
    rank = int(os.environ.get("RANK", "0"))

    def say_late(reason: str) -> None:
        """Record, from a thread, that the process exits because its grace period is over."""
        if record_stop(folder, rank, reason):
            print(f"stopped: {reason}; {preempted(folder)}", file=sys.stderr, flush=True)

    with environment({**_QUIET, **os.environ}), logging_into(folder, rank) as warnings_seen:
        try:
            experiment = Experiment.model_validate(resolved_references(folder.read_config()))
            launch = experiment.launch
            stopping = Stopping(grace_s=launch.grace_s, must_save_by=must_save_by(launch), on_late=say_late)
            with stopping.heard(), watched(folder, launch.hang_timeout_s, rank) as heartbeat:
                if rank == 0:
                    claim(folder)
                refuse_other_world_size(launch)  # before it waits for ranks that were not started
                with spinner("importing torch and TRL", shown=rank == 0):
                    importlib.import_module("rlhf_cli.trainers.assemble.trainer")
                    from rlhf_cli.trainers.assemble.trl_config import import_trainer

                    import_trainer(experiment.trainer)

                    from transformers.utils import logging as transformers_logging

                    transformers_logging.disable_default_handler()
                    transformers_logging.enable_propagation()
                    transformers_logging.disable_progress_bar()
                with _explained(folder, experiment, heartbeat), _timed_phases(experiment, heartbeat) as profiled:
                    _Training(folder, experiment, stopping, heartbeat, profiled, rank == 0, resume).run()
        except Preempted as stop:
            if rank == 0:
                preempt(folder, stop.reason)
            from torch import distributed

            if distributed.is_initialized():  # wait for all to save: launchers kill the ranks that remain
                with contextlib.suppress(RuntimeError):
                    distributed.barrier()
            raise
        except KeyboardInterrupt as stop:
            record_stop(folder, rank, ", ".join(map(str, stop.args)) or "interrupted at the keyboard")
            raise
        except BaseException as error:
            record_failure(folder, rank, error)
            raise
        finally:
            if rank == 0:
                with contextlib.suppress(OSError):  # a full disk must not hide the error that ended the run
                    update_status(folder, warnings=warnings_seen())


@contextlib.contextmanager
def _explained(folder: RunFolder, experiment: Experiment, heartbeat: Heartbeat) -> Iterator[None]:
    """Open a context in which a full disk, a full memory and another model's files raise an RlhfError with advice."""
    model = experiment.model
    named = {f"model.{key}": getattr(model, key) for key in ("path", "tokenizer", "chat_template")}
    from rlhf_cli.trainers.assemble.trl_config import refusals_named

    try:
        with refusals_named(experiment.trainer), naming_foreign_files(named):
            yield
    except Exception as error:
        advice = out_of_memory(error, heartbeat) or full_disk(folder, error)
        if advice is None:
            raise
        raise advice from error


@dataclass
class _Training:
    """One start of a run on this rank."""

    folder: RunFolder
    experiment: Experiment
    stopping: Stopping
    heartbeat: Heartbeat
    profiled: Profiled | None
    is_main: bool
    resume: bool

    def __post_init__(self) -> None:
        from rlhf_cli.display.training_bar import TrainingBar

        self.bar, track = TrainingBar(self.heartbeat), self.experiment.track
        self.mirror: Mirror | None = None
        if self.is_main and track.mode != "none":
            from rlhf_cli.runs.tracking.mirror import Mirror

            self.mirror = Mirror(
                self.folder,
                plan_tracking(track.mode, track.tracker),
                say=self._say,
                unique_prompts=bool(self.experiment.trainer.args.get("log_unique_prompts")),
                completions_every=track.completions_every,
            )

    def run(self) -> None:
        """Build the trainer, train to the end and save the model. Raise Preempted if the run was stopped."""
        from transformers import PrinterCallback

        from rlhf_cli.trainers.assemble.trainer import assemble

        with spinner("loading data and models", shown=self.is_main) as show:
            trainer = assemble(
                self.experiment,
                self.folder,
                on_progress=show,
                on_pairs=self._show_pairs,
                heartbeat=self.heartbeat,
                profiled=self.profiled,
            )
        refuse_unless_as_asked(self.experiment.launch, trainer)
        trainer.remove_callback(PrinterCallback)
        checkpoint = starting_checkpoint(self.folder, is_main=self.is_main) if self.resume else None
        start = recorded_to = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
        if self.is_main:
            if self.resume and (changed := other_versions(self.folder)) is not None:
                _warn(f"the run began with other versions, so it may continue differently: {changed}")
            add_to_provenance(self.folder, **trainer_facts(trainer))
            for lengths in getattr(trainer, "lengths", {}).values():
                if lengths.dropped or lengths.cut:
                    print(f"warning: {lengths.describe()}")
            recorded_to = rewind(self.folder.metrics, start)
        stop, by_rule = self._add_callbacks(trainer)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_timed_waits(trainer, self.profiled))
            if self.mirror is not None:
                attempt = self.mirror.attempt(trainer.args, goes_on_from=start, recorded_to=recorded_to)
                stack.enter_context(attempt)
            gc.freeze()  # else imported objects delay the collection of wandb's tables by hundreds of steps
            stack.callback(gc.unfreeze)
            try:
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            finally:
                self.bar.stop()
                if trainer.extensions.rewards is not None:
                    trainer.extensions.rewards.stack.close()
            ended_by = by_rule if by_rule is not None and by_rule.has_stopped else None
            if stop.has_stopped and ended_by is None:
                raise preempted(self.folder, self.stopping.reason or ANOTHER_RANK)
            self._finish(trainer, ended_by)
            if self.is_main:  # only its tracker still closes; the others must not leave before it has saved
                self.stopping.close()

    def _add_callbacks(self, trainer: ExtendedTrainer) -> tuple[StopBetweenSteps, StopByRule | None]:
        """Add the callbacks of this rank to the trainer. Return the two that can end the training early."""
        from rlhf_cli.launch.stop_callback import StopBetweenSteps
        from rlhf_cli.runs.recorder import KeepHeartbeat, Recorder, ShortHistory

        folder, experiment = self.folder, self.experiment
        added: list[Any] = [ShortHistory(), KeepHeartbeat(self.heartbeat)]
        if self.is_main:
            from rlhf_cli.analysis.diagnosis.live_rules import WarnOfFindings

            say_slow = functools.partial(say_slow_paths, trainer, self.bar.print, set[str]())
            say_slow()
            keep, new_code = experiment.run.keep_completions, functools.partial(imported_since, _LOADED, experiment)
            added += [Recorder(folder, self.mirror, keep.last, keep.every, new_code, say_slow), self.bar]
            added.append(WarnOfFindings(folder, self._say, [kind for kind, is_on in experiment.warn if is_on]))
        stop, by_rule = StopBetweenSteps(self.stopping), None
        if rules := entries_of(experiment.stop):
            from rlhf_cli.analysis.diagnosis.live_rules import StopByRule, StoppingRules

            by_rule = StopByRule(folder, self._say, StoppingRules(rules, experiment.rewards), self.is_main)
            added.append(by_rule)
        for callback in [*added, stop]:
            trainer.add_callback(callback)
        return stop, by_rule

    def _say(self, line: str) -> None:
        """Print a line above the bar: stdout is log.txt while TRL logs."""
        self.bar.print(Text(line))

    def _show_pairs(self, pairs: list[ScoredPair]) -> None:
        from rlhf_cli.display.evaluation_tables import pair_table

        table = pair_table(pairs)
        with self.folder.log.open("a", encoding="utf-8") as stream:
            Screen(file=cast(TextIO, SafeStream(stream)), width=_LOG_WIDTH).print(table)
        self.bar.print(table)
        if self.mirror is not None:
            self.mirror.table("samples", pairs[0].step, [{**asdict(pair), "verdict": pair.verdict} for pair in pairs])

    def _finish(self, trainer: ExtendedTrainer, ended_by: StopByRule | None) -> None:
        folder, state = self.folder, trainer.state
        if state.global_step < state.max_steps and ended_by is None:
            raise RlhfError(f"training ended at step {state.global_step} of {state.max_steps}")
        trainer.save_model(str(folder.model))
        if self.is_main:
            if (critic := getattr(trainer, "critic", None)) is not None:
                critic.save(folder.critic)
            card = folder.path / "README.md"
            if card.is_file():
                card.replace(folder.model / "README.md")  # TRL writes its model card into the output folder
            reason = ended_by.reason if ended_by is not None else None
            update_status(folder, state=FINISHED, reason=reason, step=state.global_step, max_steps=state.max_steps)


def _warn(text: str) -> None:
    _log.warning(text)
    print(f"warning: {text}")


def starting_checkpoint(folder: RunFolder, *, is_main: bool) -> Path | None:
    """Return the newest checkpoint that verifies, the same on every rank; None if there are no checkpoints.

    Raise RunError if none verifies, because starting again would overwrite the run's files.
    """
    from accelerate.utils import broadcast_object_list

    from rlhf_cli.runs.checkpoint_folders import MANIFEST, finish_commit, newest_whole

    shared: list[Any] = [None, []]
    if is_main:  # avoids that every rank reads all bytes
        finish_commit(folder.checkpoints)
        shared = list(newest_whole(folder.checkpoints))
    checkpoint, skipped = cast(tuple[Path | None, list[str]], broadcast_object_list(shared))
    if checkpoint is None and skipped:
        what, expected = "no checkpoint of this run is complete", f"a checkpoint whose files match its {MANIFEST}"
        advice = "move the checkpoints away to start at step 0"
        raise RunError(what, where=str(folder.checkpoints), got="\n".join(skipped), expected=expected, advice=advice)
    if is_main:
        for line in skipped:
            _warn(f"skipped {line}")
        print(f"going on from {checkpoint.name}" if checkpoint else "there is no checkpoint yet: starting at step 0")
    return checkpoint


@contextlib.contextmanager
def _timed_phases(experiment: Experiment, heartbeat: Heartbeat) -> Iterator[Profiled | None]:
    """Open a context in which a clock listens to `heartbeat` and token slots are counted, if `profile` is on."""
    if experiment.profile == "off":
        yield None
        return
    from rlhf_cli.trainers.step_profile import counted_slots

    clock = PhaseClock()
    heartbeat.listeners.append(clock.hear)
    heartbeat.reward_listeners.append(clock.run_rewards)
    with counted_slots() as slots:
        yield clock, slots


def _timed_waits(trainer: ExtendedTrainer, profiled: Profiled | None) -> AbstractContextManager[None]:
    """Open a context in which a profile counts the waits for other ranks; let phases on a GPU end with its kernels."""
    if profiled is None:
        return contextlib.nullcontext()
    import torch
    from accelerate import DistributedType

    from rlhf_cli.trainers.step_profile import timed_waits

    clock, _ = profiled
    accelerator = trainer.accelerator
    if str(accelerator.device).startswith("cuda"):
        clock.settle = torch.cuda.synchronize  # kernels are asynchronous; the Trainer waits after each micro-batch
    # FSDP and ZeRO gather a layer's weights while another layer computes; waiting would prevent this overlap.
    settle = clock.settle if accelerator.distributed_type == DistributedType.MULTI_GPU else None
    return timed_waits(clock, settle=settle) if accelerator.num_processes > 1 else contextlib.nullcontext()


class _LogFile(logging.FileHandler):
    """A log file without secrets and control codes; a full disk is reported at the terminal instead."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(redacted(super().format(record)))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore OSErrors; show any other error, because it is a bug."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextlib.contextmanager
def logging_into(folder: RunFolder, rank: int) -> Iterator[Callable[[], int]]:
    """Send everything that libraries log or warn to the log of this machine, repeated warnings once.

    Yield a function that counts the different warnings of the user's code and of ours, not those of libraries.
    """
    handler = _LogFile(folder.path / log_name(int(os.environ.get(NODE, "0"))), encoding="utf-8")
    handler.setFormatter(logging.Formatter(f"%(asctime)s rank{rank} %(levelname)s %(name)s: %(message)s"))
    warned: dict[str, bool] = {}

    def is_new(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        message = record.getMessage()
        is_first = message not in warned
        file = message.partition(":")[0] if record.name == "py.warnings" else record.pathname  # warnings begin with it
        is_library = file.startswith(("<", *_LIBRARIES)) or "site-packages" in Path(file).parts
        warned.setdefault(message, record.name == "py.warnings" if file.startswith(_OURS) else is_library)
        return is_first

    handler.addFilter(is_new)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield lambda: list(warned.values()).count(False)
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def refuse_other_world_size(launch: Launch) -> None:
    """Raise ConfigError for another number of processes: accelerate and torchrun fall back to one silently."""
    seen = int(os.environ.get("WORLD_SIZE", "1"))
    if launch.processes != "auto" and launch.processes * launch.nodes != seen:
        raise _other("processes", str(launch.processes * launch.nodes), f"WORLD_SIZE={seen}", "launch.processes=1")


def refuse_unless_as_asked(launch: Launch, trainer: TrlTrainer) -> None:
    """Raise ConfigError for the first setting of a built trainer that differs from `launch`."""
    accelerator, row = trainer.accelerator, STRATEGIES[launch.strategy]
    device = str(accelerator.device).partition(":")[0]
    kind, is_fsdp = str(accelerator.distributed_type.value), launch.strategy == "fsdp2"
    version = getattr(getattr(accelerator.state, "fsdp_plugin", None), "fsdp_version", None)
    stage = getattr(getattr(accelerator.state, "deepspeed_plugin", None), "zero_stage", None)
    if kind not in row.distributed_types or row.zero_stage not in (None, stage) or (is_fsdp and version != 2):
        seen = {"FSDP": f"FSDP {version}", "DEEPSPEED": f"ZeRO-{stage}"}.get(kind, kind)
        why = "; on a CPU accelerate silently runs it in place of FSDP" if is_fsdp and device == "cpu" else ""
        raise _other("strategy", launch.strategy, f"{seen} on {device}{why}", "launch.strategy=ddp")
    asked = None if launch.processes == "auto" else launch.processes * launch.nodes
    if asked not in (None, accelerator.num_processes):
        raise _other("processes", str(asked), str(accelerator.num_processes), "rlhf resume RUN  # starts all of them")
    if trainer.args.n_gpu > 1:
        spread = f"one process on {trainer.args.n_gpu} GPUs by DataParallel"
        hint = f"launch.processes={trainer.args.n_gpu}, or CUDA_VISIBLE_DEVICES=0"
        raise _other("processes", "one process on one GPU", spread, hint)
    precision = {"no": "float32"}.get(str(accelerator.mixed_precision), str(accelerator.mixed_precision))
    if launch.precision not in ("auto", precision):
        unset = "or unset the variables that `env | grep ACCELERATE` shows"
        raise _other("precision", launch.precision, precision, f"launch.precision={precision}", unset)
    if launch.device not in ("auto", device):
        raise _other("device", launch.device, device, f"launch.device={device}")


def _other(key: str, asked: str, seen: str, hint: str, advice: str | None = None) -> UserError:
    what, where = f"the run does not have the launch.{key} that was asked for", f"launch.{key}"
    return ConfigError(what, where=where, got=seen, expected=asked, hint=hint, advice=advice)


def trainer_facts(trainer: ExtendedTrainer) -> dict[str, object]:
    """Return the facts about a built trainer for the provenance: where it runs, its initial model and its data."""
    import torch

    accelerator, config = trainer.accelerator, trainer.model.config
    path, commit = str(config._name_or_path), getattr(config, "_commit_hash", None)
    weights = None if commit else weights_hash(Path(path))
    on_cuda = str(accelerator.device).startswith("cuda")
    left_out = {name: dict(counts) for name, counts in trainer.extensions.left_out.items()}
    lengths = getattr(trainer, "lengths", {})
    return {
        "world_size": accelerator.num_processes,
        "distributed_type": str(accelerator.distributed_type.value),
        "device": str(accelerator.device),
        "torch_threads": torch.get_num_threads(),
        "rlhf_code": code_hash(),
        **({"device_name": torch.cuda.get_device_name(), "cuda": torch.version.cuda} if on_cuda else {}),
        "mixed_precision": accelerator.mixed_precision,
        # of ZeRO-3's shards the whole parameter
        "num_parameters": sum(getattr(one, "ds_numel", one.numel()) for one in trainer.model.parameters()),
        "num_train_rows": len(trainer.train_dataset),
        "starting_model": {"path": path, "commit": commit, "weights_sha256": weights},
        **pass_facts(trainer),
        **({"left_out": left_out} if left_out else {}),
        **({"lengths": {name: measured.facts() for name, measured in lengths.items()}} if lengths else {}),
    }


def say_slow_paths(trainer: ExtendedTrainer, show: Callable[[Text], None], said: set[str]) -> dict[str, object]:
    """Say on the screen and in log.txt which speed paths are off, but for those in `said`; return `pass_facts`."""
    for name, why in trainer.slow_paths().items():
        line = f"note: {name} is off: {why} (docs/development/performance.md)"
        if line not in said:
            said.add(line)
            show(Text(line))
            _log.info(line)
    return pass_facts(trainer)


def pass_facts(trainer: ExtendedTrainer) -> dict[str, object]:
    """Return how rows pass the models and how answers are generated, as expected before the first step; {} without."""
    passes, generation = getattr(trainer, "passes", None), getattr(trainer, "generation_mode", None)
    if passes is None or generation is None:
        return {}
    attention = getattr(trainer, "row_attention", None)
    attends = {"attention": attention} if attention is not None else {}
    told = f"{generation.name}: {generation.why}"
    return {"passes": passes.describe(), **attends, "generation": told, "slow_paths": trainer.slow_paths()}
