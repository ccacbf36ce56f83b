"""Checks the section `model` before torch is imported: does the model exist, and is it of the right kind?"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.worlds import demonstrations
from rlhf_cli.errors import ModelError, Prose
from rlhf_cli.models.model_folders import describe_model, describe_reward_model
from rlhf_cli.models.tokenizer_files import read_json


def describe_policy(experiment: Experiment, composed: Composed) -> str:
    """Describe the model that is trained, in words.

    Raise ModelError if the model does not exist, is not of the kind that the trainer trains, or cannot be quantised
    here. Raise DataError for a warm start on a world without demonstrations.
    """
    model = experiment.model
    more = (f" + LoRA r={model.lora.r}" if model.lora else "") + (f", {model.quantize}" if model.quantize else "")
    if model.quantize is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            "quantised loading needs bitsandbytes, which is not installed",
            where=composed.origins.where("model.quantize"),
            got=f"model.quantize={model.quantize}",
            hint="pip install bitsandbytes, or model.quantize=null",
        )
    if model.build is not None:
        for world in model.build.warm_start.worlds if model.build.warm_start else ():
            demonstrations(world, 1, seed=0, name=composed.origins.where("model.build.warm_start.worlds"))
        return f"tiny: {model.build.num_layers} layers of {model.build.hidden_size}, byte-level, embedded" + more
    assert model.path is not None
    where = composed.origins.where("model.path")
    described = describe_model(model.path, where=where, needs_tokenizer=model.tokenizer is None)
    if _is_classifier(Path(model.path).expanduser()):
        if experiment.trainer.row.trains != "reward model":
            raise ModelError(
                f"trainer={experiment.trainer.name} trains a language model, and this is a classifier",
                where=where,
                got=described,
                expected="a causal language model",
                hint=Prose("the model it was trained from; a reward model belongs to rewards.NAME.model"),
            )
        describe_reward_model(model.path, where=where)  # raises if it has several labels
    return described + more


def _is_classifier(folder: Path) -> bool:
    """Return whether the config of a model folder, or of the adapter in it, declares a classifier."""
    for name, field in (("config.json", "architectures"), ("adapter_config.json", "task_type")):
        if (folder / name).is_file():
            stated = read_json(folder / name).get(field) or ""
            kind = str(stated[0] if isinstance(stated, list) else stated)
            return kind.endswith(("ForSequenceClassification", "SEQ_CLS"))
    return False
