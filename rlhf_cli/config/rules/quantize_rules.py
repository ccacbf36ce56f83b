"""Checks quantised weights: they are frozen, so an adapter has to be trained."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError


def quantize_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with `model.quantize`."""
    model = experiment.model
    if model.quantize is None:
        return
    where = origins.where("model.quantize")
    if model.lora is None:
        yield ConfigError(
            "quantised weights cannot be trained",
            where=where,
            got=f"model.quantize={model.quantize} without model.lora",
            expected="an adapter that is trained on top of them",
            hint="model.lora.r=16, or model.quantize=null",
        )
    if experiment.launch.precision == "fp16":
        yield ConfigError(
            "an adapter on quantised weights is kept in bfloat16, which fp16 training cannot scale",
            where=origins.where("launch.precision"),
            got="fp16",
            expected="bf16, or float32",
            hint="launch.precision=bf16",
        )
