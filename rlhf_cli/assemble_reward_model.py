"""From the section `reward_model` of an experiment to what TRL's RewardTrainer is given."""

from __future__ import annotations

import logging
from typing import Any

from rlhf_cli.config.schema import Experiment, RewardModel
from rlhf_cli.data.load import quiet
from rlhf_cli.data.preferences import judge_pairs, leave_out
from rlhf_cli.plan.pairs import preference_rules
from rlhf_cli.runs.folder import RunFolder
from rlhf_cli.trainers.reward_samples import RewardSamples


class PreferencePairs:
    """The pairs of one experiment on their way to the trainer, and a count of those that did not arrive.

    `left_out` is name of the data -> reason -> number.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._show_samples = (experiment.reward_model or RewardModel()).show_samples
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

    def set_up(self, trainer: Any, folder: RunFolder) -> None:
        """Say what was left out, and let the trainer show samples."""
        trainer.left_out = self.left_out
        if trainer.is_world_process_zero():
            for name, counts in self.left_out.items():
                told = ", ".join(f"{number} {why.replace('_', ' ')}" for why, number in counts.items())
                logging.getLogger("rlhf").warning("pairs left out of %s: %s", name, told)
        if self._show_samples != 0:
            samples = RewardSamples(trainer, self._show_samples, samples_file=folder.samples, log_file=folder.log)
            trainer.add_callback(samples)
