"""Report which phase a trainer is in, and time its waits for other ranks.

This does not change the training. A phase that begins within another one interrupts it. The watchdog is off while a
trainer loads or saves, since disks may be slow.

It covers the functions of torch.distributed with which accelerate and TRL gather, reduce and broadcast. It does not
cover what engines do in C++ or on their own streams: DDP averages gradients within backward, and a GPU computes during
FSDP's gathers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from peft import PeftModel
from torch import Tensor
from torch.utils.data import DataLoader
from trl.extras.profiling import ProfilingContext

from rlhf_cli.for_a_while import with_values
from rlhf_cli.runs.heartbeat import (
    CLIPPING,
    DATA,
    EVALUATION,
    FORWARD,
    GENERATION,
    LOGGING,
    LOSS,
    OLD_LOGPS,
    REFERENCE_LOGPS,
    REWARDS,
    ROLLOUT,
    SAVING,
)
from rlhf_cli.runs.phase_clock import PhaseClock
from rlhf_cli.trainers.additions import BuiltWhole
from rlhf_cli.trainers.step_profile import is_reference
from rlhf_cli.trainers.token_slots import uncounted

if TYPE_CHECKING:
    from rlhf_cli.runs.heartbeat import Heartbeat
    from rlhf_cli.trainers.trl_protocol import EvaluationOutput


class InPhases(BuiltWhole):
    """For any TRL trainer: report phases to `additions.heartbeat`."""

    def _during(self, phase: str, *, is_watched: bool = True) -> AbstractContextManager[None]:
        heartbeat = self.additions.heartbeat
        return nullcontext() if heartbeat is None else heartbeat.during(phase, is_watched=is_watched)

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        reference = getattr(self, "ref_model", None)  # a trainer of rows calls it within its loss
        if reference is not None and self.additions.heartbeat is not None:
            told = _Told(self.additions.heartbeat, REFERENCE_LOGPS)
            reference.register_forward_pre_hook(told.begin)
            reference.register_forward_hook(told.end)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Read rows, reported as a phase."""
        with self._during(DATA):
            return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _prepare_inputs(self, inputs: Any) -> dict[str, Any]:
        with self._during(DATA):
            return super()._prepare_inputs(inputs)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Compute the loss, reported as the forward phase."""
        with self._during(FORWARD):
            return super().compute_loss(model, inputs, *args, **named)

    def _clip_grad_norm(self, model: Any) -> Any:
        with self._during(CLIPPING):
            return super()._clip_grad_norm(model)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, reported as a phase, and add the time profile."""
        with self._during(LOGGING):
            profile = self.additions.profile
            is_of_training = "loss" in logs or "train_runtime" in logs
            measured = profile.taken(self.accelerator) if profile is not None and is_of_training else {}
            logs.update(measured)  # in place like TRL's own: the best checkpoint is chosen by an evaluation's log
            super().log(logs, start_time)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
        """Compute a micro-batch's loss and gradient, reported as a phase."""
        with self._during(LOSS):
            return super().training_step(model, inputs, num_items_in_batch)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvaluationOutput:
        """Evaluate rows, reported as a phase."""
        with self._during(EVALUATION), uncounted():
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save a model, reported as a phase that is not watched: disks may be slow."""
        with self._during(SAVING, is_watched=False):
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self._during(SAVING, is_watched=False):
            super()._save_checkpoint(model, trial)


class InRolloutPhases(InPhases):
    """The same for a trainer that generates; each forward pass of generation counts as a sign of life."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self._during(ROLLOUT):
            return super()._generate_and_score_completions(inputs)

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        with self._during(GENERATION), self._beating():
            return super()._generate_single_turn(*args, **named)

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> Tensor:
        with self._during(REWARDS):
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        given = (model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy)
        if torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(*given, **others)
        with self._during(REFERENCE_LOGPS if is_reference(model, self.ref_model) else OLD_LOGPS):
            return super()._get_per_token_logps_and_entropies(*given, **others)

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        heartbeat = self.additions.heartbeat
        if heartbeat is None:
            yield
            return
        # Generation bypasses an adapter's own forward, but calls its base model's.
        model = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        hook = model.register_forward_pre_hook(lambda *_: heartbeat.beat())
        try:
            yield
        finally:
            hook.remove()


class _Told:
    """Report a phase by two hooks, called before and after a module's forward pass."""

    def __init__(self, heartbeat: Heartbeat, phase: str) -> None:
        self._heartbeat, self._phase = heartbeat, phase
        self._before: list[tuple[str, ...]] = []

    def begin(self, *_: object) -> None:
        """Enter the phase."""
        self._before.append(self._heartbeat.phases)
        self._heartbeat.enter_part((*self._heartbeat.phases, self._phase))

    def end(self, *_: object) -> None:
        """Return to the phases before."""
        self._heartbeat.enter_part(self._before.pop())


_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "barrier"),
    *("broadcast", "broadcast_object_list", "gather_object", "reduce"),
)


@contextlib.contextmanager
def timed_waits(
    clock: PhaseClock, *, wanted: bool = True, settle: Callable[[], object] | None = None
) -> Iterator[None]:
    """Report the time inside collectives to `clock` as waiting, in this context.

    If not `wanted`, for a single rank, change no function. `settle` waits for a GPU, because a collective may return
    before it has finished.
    """
    if not wanted:
        yield
        return
    timed = {name: _timed(getattr(torch.distributed, name), clock, settle) for name in _COLLECTIVES}
    with with_values(torch.distributed, **timed):
        yield


def _timed(
    collective: Callable[..., object], clock: PhaseClock, settle: Callable[[], object] | None
) -> Callable[..., object]:
    @functools.wraps(collective)
    def timed(*args: object, **named: object) -> object:
        with clock.waiting():
            done = collective(*args, **named)
            if settle is not None:
                settle()
            return done

    return timed


class ProfiledCalls:
    """Seconds by TRL's own name, `profiling/Time taken: GRPOTrainer.compute_loss`, summed over calls."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """Add the seconds that one call took."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def taken(self) -> dict[str, float]:
        """Return the sums since the last call."""
        taken, self._seconds = self._seconds, {}
        return taken


@contextlib.contextmanager
def profiled_calls(*, wanted: bool = True) -> Iterator[ProfiledCalls]:
    """Collect all profiled calls of TRL in this process in this context, in addition to TRL's own logging.

    Do not collect any if not `wanted`.
    """
    calls = ProfiledCalls()
    if not wanted:
        yield calls
        return
    log_metrics = ProfilingContext._log_metrics

    def collect(self: ProfilingContext, duration: float) -> None:
        calls.add(f"{self.metric_prefix}: {self.name}", duration)
        log_metrics(self, duration)

    ProfilingContext._log_metrics = collect  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        ProfilingContext._log_metrics = log_metrics  # type: ignore[method-assign]
