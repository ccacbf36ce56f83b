"""Turn the sections `critic` and `kl` into arguments of a trainer with a critic."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from peft import PeftModel
from transformers import PreTrainedModel

from rlhf_cli.algorithms.ppo import Ppo
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.models.scalar_heads import build_critic, check_tokens
from rlhf_cli.trainers.ppo.critic import CriticSettings, KlPenalty, PpoSetup, TrainedCritic
from rlhf_cli.trainers.ppo.lora_critic import SharedLoraCritic

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import TrlArguments


def ppo_args(
    experiment: Experiment, config_class: Callable[..., TrlArguments], reserved: dict[str, object]
) -> TrlArguments:
    """Return TRL's config object for PPO. `reserved` are the fields that other sections of the experiment set.

    TRL's config rejects groups of fewer than two, which a group-mean baseline needs but PPO does not. So the config is
    created with a size that divides the round, and gets the true one afterwards.
    """
    given = dict(experiment.trainer.trl_args)
    num_generations = given.pop("num_generations", 1)
    if not isinstance(num_generations, int):
        raise TypeError(f"num_generations is a whole number, and not {num_generations!r}")
    in_eval = given.pop("num_generations_eval", num_generations)
    given.setdefault("disable_dropout", experiment.trainer.disables_dropout)
    kl = experiment.kl
    if experiment.critic is not None and experiment.critic.share == "lora":
        # The default of transformers is True for PEFT models; with two adapters in one backward, DDP then counts some
        # twice.
        given.setdefault("ddp_find_unused_parameters", False)
    beta = kl.coef if kl is not None and kl.where != "none" else 0.0  # TRL loads a reference if it is not 0
    allowed, whole = num_generations, experiment.trainer.whole
    if allowed == 1 and (given_size := whole("generation_batch_size")) is not None:
        allowed = given_size
    elif allowed == 1:  # the completions of a round, over all processes
        micro_batches = whole("steps_per_generation") or whole("gradient_accumulation_steps") or 1
        allowed = (whole("per_device_train_batch_size") or 1) * micro_batches * int(os.environ.get("WORLD_SIZE", "1"))
    args = config_class(**reserved, **given, beta=beta, num_generations=allowed, num_generations_eval=in_eval)
    args.num_generations = num_generations
    return args


def ppo_setup(experiment: Experiment, policy: str, algorithm: Ppo) -> PpoSetup:
    """Return what PPO needs. `policy` is the path of the policy."""
    model, kl, section = experiment.model, experiment.kl, experiment.critic
    assert section is not None
    assert kl is not None
    settings = CriticSettings(**{field.name: getattr(section, field.name) for field in fields(CriticSettings)})
    separate, trusts = None, model.trust_remote_code
    if section.share == "none":
        built = build_critic(
            section.init,
            policy,
            # In bfloat16, small updates of the weights are rounded away.
            dtype="float32" if model.dtype == "auto" else model.dtype,
            dropout=section.dropout,
            revision=model.revision,
            trust_remote_code=trusts,
        )
        if section.init != "policy":
            tokenizer, revision = (model.tokenizer, None) if model.tokenizer else (policy, model.revision)
            check_tokens(built, section.init, tokenizer, revision=revision, trust_remote_code=trusts)
        separate = TrainedCritic(built, settings)

    def make_critic(loaded: PreTrainedModel | PeftModel) -> TrainedCritic:
        if separate is not None:
            return separate
        assert isinstance(loaded, PeftModel)
        return SharedLoraCritic(loaded, settings, dropout=section.dropout)

    target, horizon = (None, None) if kl.controller == "fixed" else (kl.controller.target, kl.controller.horizon)
    return PpoSetup(settings=algorithm, kl=KlPenalty(kl.where, kl.coef, target, horizon), make_critic=make_critic)
