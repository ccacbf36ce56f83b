"""Check the metrics that rules to stop and searches name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import RESERVED_REWARD_NAMES
from rlhf_cli.config.schema.run_sections import StopRule, rules_of
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.tables import metrics
from rlhf_cli.text.suggest import nearest, slips

STEP = "step"
"""What a rule may use beside metrics: the number of the step."""
_EVAL = "eval_"
_EVAL_BY_TRACKERS = "eval/"
"""The tracker's spelling of what transformers logs as `eval_...`."""
_TOTAL = "total"
_SHORT = 4
"""Words of up to this many letters resemble too many others."""

_OF_POLICY_EVALUATIONS = ("greedy/", "sampled/", "pass@", "maj@")


def stop_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every rule whose metric this experiment cannot log, as far as that can be known."""
    for name, rule in rules_of(experiment.stop).items():
        key = ".".join(part for part in ("stop", name, "when") if part)
        told = None if rule.metric == STEP else not_logged(rule.metric, experiment)
        if told is not None:
            what, valid = told
            close = meant_metric(rule.metric, experiment, valid)
            # A part of a list entry cannot be typed alone.
            instead = rule.when.replace(rule.metric, close, 1) if close else None
            is_typed = not isinstance(experiment.stop, list)
            hint = None if instead is None else f"'{key}={instead}'" if is_typed else f"when: {instead}"
            yield ConfigError(
                f"a rule to stop by waits for {rule.metric!r}: {what}",
                where=origins.where(key if is_typed else "stop"),
                got=rule.when,
                expected="a metric that is logged (docs/metrics.md), such as "
                + ", ".join(_examples(experiment, valid)),
                hint=hint,
            )


def metric_of(rule: StopRule, rewards: Iterable[str]) -> str:
    """Return the name in metrics.jsonl that a rule refers to."""
    return logged_name(rule.metric, rewards)


def logged_name(name: str, rewards: Iterable[str]) -> str:
    """Return the name in metrics.jsonl for a short name: a reward's raw mean, or TRL's `reward` for `total`."""
    if name in rewards and name not in known_metrics_of_every_run():
        return f"rewards/{name}/mean"
    return "reward" if name == _TOTAL else name


def known_metrics_of_every_run() -> tuple[str, ...]:
    """Return the names that mean a metric even if a reward has the same name."""
    return (*metrics.EVERY_TRAINER, *metrics.OF_REWARDS, *metrics.WITH_BETA)


def not_logged(metric: str, experiment: Experiment) -> tuple[str, list[str]] | None:
    """Return what is wrong with a name and the names it may be meant for; None if it may be logged."""
    known = _known(experiment)
    is_eval, plain = is_of_evaluation(metric), _plain(metric)
    if is_eval and not evaluates(experiment):
        return "nothing is evaluated while it trains", []
    if metric.startswith(_EVAL_BY_TRACKERS):
        return "there is no such metric", [*experiment.rewards, *known]
    if is_eval and plain.startswith(_OF_POLICY_EVALUATIONS):
        return None
    if plain in known or (metric in (*experiment.rewards, _TOTAL) and experiment.rewards):
        return None
    names = [*experiment.rewards, *known]
    first, _, rest = plain.partition("/")
    if first == "rewards" and experiment.rewards:
        if rest.startswith("correlation/"):
            pair = rest.split("/")[1:]
            is_there = len(pair) == 2 and set(pair) <= set(experiment.rewards)
            return None if is_there else (f"the rewards are {', '.join(experiment.rewards)}", names)
        return f"no reward logs that; the rewards are {', '.join(experiment.rewards)}", names
    if plain in metrics.OF_A_CRITIC or plain in (*metrics.OF_REWARDS, *metrics.WITH_BETA):
        without = " without trainer.args.beta" if plain in metrics.WITH_BETA and experiment.rewards else ""
        return f"trainer={experiment.trainer.name}{without} does not log it", names
    if first in metrics.FAMILIES and "/" in plain:
        return "there is no such metric", names
    close = nearest(plain, names)
    if (close is not None and _is_slip(plain, close)) or ("/" not in plain and _by_word(plain, names) is not None):
        return "there is no such metric", names
    return None


def meant_metric(typed: str, experiment: Experiment, valid: list[str]) -> str | None:
    """Return the metric that was most likely meant, or None if no name is near.

    For an evaluation metric, return its logged name, `eval_rewards/NAME/mean` for a reward. If the run has no
    evaluations, return the training metric.
    """
    if not is_of_evaluation(typed):
        return nearest_metric(typed, valid)
    plain = _plain(typed)
    names = [*experiment.rewards, *((_TOTAL,) if experiment.rewards else ()), *_known(experiment)]
    close = plain if plain in names else nearest_metric(plain, names)
    if close is None or not evaluates(experiment):
        return close
    return _EVAL + logged_name(close, experiment.rewards)


def is_of_evaluation(metric: str) -> bool:
    """Return whether a name is that of an evaluation metric, in our spelling or the trackers'."""
    return metric.startswith((_EVAL, _EVAL_BY_TRACKERS))


def _plain(metric: str) -> str:
    return metric.removeprefix(_EVAL).removeprefix(_EVAL_BY_TRACKERS)


def nearest_metric(typed: str, valid: list[str]) -> str | None:
    """Return the metric that was most likely meant, compared by its whole name or by its words."""
    return nearest(typed, valid) or _by_word(typed.removeprefix(_EVAL), valid)


def _by_word(typed: str, names: list[str]) -> str | None:
    """Return the first name that has a word similar to the typed one: `lenght` for `completions/mean_length`."""
    words = {word: name for name in reversed(names) for word in re.split(r"[/_]", name) if len(word) > _SHORT}
    close = nearest(typed, words) if typed not in words else None
    return words[close] if close is not None and slips(typed, close) <= 2 else None


def _is_slip(typed: str, close: str) -> bool:
    """Return whether a name is so similar to another that it is a typo: rewards may log names of their own."""
    return "/" not in typed and abs(len(typed) - len(close)) <= 2 and typed[:1] == close[:1]


def _known(experiment: Experiment) -> list[str]:
    known = list(metrics.EVERY_TRAINER)
    if not experiment.trainer.row.generates:
        return known
    known += metrics.OF_REWARDS
    has_critic = experiment.trainer.baseline == "critic"
    if has_critic:
        known += metrics.OF_A_CRITIC
    if has_critic or experiment.trainer.args.get("beta"):
        known += metrics.WITH_BETA
    parts: dict[str, tuple[str, ...]] = dict.fromkeys(experiment.rewards, metrics.OF_A_REWARD)
    parts["truncation"] = (*metrics.OF_TRUNCATION, *metrics.OF_TRUNCATION_TOO)
    parts |= {"kl": metrics.OF_KL, "value": metrics.OF_VALUE} if has_critic else {}
    return [*known, *(f"rewards/{name}/{what}" for name, whats in parts.items() for what in whats)]


def evaluates(experiment: Experiment) -> bool:
    """Return whether the experiment evaluates during training."""
    args = experiment.trainer.args
    return args.get("eval_strategy", "no") not in ("no", False) or bool(args.get("eval_on_start"))


def _examples(experiment: Experiment, valid: list[str]) -> list[str]:
    return (
        [*list(experiment.rewards)[:2], *(("reward",) if experiment.rewards else ("loss",))]
        if not valid
        else [
            *list(experiment.rewards)[:3],
            *[name for name in ("reward", "entropy", "kl/k1_policy_ref", "kl", "loss") if name in valid][:3],
        ]
    )


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
