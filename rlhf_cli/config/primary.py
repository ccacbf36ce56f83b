"""`primary:` written out: the one reward that must be met is a gate on every other."""

from __future__ import annotations

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import Gate, Reward


def expand_primary(experiment: Experiment) -> Experiment:
    """The same experiment with `primary` turned into ordinary gates, so that there is one gate graph and one code path.

    Not gated are the primary reward itself and those it waits for: they come before it.
    """
    gate = experiment.primary
    if gate is None or gate.by not in experiment.rewards:
        return experiment
    before = _waits_for(experiment.rewards, gate.by) | {gate.by}
    rewards = {
        name: reward if name in before else reward.model_copy(update={"gate": [*reward.gates, gate]})
        for name, reward in experiment.rewards.items()
    }
    return experiment.model_copy(update={"rewards": rewards, "primary": None})


def _waits_for(rewards: dict[str, Reward], name: str) -> set[str]:
    """Every reward whose score must be known before that of `name`."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        gates: list[Gate] = rewards[waiting.pop()].gates
        new = {gate.by for gate in gates if gate.by in rewards} - found
        found |= new
        waiting += new
    return found
