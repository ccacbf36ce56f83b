"""Reject a `--watch` metric that no run of a sweep will ever log, before the first one runs."""

from __future__ import annotations

from collections.abc import Iterable

from rlhf_cli.config.rules.stop_rules import nearest_metric, not_logged
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError


def refuse_unlogged_watch(metric: str | None, experiments: Iterable[Experiment]) -> None:
    """Raise ConfigError if no experiment can log the watched metric. With `metric` None, do nothing."""
    if metric is None:
        return
    told = [not_logged(metric, experiment) for experiment in experiments]
    wrong = [problem for problem in told if problem is not None]
    if not wrong or len(wrong) < len(told):
        return
    what, valid = wrong[0]
    close = nearest_metric(metric, valid)
    raise ConfigError(
        f"no run of this sweep logs {metric}: {what}",
        where="command line",
        got=f"--watch {metric}",
        expected="a metric that is logged (docs/metrics.md)",
        hint=f"--watch {close}" if close is not None else None,
    )
