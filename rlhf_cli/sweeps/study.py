"""Ask Optuna for the next trial and tell it the results. The study is stored in a file of the sweep's folder.

This is Optuna's ask-and-tell interface (https://optuna.readthedocs.io, "Ask-and-Tell Interface"): we run the trials,
Optuna proposes them. The storage is Optuna's journal, one JSON object per line, so a stopped search can resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.launch_sections import Sweep
from rlhf_cli.errors import ConfigError
from rlhf_cli.sweeps.search_space import Objective, Space, distribution, word_of

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

JOURNAL = "search.jsonl"
_NAME = "search"
_JOB = "job"
_LEFT_AFTER_HALVING = 3
"""One trial in this many continues at each rung. arXiv 1810.05934 uses 4; 3 wastes less of a search of about forty."""
_FIRST_RUNG_PERCENT = 11
"""No trial is stopped before this percentage of its training. Halving checks again at 33 % and 99 %."""


@dataclass(frozen=True)
class SearchTrial:
    """A trial: its number, its settings as overrides, and its result.

    `job` is the sweep's job that runs it, None until there is one. `values` has one entry per objective, or is empty if
    there are none. `state` is Optuna's name: complete, pruned, fail or running.
    """

    number: int
    job: str | None
    words: tuple[str, ...]
    values: tuple[float, ...]
    state: str


class SearchStudy:
    """The stored trials of one search, finished and running, and the sampler that proposes new ones."""

    def __init__(self, folder: Path, sweep: Sweep, objectives: Sequence[Objective], space: Space, *, seed: int) -> None:
        """Open the study in a sweep's folder, or create it. Raise ConfigError if Optuna is not installed."""
        _need_optuna()
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._distributions = {key: distribution(may_be) for key, may_be in space.items()}
        self._study: Study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            study_name=_NAME,
            directions=[objective.direction for objective in objectives],
            pruner=_pruner(sweep.prune),
            load_if_exists=True,
        )
        # A resumed search needs other random numbers: with the same ones it would repeat its first trials.
        self._study.sampler = _sampler(sweep.sampler, seed + len(self._study.get_trials(deepcopy=False)))
        self._running: dict[int, Trial] = {}

    def ask(self) -> SearchTrial:
        """Return the next trial."""
        trial = self._study.ask(self._distributions)
        self._running[trial.number] = trial
        return SearchTrial(trial.number, None, self._words(trial.params), (), "running")

    def belongs_to(self, number: int, job: str) -> None:
        """Record which job of the sweep a trial is."""
        self._trial(number).set_user_attr(_JOB, job)

    def report(self, number: int, percent: int, value: float) -> bool:
        """Report a trial's objective after `percent` of its training, and return whether it should be stopped.

        Only for a single objective. A second value for the same percentage is ignored.
        """
        trial = self._trial(number)
        if percent not in self._study.get_trials(deepcopy=False)[number].intermediate_values:
            trial.report(value, percent)
        return bool(trial.should_prune())

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool = False) -> None:
        """Report the result of a trial. `values` is None if it failed."""
        from optuna.trial import TrialState

        state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE if values is not None else TrialState.FAIL
        self._study.tell(number, values if state is TrialState.COMPLETE else None, state=state, skip_if_finished=True)
        self._running.pop(number, None)

    def trials(self) -> list[SearchTrial]:
        """Return every proposed trial, in order."""
        return [self._described(trial) for trial in self._study.get_trials(deepcopy=False)]

    def best(self) -> list[SearchTrial]:
        """Return the best trial, or the Pareto front for several objectives; empty if no trial is complete."""
        complete = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
        return [self._described(trial) for trial in self._study.best_trials] if complete else []

    def _trial(self, number: int) -> Trial:
        """Return a running trial, also one that another process asked for."""
        if number not in self._running:
            from optuna.trial import Trial

            self._running[number] = Trial(self._study, self._study.get_trials(deepcopy=False)[number]._trial_id)
        return self._running[number]

    def _described(self, trial: FrozenTrial) -> SearchTrial:
        job = trial.user_attrs.get(_JOB)
        values = tuple(float(value) for value in trial.values or ())
        words = self._words(trial.params)
        return SearchTrial(trial.number, str(job) if job is not None else None, words, values, trial.state.name.lower())

    def _words(self, params: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(word_of(key, self._space[key], value) for key, value in params.items() if key in self._space)


def _sampler(name: str, seed: int) -> BaseSampler:
    from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler

    samplers: dict[str, Callable[..., BaseSampler]] = {
        "random": RandomSampler,
        "nsga2": NSGAIISampler,
        "tpe": TPESampler,
    }
    return samplers[name](seed=seed)


def _pruner(name: str) -> BasePruner:
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    if name == "median":
        return MedianPruner(n_warmup_steps=_FIRST_RUNG_PERCENT)
    if name == "halving":
        return SuccessiveHalvingPruner(min_resource=_FIRST_RUNG_PERCENT, reduction_factor=_LEFT_AFTER_HALVING)
    return NopPruner()


def _need_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError(
            "Optuna, which proposes the trials of a search, is not installed",
            where="sweep",
            hint="pip install 'rlhf-cli[search]'",
        ) from None
