"""Validate a what-if question about a run: which keys would differ, and whether its log can answer. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlhf_cli.analysis.whatif.question import KeyChange, WhatIfQuestion
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, RunError, UserError, raise_any
from rlhf_cli.plan.prepare import prepare_from
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.resume_keys import whatif_effect
from rlhf_cli.text.json_values import JsonValue
from rlhf_cli.text.suggest import nearest

_MADE = re.compile(r"^\+*(?:reward@)?rewards\.(\w+)(?:=|\.(?:fn|model)=)")
"""Matches an override that creates a reward of that name."""
_SCORE = "rlhf score +exp=NAME --completions RUN"


def ask(run: RunFolder, words: list[str]) -> WhatIfQuestion:
    """Return the question that `words` ask about `run`.

    Raises RunError if the run has no rollouts, and ConfigError or Problems if the words change nothing, or anything but
    how completions are scored.
    """
    old = prepare_from(run, []).experiment
    row = old.trainer.row
    if not row.generates:
        raise RunError(
            "this run has no rollouts to settle again",
            where=run.shown,
            got=f"{row.name}, which learns from rows that are given",
            expected="a run of GRPO, RLOO or PPO",
            hint="rlhf list trainer",
        )
    _refuse_unknown(words, old)
    new = prepare_from(run, words).experiment
    changes = tuple(_changes(old, new))
    asked = [change for change in changes if whatif_effect(change.key) != "ignored"]
    if not asked:
        raise ConfigError(
            "nothing would have been different",
            where="command line",
            got=" ".join(words) or "no word",
            expected="another weight, gate, clip, offset, normalize, aggregate, advantages or truncation",
            hint=_example(old),
        )
    problems = [problem for change in asked if (problem := _problem(change, old)) is not None]
    raise_any(problems)
    return WhatIfQuestion(tuple(words), old, new, tuple(asked))


def _problem(change: KeyChange, old: Experiment) -> UserError | None:
    """Return why the log cannot answer for this change, or None if it can."""
    name = change.key.split(".")[1] if change.key.startswith("rewards.") else ""
    is_new = bool(name) and name not in old.rewards
    if whatif_effect(change.key) == "settles" and not is_new:
        return None
    if not is_new and whatif_effect(change.key) is None:
        return ConfigError(
            "this decides what is sampled or learned, not what a stored completion is worth",
            where=change.key,
            got=f"{change.old} -> {change.new}",
            expected="rewards.NAME.weight, gate, offset, clip, normalize, on_error; aggregate, advantages, primary,"
            " truncation; trainer.args.scale_rewards, normalize_advantages, reward_clip_range",
            advice="rlhf train asks it of a training",
        )
    close = nearest(name, old.rewards) if is_new else None
    return ConfigError(
        f"the run has scored no reward {name!r}" if is_new else f"the run has not scored {name!r} like this",
        where=change.key,
        got="rewards " + ", ".join(old.rewards) if is_new else f"{change.old} -> {change.new}",
        expected="one that it has scored" if is_new else None,
        hint=f"{change.key.replace(name, close, 1)}={change.new}" if close else _SCORE,
    )


def _refuse_unknown(words: list[str], old: Experiment) -> None:
    """Raise ConfigError for a setting of an unknown reward, which otherwise would be reported as lacking a function."""
    made = {found[1] for word in words if (found := _MADE.match(word))}
    for word in words:
        named = re.match(r"^\+*rewards\.(\w+)\.", word)
        if named and named[1] not in {*made, *old.rewards}:
            close = nearest(named[1], old.rewards)
            raise ConfigError(
                f"the run has no reward {named[1]!r}",
                where="command line",
                got=word,
                expected="one of " + ", ".join(old.rewards),
                hint=word.replace(named[1], close, 1) if close else _SCORE,
            )


def _example(experiment: Experiment) -> str:
    name = next(iter(experiment.rewards), "NAME")
    weight = experiment.rewards[name].weight if experiment.rewards else 1.0
    return f"rewards.{name}.weight={2 * weight if isinstance(weight, float) and weight else 1:g}"


def _changes(old: Experiment, new: Experiment) -> Iterator[KeyChange]:
    before, after = (_flat("", side.model_dump(mode="json")) for side in (old, new))
    gone = {f"rewards.{name}" for name in set(old.rewards) - set(new.rewards)}
    come = {f"rewards.{name}" for name in set(new.rewards) - set(old.rewards)}
    for key in sorted(gone):
        yield KeyChange(key, "there", None)
    for key in sorted(come):
        yield KeyChange(key, None, "there")
    whole = tuple(f"{key}." for key in gone | come)
    for key in dict.fromkeys([*before, *after]):
        if not key.startswith(whole or ("\0",)) and before.get(key) != after.get(key):
            yield KeyChange(key, before.get(key), after.get(key))


def _flat(prefix: str, value: JsonValue) -> dict[str, JsonValue]:
    """Return dotted key -> value; a gate or a list of gates counts as one value."""
    if not isinstance(value, dict) or not value or "by" in value:
        return {prefix: value}
    found: dict[str, JsonValue] = {}
    for key, item in value.items():
        found |= _flat(f"{prefix}.{key}" if prefix else key, item)
    return found
