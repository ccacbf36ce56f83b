"""Checks the expectations of a run: an expectation that no run could meet is a mistake."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.stop_rules import evaluates, is_of_evaluation, logged_name, meant_metric, not_logged
from rlhf_cli.config.schema.expect_section import Expectation, expectations_of
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, Prose, UserError

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
