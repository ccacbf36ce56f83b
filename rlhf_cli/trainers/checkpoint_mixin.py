"""Save checkpoints that are whole or not there, and resume them exactly, with what was typed for the resumed run.

All code that saves calls `_get_output_dir`. While a checkpoint is being saved, it returns a staging folder, which
`runs/checkpoint_folders.py` turns into a checkpoint when all have written.

The Trainer continues silently if a checkpoint lacks weights, optimizer, schedule or random numbers, and restores the
optimizer's options and the intervals with them. Here a lacking part is refused, and what was typed counts.

TRL loses the buffered rollouts, the position in them, metrics that are not logged yet, a reference model that moves,
and the data order from the second epoch on. Every checkpoint includes that state, one file per rank.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from accelerate import skip_first_batches
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, TrainingArguments
from transformers import trainer as transformers_trainer
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import rotate_checkpoints

from rlhf_cli.errors import ConfigError, RunError
from rlhf_cli.models.weight_shapes import load_renamed
from rlhf_cli.process import keeping_options, temporary_attributes
from rlhf_cli.runs import checkpoint_folders
from rlhf_cli.runs.reward_records import write_text_endings, write_training_format
from rlhf_cli.runs.run_folder import checkpoint_folder, checkpoints_in
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.text.suggest import nearest
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.trl_protocol import TrlTrainer

if TYPE_CHECKING:
    from trl.trainer.utils import RepeatSampler


_STATE_FILE = "trainer_state.json"
_REFERENCE_FILE = "reference.pt"
_PLAIN = (str, int, float, bool, type(None), torch.Tensor)
_START_OVER = "rlhf train ... model.path=CHECKPOINT"


class CheckpointMixin(ExtendedTrainer):
    """For any TRL trainer, outside of all mixins that save: publish a checkpoint in a single step, and resume it."""

    _staging: Path | None = None
    _to_push: bool = False
    _from_weights_alone: bool = False
    _train_sampler: RepeatSampler | LengthGroupedSampler | None = None
    _pending_loss: tuple[torch.Tensor, int] | None = None

    # --- saving ---

    def _get_output_dir(self, trial: Any) -> str:
        if self._staging is not None:
            return str(self._staging)
        return str(Path(super()._get_output_dir(trial=trial), "checkpoints"))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        place = checkpoint_folders.staging_place(folder, self.state.global_step)
        staged = checkpoint_folder(place, self.state.global_step)
        writes = self.args.should_save
        if writes:
            checkpoint_folders.clear_staging(folder)
        # No rank writes before the left-overs are gone, and no rank hashes before all have written.
        self.accelerator.wait_for_everyone()
        self._staging, self._to_push = place, False
        try:
            super()._save_checkpoint(model, trial)
            self.save_state(staged)
            if not self.args.save_only_model:
                save_rollouts(self, staged)
            self.accelerator.wait_for_everyone()
            self._name_best(folder, staged.name)
            if writes:
                if self.state.best_global_step:
                    self.state.save_to_json(str(staged / _STATE_FILE))
                checkpoint_folders.commit(staged)
        except BaseException as error:
            written = checkpoint_folders.bytes_below(place)
            if writes:
                shutil.rmtree(place, ignore_errors=True)
            if not checkpoint_folders.is_full(error):
                raise
            kept = checkpoint_folders.newest_whole(folder)[0]
            needed = max(checkpoint_folders.bytes_below(kept), written) if kept is not None else None
            raise checkpoint_folders.no_room(folder / staged.name, needed=needed, kept=kept, error=error) from error
        finally:
            self._staging = None
        if writes:
            self._prune(folder)
        if self._to_push:
            self._push_from_checkpoint(str(folder / staged.name))
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        # transformers calls this on every rank, but only the rank that writes creates the folder
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        hide_in_arguments(self.args, folder / TRAINING_ARGS_NAME)
        if self.extensions.conversations is not None:
            write_training_format(folder, conversations=self.extensions.conversations)
        if self.extensions.ends_with_eos is not None:
            write_text_endings(folder, with_eos=self.extensions.ends_with_eos)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload once the folder has its final name, because uploads run in the background."""
        if self._staging is not None:
            self._to_push = True
        else:
            super()._push_from_checkpoint(checkpoint_folder)

    def _name_best(self, folder: Path, staged: str = "") -> None:
        """Record the best checkpoint's final path, not that of the checkpoint `staged` or of a run before it moved."""
        best = checkpoint_folder(folder, self.state.best_global_step or 0)
        if self.state.best_global_step and (best.name == staged or best.is_dir()):
            self.state.best_model_checkpoint = str(best)

    def _prune(self, folder: Path) -> None:
        """Rotate checkpoints as in the Trainer, but in their final folder and in the order of their steps."""
        if not self.args.save_total_limit:
            return
        for step, path in checkpoints_in(folder):
            # A later step exists if this run went back to an older checkpoint because the later one did not verify.
            # Rotation would treat it as the newest, and delete the checkpoint that was just written.
            if step > self.state.global_step and checkpoint_folders.problem_with(path) is not None:
                shutil.rmtree(path)
        rotate_checkpoints(str(folder), self.args.save_total_limit, self.state.best_model_checkpoint)

    def _determine_best_metric(self, metrics: dict[str, Any], trial: Any) -> bool:
        wanted, key = self.args.metric_for_best_model, "trainer.args.metric_for_best_model"
        name = f"eval_{(wanted or '').removeprefix('eval_')}"
        was_there = name in metrics or any(name in event for event in self.state.log_history)
        if wanted is not None and not was_there and not re.match(r"eval_(\w+_)?(pass|maj)@", name):
            close = nearest(name, metrics)  # pass@k and maj@k wait for a row that is scored
            what, expected = f"no evaluation logs {name}, which chooses the best checkpoint", ", ".join(metrics)
            hint = f"{key}={close}" if close else None
            raise ConfigError(what, where=key, got=wanted, expected=f"one of {expected}", hint=hint)
        if self.extensions.rewards is not None and wanted is not None and metrics.get(name) is None:
            # A reward may have scored no row this time, or not only 0 and 1: that must not end the run.
            logging.getLogger("rlhf").warning("this evaluation has no %s: its checkpoint is not the best", name)
            return False
        return super()._determine_best_metric(metrics, trial)

    def _evaluate(self, *args: Any, **named: Any) -> Any:
        """Let a schedule that follows evaluations wait at one without its metric: a reward scored no row."""
        schedule: Any = self.lr_scheduler
        step = schedule.step
        with temporary_attributes(schedule, step=lambda *metric: None if metric == (None,) else step(*metric)):
            return super()._evaluate(*args, **named)

    # --- resuming ---

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._train_sampler = super()._get_train_sampler(dataset)
        if isinstance(self._train_sampler, LengthGroupedSampler):  # it would draw from torch's numbers of the moment
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            self._train_sampler.generator = torch.Generator().manual_seed(seed)
        return self._train_sampler

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_renamed(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        self._name_best(Path(self._get_output_dir(trial=None)))
        super()._load_best_model()
        self._load_renamed(self.state.best_model_checkpoint)

    def _load_renamed(self, folder: str | None) -> None:
        """Load the weights that have other names in files than in memory, which the Trainer ignores."""
        inner = self.accelerator.unwrap_model(self.model)
        is_sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        if isinstance(inner, PreTrainedModel) and folder and not is_sharded:
            load_renamed(inner, Path(folder))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return super()._load_optimizer_and_scheduler(checkpoint)
        # The Trainer's state came from the checkpoint, including the old intervals of saving and logging.
        self.state.compute_steps(self.args, self.state.max_steps)
        self.args.eval_on_start = False  # the run has started before
        folder = Path(checkpoint)
        may_lose = self.extensions.may_lose_state
        if missing := checkpoint_folders.missing_state(folder, may_lose=may_lose):
            self._from_weights_alone = True
            if self.is_world_process_zero():
                lacks = f"{folder.name} lacks {', '.join(missing)}"
                print(f"{lacks}: going on from its weights; optimizer, schedule and random numbers begin anew")
        else:
            schedule = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
            rates = list(getattr(schedule, "base_lrs", []))
            with keeping_options(self.optimizer):
                super()._load_optimizer_and_scheduler(checkpoint)
            _use_base_rates(schedule, self.optimizer, rates)
        self.load_state(folder)
        stored: Any = self.state.stateful_callbacks or {}
        states = {name: [*found] if isinstance(found, list) else [found] for name, found in stored.items()}
        for callback in self.callback_handler.callbacks:  # transformers gives them their state only on request
            if isinstance(callback, ExportableState) and (own := states.get(type(callback).__name__)):
                vars(callback).update(own.pop(0)["attributes"])
        self._pending_loss = load_rollouts(self, folder, may_be_missing=may_lose)
        sampler = self._train_sampler
        if sampler is not None and getattr(sampler, "generator", None) is not None:
            for _ in range(int(self.state.epoch or 0)):  # one generator for all: draw what the finished epochs drew
                next(iter(sampler), None)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if not self._from_weights_alone:
            super()._load_rng_state(checkpoint)
        # The Trainer sets these to zero after it has loaded the rest; it calls this method once before its first step.
        if self._pending_loss is not None:
            loss, self._globalstep_last_logged = self._pending_loss
            self._tr_loss += loss
            # The Trainer reports the mean loss of this call's own steps at the end.
            self._total_loss_scalar -= loss.item()
            self._pending_loss = None

    def _run_epoch(self, *args: Any, **named: Any) -> None:
        """Skip the epoch if the last step is done: a run that was killed before it finished has no steps left."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True  # transformers would make one step more
            return
        with temporary_attributes(transformers_trainer, skip_first_batches=_skip):
            super()._run_epoch(*args, **named)


def _skip(loader: Any, num_batches: int) -> Any:
    """Skip batches as accelerate does, but inside IW-OPD's loader, which repeats each batch of another loader.

    accelerate would skip as many batches of that other loader, and then repeat none.
    """
    if "repeat_count" not in vars(loader):
        return skip_first_batches(loader, num_batches)
    repeats = loader.repeat_count
    return type(loader)(skip_first_batches(loader.dataloader, num_batches // repeats), repeats)


def hide_in_arguments(args: TrainingArguments, file: Path) -> None:
    """Rewrite `file`, where transformers has just saved the arguments, if one of them contains a secret."""
    names = [field.name for field in dataclasses.fields(args)]
    values = [getattr(args, name, None) for name in names]
    found = zip(names, values, redacted_tree(values), strict=True)
    may_hide = (str, list, tuple, dict)
    if changed := {name: shown for name, value, shown in found if isinstance(value, may_hide) and shown != value}:
        shown = copy.copy(args)
        vars(shown).update(changed)
        torch.save(shown, file)


def _use_base_rates(schedule: object, optimizer: Optimizer, rates: list[float]) -> None:
    """Set the current rates from the typed base rates. Raise RunError if these changed and the schedule has its own."""
    if not isinstance(schedule, LambdaLR):
        if rates != list(getattr(schedule, "base_lrs", [])):
            what, got = "this schedule keeps the learning rate that it was begun with", type(schedule).__name__
            raise RunError(what, where="trainer.args.learning_rate", got=got, hint=_START_OVER)
        return
    schedule.base_lrs = [*rates]
    factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
    for group, rate, factor in zip(optimizer.param_groups, rates, factors, strict=True):
        group["initial_lr"], group["lr"] = rate, rate * factor
    schedule._last_lr = [group["lr"] for group in optimizer.param_groups]


def save_rollouts(trainer: TrlTrainer, folder: Path) -> None:
    """Write what this rank has not logged into a checkpoint's folder, its rollouts, and a reference that moves."""
    state: dict[str, Any] = {
        "world_size": trainer.accelerator.num_processes,
        "metrics": {name: list(values) for name, values in _unlogged(trainer).items()},
        "loss": trainer._tr_loss,
        "last_logged_step": trainer._globalstep_last_logged,
    }
    if _has_rounds(trainer):
        # At the end of a window TRL generates new rollouts, so the buffer is not needed.
        is_used_up = trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0
        state |= {"step": trainer._step, "inputs": None if is_used_up else trainer._buffered_inputs}
        # The newest completions: without them, a log within a window replaces that step's table by an empty one.
        table = _listed(getattr(trainer, "_logs", {}))  # SDFT has none
        state["table"] = redacted_tree(table, values_only=True) if _is_plain(table) else {}
    torch.save(state, folder / _state_file(trainer))
    reference, is_sharded = _moving_reference(trainer), trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if reference is not None and trainer.args.should_save and not is_sharded:
        torch.save(reference.state_dict(), folder / _REFERENCE_FILE)


def load_rollouts(trainer: TrlTrainer, folder: Path, *, may_be_missing: bool) -> tuple[torch.Tensor, int] | None:
    """Restore what `save_rollouts` wrote. Return the pending loss and the step of the last log.

    Return None if there is no such state and it `may_be_missing`: the next step then begins with a rollout. Raise
    RunError if it is missing otherwise, cannot be read, or is of another number of ranks.
    """
    file, device, reference = folder / _state_file(trainer), trainer.accelerator.device, _moving_reference(trainer)
    if not file.is_file() and (may_be_missing or not (_has_rounds(trainer) or reference is not None)):
        return None  # a checkpoint of rows from before they had this file lacks only what was not logged
    # Under a launcher accelerate's CPU device is called cpu:0, which torch.load does not know.
    device = torch.device("cpu") if device.type == "cpu" else device
    with _readable(file, "rollout state"):
        state = torch.load(file, map_location=device, weights_only=True)
    size, written_by = trainer.accelerator.num_processes, str(state["world_size"])
    if str(size) != written_by:  # a rank's rollouts cannot be redistributed
        what, got = "the checkpoint was written by another number of processes", f"{size} processes"
        raise RunError(what, where=str(folder), got=got, expected=written_by, hint=_START_OVER)
    _unlogged(trainer).update(state["metrics"])
    if _has_rounds(trainer):
        trainer._step, trainer._buffered_inputs = state["step"], state["inputs"]
    for name, column in state.get("table", {}).items():
        for inner, values in column.items() if isinstance(column, dict) else ():
            trainer._logs[name][inner].extend(values)
        if isinstance(column, list):
            trainer._logs[name].extend(column)
    if reference is not None:
        with _readable(folder / _REFERENCE_FILE, "reference model"):
            reference.load_state_dict(torch.load(folder / _REFERENCE_FILE, map_location=device, weights_only=True))
    return state["loss"], state["last_logged_step"]


def _has_rounds(trainer: TrlTrainer) -> bool:
    """Return whether the trainer learns from rollouts in several steps."""
    return hasattr(trainer, "num_iterations")


def _state_file(trainer: TrlTrainer) -> str:
    return f"{'rollout' if _has_rounds(trainer) else 'unlogged'}-rank{trainer.accelerator.process_index}.pt"


def _unlogged(trainer: TrlTrainer) -> dict[str, list[float]]:
    """Return the metrics of the steps since the last log, which the trainer has under one of two names."""
    found: Any = getattr(trainer, "_metrics", None) or getattr(trainer, "_stored_metrics", None)
    return {} if found is None else found["train"]


def _moving_reference(trainer: TrlTrainer) -> torch.nn.Module | None:
    """Return the reference model if it follows the policy during training, else None."""
    return trainer.ref_model if getattr(trainer.args, "sync_ref_model", False) else None


def _listed(column: Any) -> Any:
    """Return a column as a list, and a dict of columns as a plain dict of lists."""
    return {name: _listed(inner) for name, inner in column.items()} if isinstance(column, dict) else list(column)


def _is_plain(value: object) -> bool:
    """Return whether torch can load it without unpickling arbitrary objects."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return type(value) in _PLAIN


@contextmanager
def _readable(file: Path, what: str) -> Iterator[None]:
    """Raise RunError if a checkpoint's file is missing or holds more than plain values."""
    if not file.is_file():
        lacks = f"the checkpoint has no {what}: going on from it would silently train something else"
        expected = "a checkpoint that this version wrote, with trainer.args.save_only_model=false"
        raise RunError(lacks, where=str(file), expected=expected, hint=_START_OVER)
    try:
        yield
    except UnpicklingError as error:
        message = str(error).splitlines()[0]
        raise RunError(f"the {what} cannot be read", where=str(file), got=message, hint=_START_OVER) from error
