"""Build the subclass of a TRL trainer that runs experiments: at most ten mixins above it, one concern each.

docs/development/architecture.md lists them. Their order matters, outermost first:

- LoggingMixin: its phases enclose everything below.
- CheckpointMixin: its manifest covers what all others save.
- RolloutMixin, above PPO, which puts the model into evaluation mode: it compares log-probabilities in training mode.
- PpoMixin, above the guards: the policy's gradient is checked before the critic takes its step.
- GuardMixin, above the evaluation, which it breaks off, and above the rewards, whose signal it watches.
- EvaluationMixin, PassMixin, SamplingMixin, which draws a round several times, RewardMixin, which returns to TRL what
  TRL sums, and LeftOutMixin below it.
"""

from __future__ import annotations

from rlhf_cli.trainers.checkpoint_mixin import CheckpointMixin
from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin
from rlhf_cli.trainers.extensions import ExtendedTrainer, Extensions
from rlhf_cli.trainers.guard_mixin import GuardMixin
from rlhf_cli.trainers.logging_mixin import LoggingMixin
from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.reward_mixin import RewardMixin
from rlhf_cli.trainers.rollout_mixin import RolloutMixin


def extended_class(trl_trainer: type, extensions: Extensions) -> type[ExtendedTrainer]:
    """Return the subclass of a TRL trainer with the mixins that `extensions` need.

    It keeps TRL's class name, which TRL writes into profiling metrics and model cards.
    """
    mixins: tuple[type, ...] = (LoggingMixin, CheckpointMixin, GuardMixin)
    if extensions.rewards is not None:
        mixins = (LoggingMixin, CheckpointMixin, RolloutMixin, GuardMixin, EvaluationMixin, PassMixin, RewardMixin)
        if extensions.rewards.keep_groups is not None:
            from rlhf_cli.trainers.sampling_mixin import SamplingMixin

            mixins = (*mixins[:-1], SamplingMixin, RewardMixin)
    if extensions.ppo is not None:
        from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin

        mixins = (*mixins[:3], PpoMixin, *mixins[3:])
    own = {"__module__": __name__, "__doc__": trl_trainer.__doc__, "extensions": extensions}
    return type(trl_trainer.__name__, (*mixins, trl_trainer), own)
