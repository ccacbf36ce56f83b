"""Check the metrics that stop rules, expectations, searches and the choice of a best checkpoint name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.logged_metrics import (
    EVAL,
    EVALUATED,
    STEP,
    evaluates,
    examples_of_metrics,
    logged_name,
    unlogged,
)
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.run_sections import entries_of
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.rewards.stack.aggregating import why_no_total

_BEST = "trainer.args.metric_for_best_model"


def stop_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every stop rule whose metric this experiment does not log."""
    for name, rule in entries_of(experiment.stop).items():
        problem = None if rule.metric == STEP else unlogged(rule.metric, experiment)
        if problem is None:
            continue
        why, close = problem
        key = ".".join(part for part in ("stop", name, "when") if part)
        instead = rule.when.replace(rule.metric, close, 1) if close else None
        # A part of a list entry cannot be typed alone.
        is_typed = not isinstance(experiment.stop, list)
        yield ConfigError(
            f"a stop rule waits for {rule.metric!r}: {why}",
            where=origins.where(key if is_typed else "stop"),
            got=rule.when,
            expected=examples_of_metrics(experiment),
            hint=None if instead is None else f"'{key}={instead}'" if is_typed else f"when: {instead}",
        )


_EVALUATE = ", or data.eval.fraction=0.1 trainer.args.eval_strategy=steps"
_NOTHING = "expect=null"


def expect_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every expectation that this experiment cannot meet."""
    for name, one in entries_of(experiment.expect).items():
        key = ".".join(part for part in ("expect", name) if part)
        where, prefix = origins.where(key), f"{key}."
        if isinstance(experiment.expect, list):  # a part of a list entry cannot be typed alone
            where, prefix = f"{origins.where('expect')}, entry {int(name) + 1}", ""
        equals = "=" if prefix else ": "
        if (problem := unlogged(one.metric, experiment)) is not None:
            why, close = problem
            not_yet = one.metric.startswith(EVALUATED) and not evaluates(experiment)
            yield ConfigError(
                f"a result of {one.metric!r} is expected: {why}",
                where=where,
                got=f"metric: {one.metric}",
                expected=examples_of_metrics(experiment),
                hint=f"{prefix}metric{equals}{close}{_EVALUATE if not_yet else ''}" if close else _NOTHING,
            )
        last_step = experiment.trainer.args.get("max_steps")
        if isinstance(one.at, int) and isinstance(last_step, int) and 0 < last_step < one.at:
            yield ConfigError(
                f"a result is expected at step {one.at}, and the run ends at step {last_step}",
                where=where,
                got=f"at: {one.at}",
                expected=f"a step up to {last_step}, or end",
                hint=f"{prefix}at=end" if prefix else f"at: end, or {_NOTHING}",
            )


def evaluation_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for an evaluation without rows, and for a best checkpoint by a metric that is not logged or whose
    values cannot be compared.
    """
    args, held_out = experiment.trainer.args, experiment.data.eval
    if evaluates(experiment) and held_out is None:
        key = "eval_on_start" if args.get("eval_on_start") is True else "eval_strategy"
        yield ConfigError(
            "there are no rows to evaluate on",
            where=origins.where(f"trainer.args.{key}"),
            got=f"{key}={str(args[key]).lower()}, and no data.eval",
            expected="held-out rows",
            hint="data.eval.fraction=0.1, or data.eval.path=FILE",
        )
    metric = args.get("metric_for_best_model")
    if not isinstance(metric, str) or not experiment.trainer.row.generates:
        return
    name, prefix = metric.removeprefix(EVAL), EVAL if metric.startswith(EVAL) else ""
    if (relative := _relative(name, experiment)) is not None:
        foremost = experiment.primary.by if experiment.primary is not None else next(iter(experiment.rewards), "NAME")
        yield ConfigError(
            f"{metric} cannot tell a better checkpoint from a worse one",
            where=origins.where(_BEST),
            got=f"{metric}, but {relative}",
            expected=f"greedy/rewards/NAME, the mean raw score of {' or '.join(experiment.rewards)}",
            hint=f"{_BEST}={prefix}greedy/rewards/{foremost}",
        )
    elif (problem := unlogged(name, experiment)) is not None:
        yield ConfigError(
            f"no evaluation logs {metric}",
            where=origins.where(_BEST),
            got=metric,
            expected=problem[0],
            hint=f"{_BEST}={prefix}{problem[1]}" if problem[1] else None,
        )


def _relative(name: str, experiment: Experiment) -> str | None:
    """Return why evaluations of a total cannot be compared; None if they can, or for other metrics.

    A running deviation exists in an evaluation, but it changes during training, and so does the unit of the total.
    """
    if name in ("reward", "reward_std"):  # TRL's total has no z-scores: it is the mean of the raw scores
        return why_no_total(experiment.rewards, "sum")
    is_total = re.match(r"(greedy|sampled)/(?!rewards/).*total", name) is not None
    return why_no_total(experiment.rewards, experiment.aggregate) if is_total else None


_TOTALS = ("reward", "eval_reward", "eval_greedy/total", "eval_sampled/total")
_MOVES_THE_TOTAL = re.compile(
    r"^(rewards\.[^.]+\.(weight|gate|offset|clip|normalize|on_error)|primary|aggregate|truncation)\b"
)


def sweep_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for an objective that is not logged, for one that the search itself changes, and for pruning by
    several objectives.
    """
    sweep = experiment.sweep
    assert sweep is not None
    where = origins.where("sweep.objective")
    for objective in sweep.objective:
        typed = objective.removeprefix("-").strip()
        if (problem := unlogged(typed, experiment)) is not None:
            why, close = problem
            yield ConfigError(
                f"no run of this experiment logs {typed}: {why}",
                where=where,
                got=objective,
                expected=examples_of_metrics(experiment),
                hint=f"sweep.objective={objective.replace(typed, close, 1)}" if close else None,
            )
        is_total = logged_name(typed, experiment.rewards) in _TOTALS
        if is_total and (moving := [key for key in sweep.space if moves_the_total(key)]):
            yield moving_total(objective, moving, list(experiment.rewards), where=where)
    if len(sweep.objective) > 1 and sweep.prune != "off":
        yield ConfigError(
            "trials can be stopped early by one objective alone",
            where=origins.where("sweep.prune"),
            got=f"sweep.prune={sweep.prune}, and {len(sweep.objective)} objectives",
            expected="one objective, or trials that run to their end",
            hint="sweep.prune=off",
        )


def moving_total(objective: str, keys: list[str], rewards: list[str], *, where: str) -> ConfigError:
    """Return an error for a total as the objective of a search over what the total is computed from."""
    raw = ",".join(f"rewards/{name}/mean" for name in rewards or ["NAME"])
    return ConfigError(
        f"the search itself changes {objective}: the greatest weight would win with the very same answers",
        where=where,
        got=f"a search over {', '.join(keys)}",
        expected="raw scores, which no weight changes",
        hint=f"sweep.objective='[{raw}]'",
    )


def moves_the_total(key: str) -> bool:
    """Return whether a key affects how rewards become a total."""
    return _MOVES_THE_TOTAL.match(key) is not None
