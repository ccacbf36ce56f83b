"""Checks the models a run starts from: the policy and the critic."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError
from rlhf_cli.models.model_folders import TINY_VOCABULARY, Policy, describe_critic, read_policy
from rlhf_cli.packing.refused_packing import refused_packing
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.planned_passes import planned_passes
from rlhf_cli.plan.policy_model import describe_policy


def policy_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Check the model that is trained, and note its description. Raises the errors of `describe_policy`."""
    yield from ()
    known.model = describe_policy(experiment, composed)


def passes_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Refuse packed rows, as the run would, if a model's config.json shows that they cannot be packed."""
    found = planned_passes(experiment, known) if experiment.trainer.passes == "packed" else None
    if found is not None and found.mode != "packed":
        yield refused_packing(found, where=composed.origins.where("trainer.passes"))


def critic_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Check the critic's initial model. Raise ModelError if it is not a critic, or does not fit this policy."""
    yield from ()
    critic, model = experiment.critic, experiment.model
    if critic is None or critic.init == "policy":
        return
    if model.build is not None:
        policy = Policy(TINY_VOCABULARY)
    else:
        assert model.path is not None
        policy = read_policy(model.path, model.tokenizer, where=composed.origins.where("model.path"))
    describe_critic(critic.init, policy, where=composed.origins.where("critic.init"))
