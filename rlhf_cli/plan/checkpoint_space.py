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

_ADAMS_STATES = 2
"""Adam keeps two numbers for every trained weight, in the weight's dtype (arXiv 1412.6980, m and v)."""
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
    shapes = _policy(experiment)
    if shapes is None:
        return None
    weights = sum(shape.numel * shape.element_bytes for shape in shapes)
    lora = experiment.model.lora
    saved = trained = weights if lora is None else _adapter(shapes, lora)
    states = 0.0 if _argument(experiment, "save_only_model") else trained * _optimizer_states(experiment)
    model = checkpoint = saved
    critic = experiment.critic
    if critic is not None and critic.share == "none":
        body = weights if critic.init == "policy" else _bytes_of(critic.init) or weights
        checkpoint += body * (1 + _optimizer_states(experiment))  # the critic's optimizer state is always written
        model += body
    if _argument(experiment, "sync_ref_model"):
        checkpoint += weights
    return CheckpointSpace(math.ceil(checkpoint + states), _copies(experiment, steps), math.ceil(model))


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


def _policy(experiment: Experiment) -> list[WeightShape] | None:
    model = experiment.model
    if model.build is not None:
        return tiny_shapes(model.build.hidden_size, model.build.num_layers)
    stored = stored_shapes(Path(str(model.path)).expanduser())
    if stored is None or model.dtype == "auto":
        return stored
    return [WeightShape(shape.name, shape.shape, _DTYPE_BYTES[model.dtype]) for shape in stored]


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


def _bytes_of(folder: str) -> float | None:
    stored = stored_shapes(Path(folder).expanduser())
    return None if stored is None else sum(shape.numel * shape.element_bytes for shape in stored)


def _optimizer_states(experiment: Experiment) -> int:
    """Return how many numbers the optimizer keeps per weight; 0 for an optimizer not listed here."""
    return _ADAMS_STATES if str(_argument(experiment, "optim")) in _ADAMS else 0


def _copies(experiment: Experiment, steps: int | None) -> int:
    """Return how many checkpoints exist at once: the kept ones and the one being written."""
    strategy = str(_argument(experiment, "save_strategy"))
    if strategy == "no":
        return 0
    limit, every = _argument(experiment, "save_total_limit"), _argument(experiment, "save_steps")
    kept = limit if isinstance(limit, int) and limit > 0 else None
    saves = None
    if strategy == "steps" and steps and isinstance(every, int | float) and every > 0:
        saves = math.ceil(steps / (every if every >= 1 else math.ceil(steps * every)))
    at_most = kept + 1 if kept is not None else saves
    return max(1, min(number for number in (at_most, saves, 1 << 30) if number is not None)) if at_most or saves else 1


def _argument(experiment: Experiment, name: str) -> object:
    field = trl_args.trainer(experiment.trainer.trl).fields.get(name)
    return experiment.trainer.args.get(name, field.default if field is not None else None)
