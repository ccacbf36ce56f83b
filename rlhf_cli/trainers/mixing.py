"""Build the subclass of a TRL trainer that runs experiments; the additions decide its mixins."""

from __future__ import annotations

from trl import RLOOTrainer

from rlhf_cli.trainers.additions import Additions, BuiltWhole
from rlhf_cli.trainers.exact_resume import ExactResume, ResumedState
from rlhf_cli.trainers.in_phases import InPhases, InRolloutPhases
from rlhf_cli.trainers.in_run_folder import InRunFolder
from rlhf_cli.trainers.live_generation import LiveGeneration
from rlhf_cli.trainers.policy_evaluation import BreaksOffEvaluations, WithEvaluation
from rlhf_cli.trainers.ppo.with_critic import WithCritic
from rlhf_cli.trainers.rloo_baselines import WithLeaveOneOut
from rlhf_cli.trainers.row_lengths import WithLengths
from rlhf_cli.trainers.row_passes import RowPasses
from rlhf_cli.trainers.stacked_rewards import WithRewardStack
from rlhf_cli.trainers.step_profile import CountedLogps, CountedRows
from rlhf_cli.trainers.watched_rounds import WatchedRounds
from rlhf_cli.trainers.whole_checkpoints import WholeCheckpoints, WithTextEndings


def with_our_seams(trl_trainer: type, additions: Additions) -> type:
    """Return the subclass of a TRL trainer that takes `additions`: with the reward stack, a critic, measured rows.

    It keeps TRL's class name, which TRL writes into profiling metrics and model cards.
    """
    ours: tuple[type, ...] = (InRunFolder,)
    if additions.rewards is not None:
        baseline: tuple[type, ...] = (RowPasses, WithRewardStack)
        if additions.ppo is not None:
            baseline = (WithCritic,)
        elif issubclass(trl_trainer, RLOOTrainer):
            baseline = (RowPasses, WithLeaveOneOut)
        ours = (ExactResume, WatchedRounds, LiveGeneration, WithEvaluation, *baseline)
    if additions.ends_with_eos is not None:
        ours = (WithTextEndings, *ours)
    if additions.measured is not None:
        ours = (WithLengths, *ours)
    # Checkpoints are the outermost mixin that saves, so that their manifest covers what all others write. The outermost
    # mixin of all reports the phase.
    said = InPhases if additions.rewards is None else InRolloutPhases
    counted: tuple[type, ...] = ()
    if additions.profile is not None:  # directly above TRL, to count only passes that TRL computes
        counted = (CountedRows,) if additions.rewards is None else (CountedLogps,)
    bases = (said, BuiltWhole, WholeCheckpoints, BreaksOffEvaluations, *ours, ResumedState, *counted, trl_trainer)
    return type(trl_trainer.__name__, bases, {"__module__": __name__, "__doc__": trl_trainer.__doc__})


def built_whole(trl_trainer: type, additions: Additions, **given: object) -> BuiltWhole:
    """Construct a trainer of that class from TRL's arguments and ours."""
    trainer: BuiltWhole = with_our_seams(trl_trainer, additions)(additions=additions, **given)
    return trainer
