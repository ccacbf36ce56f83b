"""Checks the objectives of a search: they must be logged, and must not depend on what is searched."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.stop_rules import logged_name, nearest_metric, not_logged
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import RESERVED_REWARD_NAMES
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.suggest import nearest

_OF_A_REWARD = re.compile(r"^-?(?:eval_)?(?:(?:greedy|sampled)/)?rewards/(?P<name>[^/]+)")
_TOTALS = ("reward", "eval_reward", "eval_greedy/total", "eval_sampled/total")
_MOVES_THE_TOTAL = re.compile(
    r"^(rewards\.[^.]+\.(weight|gate|offset|clip|normalize|on_error)|primary|aggregate|truncation)\b"
)


def sweep_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for an objective that is not a reward, for one that the search itself changes, and for pruning by
    several objectives.
    """
    sweep = experiment.sweep
    if sweep is None:
        return
    where = origins.where("sweep.objective")
    for objective in sweep.objective:
        typed = objective.removeprefix("-").strip()
        metric = logged_name(typed, experiment.rewards)
        match = _OF_A_REWARD.match(objective)
        if match is not None and match["name"] not in {*experiment.rewards, *RESERVED_REWARD_NAMES, "correlation"}:
            close = nearest(match["name"], experiment.rewards)
            yield ConfigError(
                f"no run of this experiment logs {metric}",
                where=where,
                got=objective,
                expected=f"one of the rewards: {', '.join(experiment.rewards) or 'there are none'}",
                hint=f"sweep.objective={objective.replace(match['name'], close, 1)}" if close else None,
            )
        elif (told := not_logged(typed, experiment)) is not None:
            what, valid = told
            close = nearest_metric(typed, valid)
            yield ConfigError(
                f"no run of this experiment logs {typed}: {what}",
                where=where,
                got=objective,
                expected="a metric that is logged (docs/metrics.md), or a reward's name for its raw mean",
                hint=f"sweep.objective={objective.replace(typed, close, 1)}" if close else None,
            )
        if metric in _TOTALS and (moving := [key for key in sweep.space if _MOVES_THE_TOTAL.match(key)]):
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
        f"{objective} holds what is searched: the greatest weight would win with the very same answers",
        where=where,
        got=f"a search over {', '.join(keys)}",
        expected="raw scores, which no weight changes",
        hint=f"sweep.objective='[{raw}]'",
    )


def moves_the_total(key: str) -> bool:
    """Return whether a key affects how rewards become a total."""
    return _MOVES_THE_TOTAL.match(key) is not None
