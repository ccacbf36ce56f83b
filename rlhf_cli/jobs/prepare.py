"""Turn typed words, or a run and typed words, into a checked experiment.

In this order: compose, validate, expand `primary` into gates, spell out the truncation policy's mode, replace
`run:NAME` by model folders. Every verb prepares its experiment here, so all verbs accept and refuse the same input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_cli.config.compose import Composed, compose
from rlhf_cli.config.compose_frozen import compose_frozen
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.primary import expand_primary
from rlhf_cli.config.referee import judge
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.truncation_mode import with_truncation_mode
from rlhf_cli.json_values import JsonTree

if TYPE_CHECKING:
    from rlhf_cli.runs.run_folder import RunFolder

Adjust = Callable[[JsonTree, Origins], None]
"""Changes a composed tree in place before it is validated, as an option such as `--data` does."""


@dataclass(frozen=True)
class Prepared:
    """A checked experiment together with the origin of each of its values.

    `as_written` is the same experiment with `run:NAME` and `auto` unresolved.
    """

    experiment: Experiment
    composed: Composed
    as_written: Experiment


def prepare(words: list[str], *, adjust: Adjust | None = None, keep_run_names: bool = False) -> Prepared:
    """Return the experiment that the overrides in `words` describe, checked.

    `adjust` changes the composed tree before it is validated. `keep_run_names` leaves `run:NAME` unresolved, for
    display. Raises ConfigError, Problems with all mistakes at once, and RunError if no run of a name has finished.
    """
    return _checked(compose(words), adjust, keep_run_names=keep_run_names)


def prepare_from(run: RunFolder, words: list[str], *, adjust: Adjust | None = None) -> Prepared:
    """Return the experiment frozen in a run, with the overrides in `words` on top. Raises as `prepare` does."""
    return _checked(compose_frozen(run.read_config(), run.config, words), adjust, keep_run_names=False)


def _checked(composed: Composed, adjust: Adjust | None, *, keep_run_names: bool) -> Prepared:
    if adjust is not None:
        adjust(composed.tree, composed.origins)
    experiment = with_truncation_mode(expand_primary(judge(composed)))
    if keep_run_names:
        return Prepared(experiment, composed, experiment)
    from rlhf_cli.jobs.run_names import resolve_runs  # imported late, so that a mistake is reported sooner

    return Prepared(resolve_runs(experiment), composed, experiment)
