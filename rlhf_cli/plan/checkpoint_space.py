"""Estimates without torch how many bytes a run will write, and compares them with the free disk space.

The estimate leaves out what is small beside the weights (tokenizer, rollouts, logs), so it is a lower bound. If not
even one checkpoint and the model fit, the run would fail midway, so it is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import Lora
from rlhf_cli.errors import RunError, UserError
from rlhf_cli.models.weight_shapes import WeightShape, is_target, stored_shapes, tiny_shapes
from rlhf_cli.runs.disk_space import bytes_below, free_bytes, size

_ADAMS = ("None", "adamw_torch", "adamw_torch_fused", "adamw_anyprecision", "adamw_apex_fused")
_DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_NOT_LINEAR = ("embed", "wte", "wpe", "lm_head", "norm", "score")
_ADAPTER_BYTES = 4
"""PEFT trains adapters in float32, whatever the model's dtype is."""
_WAYS_OUT = "run.root=A_LARGER_DISK, or trainer.args.save_total_limit=1, or trainer.args.save_only_model=true"


@dataclass(frozen=True)
class CheckpointSpace:
    """What a run writes, in bytes: one `checkpoint`, at most `copies` of it at a time, and the trained `model`."""

    checkpoint: int
    copies: int
    model: int

    @property
    def total(self) -> int:
        """Return the bytes of everything that is on disk at the same time."""
        return self.checkpoint * self.copies + self.model


def checkpoint_space(experiment: Experiment, steps: int | None) -> CheckpointSpace | None:
    """Return what a run of `steps` optimizer steps (None if the data decides) will write.

    Return None if the size of the model is unknown: it is a hub id that is not on this machine.
    """
    model, critic, lora = experiment.model, experiment.critic, experiment.model.lora
    shapes = stored_shapes(Path(str(model.path)).expanduser())
    if model.build is not None:
        shapes = tiny_shapes(model.build.hidden_size, model.build.num_layers)
    if shapes is None:
        return None
    dtype_bytes = _DTYPE_BYTES.get(model.dtype if model.build is None else "auto")
    weights = sum(shape.numel * (dtype_bytes or shape.element_bytes) for shape in shapes)
    saved = weights if lora is None else _adapter(shapes, lora)
    # Adam keeps two numbers for every trained weight, in the weight's dtype (arXiv 1412.6980, m and v).
    states = 2 if str(_argument(experiment, "optim")) in _ADAMS else 0
    checkpoint = saved if _argument(experiment, "save_only_model") else saved * (1 + states)
    if critic is not None and critic.share == "none":
        body = weights
        if critic.init != "policy" and (stored := stored_shapes(Path(critic.init).expanduser())) is not None:
            body = sum(shape.numel * shape.element_bytes for shape in stored)
        checkpoint += body * (1 + states)  # the critic's optimizer state is always written
        saved += body
    if _argument(experiment, "sync_ref_model"):
        checkpoint += weights
    return CheckpointSpace(math.ceil(checkpoint), _copies(experiment, steps), math.ceil(saved))


def space_problems(experiment: Experiment, steps: int | None, run: Path | None) -> tuple[list[UserError], str | None]:
    """Return an error if the disk is too small, and a notice if the run fits only after freeing space.

    `run` is the folder of a resumed run, whose existing checkpoints will make room for new ones; None for a new run.
    """
    space = checkpoint_space(experiment, steps)
    if space is None:
        return [], None
    place = run or Path(experiment.run.root).expanduser().resolve()
    free = free_bytes(place)
    if run is not None:
        free += bytes_below(run / "checkpoints") + bytes_below(run / "model") + bytes_below(run / "critic")
    least = space.checkpoint * min(space.copies, 1) + space.model
    checkpoints = "a checkpoint" if space.copies == 1 else f"{space.copies} checkpoints"
    parts = f"{checkpoints} of {size(space.checkpoint)} and the model, {size(space.model)}"
    if free < least:
        return [
            RunError(
                "there is not room enough for one checkpoint and the trained model",
                where=str(place),
                got=f"{free} bytes ({size(free)}) free",
                expected=f"at least {least} bytes ({size(least)}); {size(space.total)} for {parts}",
                hint=_WAYS_OUT,
            )
        ], None
    if free < space.total:
        return [], f"{size(free)} free at {place}, and {parts} need {size(space.total)}: {_WAYS_OUT}"
    return [], None


def _adapter(shapes: list[WeightShape], lora: Lora) -> float:
    """Return the bytes of a LoRA adapter: two matrices per layer, (r, in) and (out, r) (arXiv 2106.09685)."""
    targets = lora.target_modules
    sizes = 0
    for shape in shapes:
        if len(shape.shape) != 2 or any(word in shape.name for word in _NOT_LINEAR):
            continue
        if targets == "all-linear" or is_target(shape.name.removesuffix(".weight"), targets):
            sizes += lora.r * sum(shape.shape)
    return float(sizes * _ADAPTER_BYTES)


def _copies(experiment: Experiment, steps: int | None) -> int:
    """Return how many checkpoints exist at once: the kept ones and the one being written."""
    strategy = str(_argument(experiment, "save_strategy"))
    if strategy == "no":
        return 0
    limit, every = _argument(experiment, "save_total_limit"), _argument(experiment, "save_steps")
    numbers = [limit + 1] if isinstance(limit, int) and limit > 0 else []
    if strategy == "steps" and steps and isinstance(every, int | float) and every > 0:
        numbers.append(math.ceil(steps / (every if every >= 1 else math.ceil(steps * every))))
    return max(1, min(numbers, default=1))


def _argument(experiment: Experiment, name: str) -> object:
    return trl_args.setting(trl_args.trainer(experiment.trainer.trl), experiment.trainer.args, name)
