"""End a run that cannot learn any more: numbers that are not finite, or rewards without a signal.

Before every optimizer step, check the losses of its micro-batches, the gradient and the trained weights; before every
save, check the weights again. The findings are summed over the ranks, so that all of them stop at the same place. The
batch is written to the run folder first, and the error names the last good checkpoint. DeepSpeed's engine has already
made its step then, and hides its gradients: there only the loss or the weights show the problem, but no bad weights are
saved.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate.utils import broadcast_object_list
from pydantic import TypeAdapter
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlhf_cli.errors import GuardStopped, message_of
from rlhf_cli.rewards.stack.reward_metrics import DeadRound
from rlhf_cli.runs.checkpoint_folders import newest_whole
from rlhf_cli.runs.heartbeat import CHECKS, during
from rlhf_cli.runs.run_folder import typed_path
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.trl_protocol import EvaluationOutput, TrlBatch

_PER_TOKEN = ("advantages", "returns", "rollout_values", "old_per_token_logps", "ref_per_token_logps")
_OWED = "evaluation_owed"
"""An empty file in a checkpoint whose evaluation was broken off."""
_DEAD_ROUNDS, _DEAD_ROUNDS_AS_JSON = "rounds_without_signal.json", TypeAdapter(tuple[DeadRound, ...])
_NO_LABEL = -100
"""The label that torch's losses ignore, which transformers uses instead of ids."""


def _rows(inputs: object, decode: Callable[[list[int]], object]) -> list[dict[str, object]]:
    """Return the rows of a micro-batch: ids decoded to text, numbers per row and per token unchanged."""
    if not isinstance(inputs, Mapping):
        return []
    columns: dict[str, list[object]] = {}
    for name, tensor in inputs.items():
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            continue
        if tensor.ndim == 2 and name.endswith("ids") and not tensor.is_floating_point():
            other_mask = inputs.get(name.removesuffix("input_ids") + "attention_mask")
            mask = inputs.get(name.removesuffix("ids") + "mask", other_mask)
            is_mask = isinstance(mask, Tensor) and mask.shape == tensor.shape
            known = mask.bool() if is_mask else tensor != _NO_LABEL
            kept = [ids[is_known].tolist() for ids, is_known in zip(tensor, known, strict=True)]
            columns[name.removesuffix("_ids")] = list(map(decode, kept))
        elif tensor.ndim == 1 or name in _PER_TOKEN:
            columns[name] = tensor.tolist()
    num_rows = max(map(len, columns.values()), default=0)
    return [{name: values[row] for name, values in columns.items() if row < len(values)} for row in range(num_rows)]


def _round(logs: TrlBatch) -> list[dict[str, object]]:
    """Return the rows of the newest round of all ranks: prompt, completion, each named reward, advantage."""
    columns: dict[str, Iterable[object]] = {name: logs.get(name, ()) for name in ("prompt", "completion")}
    columns |= {f"rewards/{name}": values for name, values in logs.get("rewards", {}).items()}
    columns["advantage"] = logs.get("advantages", ())
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=False)]


def _plain(value: object) -> object:
    """Return a value for JSON, which has no numbers for NaN and infinity: they become the texts `nan` and `inf`."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def own_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a sharded tensor, and any other tensor unchanged."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    shard: Tensor = getattr(tensor, "ds_tensor", tensor)  # ZeRO-3's parameter is empty, and its shard an attribute
    return shard


Named = Iterable[tuple[str, torch.nn.Parameter]]
_FOUND = ("the loss", "the gradient", "a weight")
_NAN_PROBABILITIES = ("probability tensor contains", "device-side assert triggered")
"""torch's messages on a CPU and on a GPU when it samples a token from NaN probabilities."""


class EvaluationBrokenOff(Exception):
    """Raised by a callback between two batches of an evaluation, on all ranks at the same batch."""


class GuardMixin(ExtendedTrainer):
    """For any TRL trainer: raise GuardStopped before a step, a save or a rollout that cannot help the run.

    A trainer with rewards has `dead_round`. If a callback raises EvaluationBrokenOff, save and stop; the resumed run
    makes up that evaluation before its first step.
    """

    dead_round: Callable[[Tensor], DeadRound | None]
    _window: tuple[tuple[TrlBatch, Tensor], ...] = ()
    """The micro-batches of the latest optimizer step, and their losses."""
    _is_window_over: bool = False
    _dead_rounds: tuple[DeadRound, ...] = ()
    _owes_evaluation: bool = False

    # --- numbers that are not finite ---

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Return TRL's loss, and remember the micro-batch while training."""
        if self.model.training:
            self._window = (*self._window, (inputs, torch.zeros(())))
        return super().compute_loss(model, inputs, *args, **named)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Take TRL's step. Raise GuardStopped if loss, gradient or weights are not finite."""
        if self._is_window_over:
            self._window = ()
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._window = (*self._window[:-1], (self._window[-1][0], loss))
        self._is_window_over = self.accelerator.sync_gradients
        if self._is_window_over:
            self.refuse_non_finite([loss for _, loss in self._window], self.model.named_parameters())
        return loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as in TRL, a checkpoint or the last model. Raise GuardStopped if its weights are not finite."""
        self.refuse_non_finite([], self._trained(), with_gradient=False)
        super().save_model(output_dir, _internal_call)

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        """Generate as in TRL. Raise GuardStopped if the policy's probabilities are NaN."""
        try:
            return super()._generate_single_turn(*args, **named)
        except RuntimeError as error:
            if not any(text in message_of(error) for text in _NAN_PROBABILITIES):
                raise
            why = "the policy's probabilities of the next token are NaN: its weights diverged"
            self.stop(["the policy's answer"], [why], cause=error, alone=True)

    # --- rewards without a signal ---

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's rollout with our advantages. Raise GuardStopped after too many rounds without a signal."""
        output = super()._generate_and_score_completions(inputs)
        rewards = self.extensions.rewards
        if self.model.training and rewards is not None and rewards.no_signal is not None:
            dead = self.dead_round(output["advantages"])
            self._dead_rounds = () if dead is None else (*self._dead_rounds, dead)
            if len(self._dead_rounds) >= rewards.no_signal:
                found, folder = self._dead_rounds[-1], Path(self.args.output_dir)
                score = f"rlhf score {typed_path(folder)}, or " if (folder / "completions").is_dir() else ""
                ending = "a larger trainer.args.max_completion_length, or truncation=eos_penalty, which teaches to end"
                raise GuardStopped(
                    f"no signal in {len(self._dead_rounds)} rounds in a row: {found.cause}",
                    where=f"steps {self._dead_rounds[0].step} to {found.step}; all advantages were 0",
                    got="\n".join(found.lines),
                    expected="totals that differ between the completions of a prompt: only differences are learned",
                    hint=f"{'' if found.is_cut_off else score}guards.no_signal=off",
                    advice=ending if found.is_cut_off else None,
                )
        return output

    def save_state(self, folder: Path) -> None:
        """Write the rounds without a signal so far, so that a resumed run ends where the whole run would."""
        super().save_state(folder)
        if self.args.should_save and self._owes_evaluation:
            (folder / _OWED).touch()
        if self.args.should_save and self._dead_rounds:
            (folder / _DEAD_ROUNDS).write_bytes(_DEAD_ROUNDS_AS_JSON.dump_json(self._dead_rounds))

    def load_state(self, folder: Path) -> None:
        """Restore the rounds without a signal, and whether an evaluation was broken off at this step."""
        super().load_state(folder)
        self._owes_evaluation = (folder / _OWED).is_file() and self.args.eval_strategy != "no"
        if (file := folder / _DEAD_ROUNDS).is_file():
            self._dead_rounds = _DEAD_ROUNDS_AS_JSON.validate_json(file.read_bytes())

    # --- an evaluation that a signal or a rule ends ---

    def _maybe_log_save_evaluate(self, *args: Any, **named: Any) -> None:
        try:
            super()._maybe_log_save_evaluate(*args, **named)
        except EvaluationBrokenOff:
            self._owes_evaluation, self.control.should_evaluate = True, False
            self.control.should_save = self.control.should_training_stop = True
            super()._maybe_log_save_evaluate(*args, **named)  # the step is logged already: this saves

    def _run_epoch(self, *args: Any, **named: Any) -> None:
        """Make up the evaluation that was broken off (it may choose the best checkpoint or end the run), then train."""
        if self._owes_evaluation:
            self._owes_evaluation = False
            self._load_rng_state(named["resume_from_checkpoint"])  # a save would store the random numbers
            self.control.should_evaluate, self.control.should_log, self.control.should_save = True, False, False
            parts = [named[name] for name in ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time")]
            self._maybe_log_save_evaluate(torch.zeros(()), None, *parts)
            if self.control.should_training_stop:
                return
        super()._run_epoch(*args, **named)

    def evaluation_loop(self, *args: Any, **named: Any) -> EvaluationOutput:
        """Evaluate; if it is interrupted, drop what TRL has gathered for its next log."""
        logs = copy.deepcopy(getattr(self, "_logs", None))
        try:
            return super().evaluation_loop(*args, **named)
        except EvaluationBrokenOff:
            if logs is not None:
                self._logs = logs
            if hasattr(self, "_metrics"):
                self._metrics["eval"].clear()
            self.model.train()  # TRL logs by the mode of the model
            raise

    # --- what the mixins above may call ---

    def _trained(self) -> Named:
        """Return name and parameter for everything that a checkpoint contains."""
        return self.model.named_parameters()

    def refuse_non_finite(self, losses: Sequence[Tensor], trained: Named, *, with_gradient: bool = True) -> None:
        """Raise GuardStopped on every rank if any rank has a loss, gradient or weight that is not finite.

        losses: scalars of the micro-batches of one step. trained: frozen parameters in it are skipped.
        """
        parameters = {name: parameter for name, parameter in trained if parameter.requires_grad}
        # Under fp16, overflowing gradients are normal: the scaler skips that step and reduces its scale.
        reads_gradient = with_gradient and self.accelerator.scaler is None
        gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
        groups: list[Iterable[Tensor]] = [losses, gradients.values() if reads_gradient else (), parameters.values()]

        def not_finite(norm_type: float) -> list[str]:
            norms = torch.stack([_norm(tensors, norm_type).to(self.accelerator.device) for tensors in groups])
            everyones = self.accelerator.reduce((~norms.isfinite()).float(), reduction="sum")
            return [name for name, count in zip(_FOUND, everyones.tolist(), strict=True) if count]

        with during(self.extensions.heartbeat, CHECKS):
            # The squares may overflow although the entries did not; the maximum decides, at ten times the cost.
            found = not_finite(2.0) and not_finite(torch.inf)
        if not found:
            return
        lines = {"the loss": "loss of the micro-batches: " + ", ".join(f"{loss.item():g}" for loss in losses)}
        for what, tensors in (("the gradient", gradients), ("a weight", parameters)):
            bad = [name for name, tensor in tensors.items() if not _norm([tensor], torch.inf).isfinite()]
            first = f", {bad[0]} the first" if bad else ""
            lines[what] = f"{what.partition(' ')[2]}: {len(bad)} of {len(tensors)} tensors{first}"
        self.stop(found, [lines[what] for what in found])

    def stop(
        self, found: Sequence[str], details: Sequence[str], *, cause: BaseException | None = None, alone: bool = False
    ) -> NoReturn:
        """Write the batch to the run folder and raise GuardStopped; unless `alone`, all ranks must call this."""
        step, folder = self.state.global_step + 1, Path(self.args.output_dir)
        rank, decode = self.accelerator.process_index, self.processing_class.decode
        batches = [{"loss": loss.item(), "rows": _rows(batch, decode)} for batch, loss in self._window]
        content = {"step": step, "found": list(details), "micro_batches": batches}
        content["round"] = _round(getattr(self, "_logs", {}))
        file = folder / f"non_finite/step-{step}-rank-{rank}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(redacted_tree(_plain(content), values_only=True), indent=1, ensure_ascii=False)
        file.write_bytes(f"{text}\n".encode())
        way_out = [self._way_out(folder, found) if rank == 0 or alone else None]
        if not alone:  # so that no rank exits, which kills the others, while one is still writing
            broadcast_object_list(way_out)
        are = "are" if len(found) > 1 else "is"
        what = f"{' and '.join(found)} {are} not finite: stopped before optimizer step {step}"
        expected, where = "finite numbers; this step was not saved", f"{os.path.relpath(file)} has the batch"
        got, advice = "\n".join(details), str(way_out[0])
        raise GuardStopped(what, where=where, got=got, expected=expected, advice=advice) from cause

    def _way_out(self, folder: Path, found: Sequence[str] = ()) -> str:
        """Return what to do; weights that are not finite before the first step were not made so by this run."""
        if self.state.global_step == 0 and _FOUND[-1] in found:
            return "the model was loaded with such weights: take another copy, or train it in float32 or bfloat16"
        tame = f"a lower trainer.args.learning_rate (it was {self.args.learning_rate:g})"
        if self.args.max_grad_norm:
            tame += f" or trainer.args.max_grad_norm ({self.args.max_grad_norm:g})"
        last = newest_whole(folder / "checkpoints")[0]
        if last is None:
            return f"{tame}; there is no checkpoint of this run yet"
        resume = f"rlhf resume {typed_path(folder)} goes on from {last.name}, the last good checkpoint"
        return f"{resume}\n{tame}, from its weights: rlhf train ... model.path={typed_path(last)}"


def _norm(tensors: Iterable[Tensor], norm_type: float) -> Tensor:
    """Return the float32 norm of all entries of this rank, a scalar; it is not finite if an entry is not."""
    local = [own_shard(tensor).detach() for tensor in tensors if tensor.is_floating_point()]
    local = [tensor for tensor in local if tensor.numel()]
    return torch.nn.utils.get_total_norm(local, norm_type=norm_type).float() if local else torch.zeros(())
