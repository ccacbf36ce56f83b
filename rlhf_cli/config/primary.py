"""Expands `primary:` into gates: the primary reward gates every other reward."""

from __future__ import annotations

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import Gate, Reward


def expand_primary(experiment: Experiment) -> Experiment:
    """Return the experiment with `primary` turned into ordinary gates, so that the code handles only gates.

    The primary reward and those it depends on come before it and get no gate. An experiment without `primary`, or whose
    `primary` does not name one of its rewards, is returned unchanged.
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
    """Return every reward whose score must be known before that of `name`."""
    earlier: set[str] = set()
    waiting = [name]
    while waiting:
        gates: list[Gate] = rewards[waiting.pop()].gates
        new = {gate.by for gate in gates if gate.by in rewards} - earlier
        earlier |= new
        waiting += new
    return earlier
