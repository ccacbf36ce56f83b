"""Turn an experiment's section `reward_model` into arguments of TRL's RewardTrainer."""

from __future__ import annotations

import logging

from datasets import Dataset

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.loading import quiet
from rlhf_cli.data.preferences import judge_pairs, leave_out
from rlhf_cli.plan.pair_rules import preference_rules


def ends_with_eos(pairs: Dataset) -> bool:
    """Return whether TRL's RewardTrainer will end the texts of these pairs with the end-of-sequence token.

    It does so for plain texts. A conversation ends as its template says, and token ids are used unchanged.
    """
    return "chosen" in pairs.column_names and isinstance(pairs[0]["chosen"], str)


class PreferencePairs:
    """Prepare an experiment's pairs for the trainer, and count those that are left out.

    `left_out` is name of the data -> reason -> number.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._rules = preference_rules(experiment)
        self.left_out: dict[str, dict[str, int]] = {}

    def judge(self, dataset: Dataset, name: str) -> Dataset:
        """Return all rows, with the configured margins.

        Raise DataError for invalid pairs, unless the configuration leaves them out.
        """
        with quiet():
            return judge_pairs(dataset, self._rules, name=name)

    def leave_out(self, dataset: Dataset, name: str) -> Dataset:
        """Return the valid pairs, and count the others in `left_out`."""
        with quiet():
            kept, counts = leave_out(dataset, name=name)
        if counts:
            self.left_out[name] = counts
        return kept

    def warn(self) -> None:
        """Log how many pairs were left out, and why."""
        for name, counts in self.left_out.items():
            reasons = ", ".join(f"{number} {why.replace('_', ' ')}" for why, number in counts.items())
            logging.getLogger("rlhf").warning("pairs left out of %s: %s", name, reasons)
