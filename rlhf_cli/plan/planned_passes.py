"""Predicts how a run's rows will go through the models, from the config.json of policy and critic.

The run itself decides from the loaded model (trainers/passes/chosen_passes.py). Both use tables/packable_models.py.
"""

from __future__ import annotations

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting
from rlhf_cli.json_values import JsonTree
from rlhf_cli.models.config_json import language_part
from rlhf_cli.models.tokenizer_files import read_json
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.tables.packable_models import ATTENTIONS, why_config_not_packed
from rlhf_cli.tables.pass_modes import Passes

_ATTENTION = ATTENTIONS[0]
"""The default of transformers; no key of an experiment changes it."""


def planned_passes(experiment: Experiment, known: Known) -> Passes | None:
    """Return how rows go through the models of a trainer that generates.

    Return None for a trainer that does not generate, and if only the loaded model can tell: its config.json is not on
    this machine, or is of a model family that is not in the table.
    """
    trainer = experiment.trainer
    if not trainer.row.generates:
        return None
    if trainer.passes in ("trimmed", "plain"):
        return Passes(trainer.passes, "as asked")
    config: JsonTree = {"model_type": "llama"}  # what `model.build` makes
    if experiment.model.build is None:
        config = _config_of(str(experiment.model.path), known)
    try:
        why = _why_not(experiment, config)
        if why is None and experiment.critic is not None and experiment.critic.init != "policy":
            of_critic = _why_not(experiment, _config_of(experiment.critic.init, known))
            why = None if of_critic is None else f"the critic: {of_critic}"
    except KeyError:
        return None
    if why is None and setting(known.trainer, trainer.args, "torch_compile") is True:
        why = "it is compiled for rows of one shape"
    return Passes("packed") if why is None else Passes("trimmed", why)


def _why_not(experiment: Experiment, config: JsonTree) -> str | None:
    """Return why rows are not packed in the model of a config.json. Raise KeyError if its family is unknown."""
    if language_part(config) is not config:
        return "it reads more than text"
    why = why_config_not_packed(config, _ATTENTION)
    if why is None and _drops(experiment, config):
        return "it drops at random in training, each row for itself"
    return why


def _drops(experiment: Experiment, config: JsonTree) -> bool:
    """Return whether a forward pass in training applies dropout. TRL's `disable_dropout` does not disable dropout in
    the attention; ours under PPO does (trainers/dropout.py).
    """
    trainer, lora = experiment.trainer, experiment.model.lora
    if trainer.disables_dropout and trainer.baseline == "critic":
        return False
    return bool(config.get("attention_dropout")) or bool(
        lora is not None and lora.lora_dropout and not trainer.disables_dropout
    )


def _config_of(path: str, known: Known) -> JsonTree:
    """Return a model's config.json, or that of an adapter's base; empty if it is not on this machine."""
    folder = known.folder_of(path)
    if folder is not None and not (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        return known.config_of(str(read_json(folder / "adapter_config.json").get("base_model_name_or_path")))
    return known.config_of(path)
