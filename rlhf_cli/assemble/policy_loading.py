"""Turn the section `model` into what a trainer loads: path, precision, quantisation and adapter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_section import Build
from rlhf_cli.data.worlds import demonstrations
from rlhf_cli.models.heads import head_names
from rlhf_cli.models.hub_models import require_model
from rlhf_cli.models.merge import whole_model
from rlhf_cli.models.tiny import TinyBuild, TinyWarmStart, tiny_model_path

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import BitsAndBytesConfig

_WARM_START_ROWS = 6000
OnProgress = Callable[[str, int, int], None]
"""Called with a description of the work, the step and the number of steps."""


def policy_path(experiment: Experiment, on_progress: OnProgress) -> str:
    """Return the policy's path or hub id; first build an embedded model, or merge an adapter into its base."""
    model = experiment.model
    if model.build is None:
        assert model.path is not None
        trusts = model.trust_remote_code
        require_model(model.path, where="model.path", revision=model.revision, trust_remote_code=trusts)
        return whole_model(model.path, dtype=model.dtype, trust_remote_code=model.trust_remote_code)

    def warming_up(step: int, steps: int) -> None:
        on_progress("warming up the tiny model", step, steps)

    return str(tiny_model_path(_recipe(model.build), partial(warm_start_rows, model.build), warming_up))


def _recipe(build: Build) -> TinyBuild:
    """Convert the section to the input of the model's builder, which does not depend on configurations."""
    start = build.warm_start
    return TinyBuild(
        hidden_size=build.hidden_size,
        num_layers=build.num_layers,
        num_heads=build.num_heads,
        context_tokens=build.context_tokens,
        seed=build.seed,
        warm_start=None
        if start is None
        else TinyWarmStart(
            worlds=start.worlds, steps=start.steps, batch_size=start.batch_size, learning_rate=start.learning_rate
        ),
    )


def warm_start_rows(build: Build) -> list[dict[str, str]]:
    """Return the demonstrations (prompt and completion) for the warm start of `build`."""
    key, worlds = "model.build.warm_start.worlds", build.warm_start.worlds if build.warm_start else []
    return [row for world in worlds for row in demonstrations(world, _WARM_START_ROWS, seed=build.seed, name=key)]


def model_init_kwargs(experiment: Experiment) -> dict[str, object]:
    """Return the arguments of `from_pretrained`; the trainer chooses the class."""
    model = experiment.model
    given: dict[str, object] = {"dtype": model.dtype, "revision": model.revision}
    if model.quantize is not None:
        given["quantization_config"] = _quantization(model.quantize)
    return given


def lora_config(experiment: Experiment, path: str) -> LoraConfig:
    """Return the policy's LoraConfig; for a reward model, its head is trained and saved too."""
    from peft import LoraConfig

    model = experiment.model
    assert model.lora is not None
    given = model.lora.model_dump()
    if experiment.trainer.row.trains != "reward model":
        return LoraConfig(task_type="CAUSAL_LM", **given)
    head = head_names(path, revision=model.revision, trust_remote_code=model.trust_remote_code)
    return LoraConfig(task_type="SEQ_CLS", modules_to_save=head, **given)


def _quantization(bits: str) -> BitsAndBytesConfig:
    """Return the settings of QLoRA (arXiv 2305.14314): 4-bit NormalFloat with double quantisation; or 8-bit integers.

    Heads are not quantised: a new one is trained, and rounding shows most in a language model's head.
    """
    from transformers import BitsAndBytesConfig

    whole = ["lm_head", "score", "classifier"]
    if bits == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=whole)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=whole,
    )
