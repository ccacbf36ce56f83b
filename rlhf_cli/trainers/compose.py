"""The subclass of a TRL trainer that runs experiments."""

from __future__ import annotations

import inspect

from rlhf_cli.trainers.checkpoints import WholeCheckpoints
from rlhf_cli.trainers.evaluation import WithEvaluation
from rlhf_cli.trainers.lengths import WithLengths
from rlhf_cli.trainers.ppo import WithCritic
from rlhf_cli.trainers.resume import ExactResume
from rlhf_cli.trainers.seams import InRunFolder


def with_our_seams(trl_trainer: type, *, with_critic: bool = False) -> type:
    """The subclass of a TRL trainer that runs experiments: with the reward stack when it takes reward functions.

    `with_critic` makes PPO of GRPOTrainer.

    It keeps TRL's class name, which TRL writes into profiling metrics and model cards.
    """
    takes_rewards = "reward_funcs" in inspect.signature(trl_trainer).parameters
    ours: tuple[type, ...] = (WithCritic,) if with_critic else ()
    ours = (ExactResume, WithEvaluation, *ours) if takes_rewards else (InRunFolder,)
    if hasattr(trl_trainer, "_prepare_dataset"):
        ours = (WithLengths, *ours)
    # Outermost, so that whatever another one writes into a checkpoint is in its manifest.
    bases = (WholeCheckpoints, *ours, trl_trainer)
    return type(trl_trainer.__name__, bases, {"__module__": __name__, "__doc__": trl_trainer.__doc__})
