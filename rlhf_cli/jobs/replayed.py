"""Derive from a run's experiment one that reproduces a reward failure without training."""

from __future__ import annotations

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.runs.failure_capsules import Capsule


def replayed(experiment: Experiment, capsule: Capsule) -> Experiment:
    """Return the experiment with only the reward that failed.

    Its gates are open, because the capsule has only rows that passed them. It raises errors regardless of `on_error`,
    and has the time limit of the training. Raises ConfigError if the experiment has no reward of that name.
    """
    reward = experiment.rewards.get(capsule.reward)
    if reward is None:
        raise ConfigError(
            f"this is a failure of the reward {capsule.reward!r}, which the experiment does not have",
            where="--completions",
            got="rewards " + (", ".join(experiment.rewards) or "none"),
            expected="the run in whose folder it lies",
            hint="rlhf score RUN --completions RUN/failures/NAME.jsonl",
        )
    alone = reward.model_copy(
        update={
            "gate": None,
            "on_error": "raise",
            "timeout_s": (capsule.timeout_s or "off") if reward.timeout_s == "auto" else reward.timeout_s,
        }
    )
    return experiment.model_copy(update={"rewards": {capsule.reward: alone}, "aggregate": "sum"})


def replay_words(capsule: Capsule, num_rows: int) -> str:
    """Describe the replay in a sentence."""
    left_out = list(capsule.left_out_columns)
    left_out += [f"{capsule.left_out_rows} rows of its batch"] if capsule.left_out_rows else []
    return (
        f"rewards.{capsule.reward} alone, its gates open, on the {num_rows} rows that it was given in step "
        f"{capsule.step + 1} of the training, where it failed: {capsule.error}"
        + (f"\nwithout {', '.join(left_out)}: too large, or nothing that JSON holds" if left_out else "")
    )


def passed_words(capsule: Capsule) -> str:
    """Return the sentence for a replay without a failure."""
    return f"rewards.{capsule.reward} does not fail on these rows any more"
