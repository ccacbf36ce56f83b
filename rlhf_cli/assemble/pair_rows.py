"""From the section `reward_model` of an experiment to what TRL's RewardTrainer is given."""

from __future__ import annotations

import logging
from typing import Any

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.loading import quiet
from rlhf_cli.data.preferences import judge_pairs, leave_out
from rlhf_cli.plan.pair_rules import preference_rules


class PreferencePairs:
    """The pairs of one experiment on their way to the trainer, and a count of those that did not arrive.

    `left_out` is name of the data -> reason -> number.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._rules = preference_rules(experiment)
        self.left_out: dict[str, dict[str, int]] = {}

    def judge(self, dataset: Any, name: str) -> Any:
        """All rows, with the margins that are configured. Raises DataError for unsound ones that are not to be."""
        with quiet():
            return judge_pairs(dataset, self._rules, name=name)

    def leave_out(self, dataset: Any, name: str) -> Any:
        """The judged pairs that are sound, the others counted."""
        with quiet():
            kept, counts = leave_out(dataset, name=name)
        if counts:
            self.left_out[name] = counts
        return kept

    def warn(self) -> None:
        """Log what was left out."""
        for name, counts in self.left_out.items():
            told = ", ".join(f"{number} {why.replace('_', ' ')}" for why, number in counts.items())
            logging.getLogger("rlhf").warning("pairs left out of %s: %s", name, told)
