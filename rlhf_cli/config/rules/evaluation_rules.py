"""Check evaluation while a run trains, and the expectations of a run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.metric_rules import evaluates, is_of_evaluation, logged_name, meant_metric, not_logged
from rlhf_cli.config.schema.expect_section import Expectation, expectations_of
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import RESERVED_REWARD_NAMES
from rlhf_cli.config.trl_args import whole_number, whole_number_or_none
from rlhf_cli.errors import ConfigError, Prose, UserError
from rlhf_cli.numerics.intervals import attempt_counts
from rlhf_cli.rewards.stack.scored_rows import why_no_total
from rlhf_cli.text.suggest import nearest

_PREFIX = "eval_"
_BEST = "metric_for_best_model"
_OF_A_REWARD = re.compile(r"^(?P<before>rewards/|(?:greedy|sampled)/rewards/|(?:pass|maj)@\d+/)(?P<name>[^/]+)")
_ATTEMPTS = re.compile(r"^(?P<kind>pass|maj)@(?P<count>\d+)/")
_OF_A_PART = re.compile(r"^(greedy|sampled)/(?!rewards/)(?P<rest>.+)$")
_TRLS_TOTAL = ("reward", "reward_std")
_PARTS = ("total", "total/low", "total/high", "truncated", "tokens")


def evaluation_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for an evaluation without rows or with two sources of rows, and for a best checkpoint by a metric
    that is not logged.
    """
    args = experiment.trainer.args
    yield from _two_origins(experiment, origins)
    strategy = args.get("eval_strategy", "no")
    on_start = args.get("eval_on_start") is True
    if (on_start or strategy not in ("no", False)) and experiment.data.eval is None:
        key = "eval_on_start" if on_start else "eval_strategy"
        yield ConfigError(
            "there are no rows to evaluate on",
            where=origins.where(f"trainer.args.{key}"),
            got=f"{key}={str(args[key]).lower()}, and no data.eval",
            expected="held-out rows",
            hint="data.eval.fraction=0.1, or data.eval.path=FILE",
        )
    metric = args.get(_BEST)
    if not isinstance(metric, str) or not experiment.trainer.row.generates:
        return
    name, prefix = metric.removeprefix(_PREFIX), _PREFIX if metric.startswith(_PREFIX) else ""
    if (relative := _relative(name, experiment)) is not None:
        yield ConfigError(
            f"{metric} cannot tell a better checkpoint from a worse one",
            where=origins.where(f"trainer.args.{_BEST}"),
            got=f"{metric}, but {relative}",
            expected="what an answer has of its own: greedy/rewards/NAME, its mean raw score, of "
            + ", ".join(experiment.rewards),
            hint=f"trainer.args.{_BEST}={prefix}greedy/rewards/{_foremost(experiment)}",
        )
        return
    better = _better(name, experiment)
    if better is not None:
        expected, nearest_name = better
        yield ConfigError(
            f"no evaluation logs {metric}",
            where=origins.where(f"trainer.args.{_BEST}"),
            got=metric,
            expected=expected,
            hint=f"trainer.args.{_BEST}={prefix}{nearest_name}" if nearest_name else None,
        )


def _two_origins(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    held_out = experiment.data.eval
    if held_out is None or held_out.fraction is None:
        return
    others = [name for name in ("path", "world") if getattr(held_out, name) is not None]
    if others:
        other = f"data.eval.{others[0]}"
        yield ConfigError(
            "held-out rows are a fraction of the training rows, or have a source of their own",
            where=origins.where("data.eval.fraction"),
            got=f"data.eval.fraction={held_out.fraction:g}, and {origins.where(other)}={getattr(held_out, others[0])}",
            expected="one of them",
            hint=f"'~{other}', or '~data.eval.fraction'",
        )


def _better(name: str, experiment: Experiment) -> tuple[str, str | None] | None:
    """Return what a metric's name should be and the nearest such name; None if the name is acceptable."""
    if (part := _OF_A_PART.match(name)) is not None and part["rest"] not in _PARTS:
        close = nearest(part["rest"], _PARTS) or "total"
        return f"{part[1]}/ and one of {', '.join(_PARTS)}, rewards/NAME", f"{part[1]}/{close}"
    rewards = list(experiment.rewards)
    match = _OF_A_REWARD.match(name)
    if match is not None and match["name"] not in {*rewards, *RESERVED_REWARD_NAMES, "correlation"}:
        close_reward = nearest(match["name"], rewards)
        corrected = name.replace(match[0], f"{match['before']}{close_reward}", 1) if close_reward else None
        return f"one of the rewards: {', '.join(rewards)}", corrected
    if (attempts := _ATTEMPTS.match(name)) is not None:
        counts = _counts(experiment)
        if int(attempts["count"]) not in (counts if attempts["kind"] == "pass" else counts[-1:]):
            best = f"{attempts['kind']}@{counts[-1]}/"
            known = [f"pass@{count}" for count in counts] + [f"maj@{counts[-1]}"]
            expected = f"one of {', '.join(known)}: an evaluation samples num_generations_eval={counts[-1]} answers"
            return expected, name.replace(attempts[0], best, 1)
    return None


def _relative(name: str, experiment: Experiment) -> str | None:
    """Return why evaluations of a total cannot be compared; None if they can, or for other metrics.

    A running deviation exists in an evaluation, but it changes during training, and so does the unit of the total.
    """
    normalize = {reward: section.normalize for reward, section in experiment.rewards.items()}
    if name in _TRLS_TOTAL:  # TRL's total has no z-scores: it is the mean of the raw scores
        return why_no_total(normalize, "sum")
    part = _OF_A_PART.match(name)
    return why_no_total(normalize, experiment.aggregate) if part is not None and "total" in part["rest"] else None


def _foremost(experiment: Experiment) -> str:
    """Return the reward that gates the others, else the first."""
    return experiment.primary.by if experiment.primary is not None else next(iter(experiment.rewards), "NAME")


def _counts(experiment: Experiment) -> list[int]:
    trainer, args = trl_args.trainer(experiment.trainer.trl), experiment.trainer.args
    most = whole_number_or_none(trainer, args, "num_generations_eval") or whole_number(trainer, args, "num_generations")
    return attempt_counts(most)


_EVALUATE = ", or data.eval.fraction=0.1 trainer.args.eval_strategy=steps"
_NOTHING = "expect=null"


def expect_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every expectation that this experiment cannot meet, or that duplicates another."""
    expected = expectations_of(experiment.expect)
    for name, one in expected.items():
        where, key = _place(experiment, origins, name)
        if (told := not_logged(one.metric, experiment)) is not None:
            what, valid = told
            close = meant_metric(one.metric, experiment, valid)
            not_yet = is_of_evaluation(one.metric) and not evaluates(experiment)
            yield ConfigError(
                f"{one.metric!r} is expected to come to something: {what}",
                where=where,
                got=f"metric: {one.metric}",
                expected="a metric that is logged (docs/metrics.md), such as "
                + ", ".join(_examples(experiment, valid)),
                hint=(f"{key}.metric={close}" if key else f"metric: {close}") + (_EVALUATE if not_yet else "")
                if close
                else _NOTHING,
            )
        last_step = experiment.trainer.args.get("max_steps")
        if isinstance(one.at, int) and isinstance(last_step, int) and 0 < last_step < one.at:
            yield ConfigError(
                f"something is expected at step {one.at}, and the run ends at step {last_step}",
                where=where,
                got=f"at: {one.at}",
                expected=f"a step up to {last_step}, or end",
                hint=f"{key}.at=end" if key else f"at: end, or {_NOTHING}",
            )
    for (name, one), (other_name, other) in itertools.combinations(expected.items(), 2):
        if (clash := _clash(one, other, list(experiment.rewards))) is not None:
            where = _place(experiment, origins, other_name)[0]
            said = f"{_named(name)} ({one.bound}) and {_named(other_name)} ({other.bound})"
            yield ConfigError(
                clash, where=where, got=said, expected="one expectation of it", hint=Prose("leave one of them out")
            )


def _clash(one: Expectation, other: Expectation, rewards: list[str]) -> str | None:
    """Return what is wrong with two expectations of the same number: one is redundant, or they exclude each other.

    `at_least` and `at_most` of one number, with the first below the second, are both useful.
    """
    if logged_name(one.metric, rewards) != logged_name(other.metric, rewards) or one.at != other.at:
        return None
    about = f"{one.metric} at {one.place}"
    if one.low > other.high or other.low > one.high:
        return f"{about} is expected to be two things that exclude each other"
    if {one.at_least is None, other.at_least is None} == {True, False} and not (one.between or other.between):
        return None
    return f"{about} is expected twice"


def _place(experiment: Experiment, origins: Origins, name: str) -> tuple[str, str | None]:
    """Return where an expectation was written, and its key for typing; None for a list entry, which cannot be typed
    alone.
    """
    if isinstance(experiment.expect, list):
        return f"{origins.where('expect')}, {_named(name)}", None
    key = ".".join(part for part in ("expect", name) if part)
    return origins.where(key), key


def _named(name: str) -> str:
    return f"entry {int(name) + 1}" if name.isdigit() else name or "it"


def _examples(experiment: Experiment, valid: list[str]) -> list[str]:
    usual = ("reward", "loss") if not valid else tuple(name for name in ("reward", "loss", "kl") if name in valid)
    return [*list(experiment.rewards)[:3], *usual] if experiment.rewards else ["loss"]
