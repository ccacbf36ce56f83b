"""Read a what-if question about a run: its alternatives, which keys would differ, and whether the log can answer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.analysis.comparison.logged_run import flat
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


@dataclass(frozen=True)
class KeyChange:
    """A key with its old and new value; None means no value."""

    key: str
    old: JsonValue
    new: JsonValue


@dataclass(frozen=True)
class WhatIfQuestion:
    """The old and the new experiment; `words` are those typed."""

    words: tuple[str, ...]
    old: Experiment
    new: Experiment
    changes: tuple[KeyChange, ...]


def alternatives(words: list[str]) -> list[list[str]]:
    """Return every combination of the words' values, typed as for `rlhf train -m`. Raise ConfigError beyond 50."""
    combinations = [list(chosen) for chosen in itertools.product(*map(_values, words))]
    if len(combinations) > 50:
        what, got = "these are too many alternatives for a table", f"{len(combinations)} combinations"
        advice = "give fewer values per word"
        raise ConfigError(what, where="command line", got=got, expected="at most 50", advice=advice)
    return combinations


def _values(word: str) -> list[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException:
        return [word]  # composing the configuration reports the error
    if not override.is_sweep_override():
        return [word]
    return [f"{word.partition('=')[0]}={value}" for value in override.sweep_string_iterator()]


def ask(run: RunFolder, words: list[str]) -> WhatIfQuestion:
    """Return the question that `words` ask about `run`.

    Raise RunError if the run has no rollouts, and ConfigError or Problems if the words do not change how completions
    are scored, or change anything else.
    """
    old = prepare_from(run, []).experiment
    row = old.trainer.row
    if not row.generates:
        what, expected = "this run has no rollouts to settle again", "a run of GRPO, RLOO or PPO"
        got = f"{row.name}, which learns from rows that are given"
        raise RunError(what, where=run.shown, got=got, expected=expected, hint="rlhf list trainer")
    # A setting of an unknown reward would otherwise be reported as lacking a function.
    made = {found[1] for word in words if (found := _MADE.match(word))}
    for word in words:
        named = re.match(r"^\+*rewards\.(\w+)\.", word)
        if named and named[1] not in {*made, *old.rewards}:
            close = nearest(named[1], old.rewards)
            what, expected = f"the run has no reward {named[1]!r}", "one of " + ", ".join(old.rewards)
            hint = word.replace(named[1], close, 1) if close else _SCORE
            raise ConfigError(what, where="command line", got=word, expected=expected, hint=hint)
    new = prepare_from(run, words).experiment
    changes = tuple(change for change in _changes(old, new) if whatif_effect(change.key) != "ignored")
    if not changes:
        weights = ((name, reward.weight) for name, reward in old.rewards.items())
        weighty = ((name, weight) for name, weight in weights if isinstance(weight, float) and weight)
        what, got = "nothing would have been different", " ".join(words) or "no word"
        expected = "another weight, gate, clip, offset, normalize, aggregate, advantages or truncation"
        hint = next((f"rewards.{name}.weight={2 * weight:g}" for name, weight in weighty), _SCORE)
        raise ConfigError(what, where="command line", got=got, expected=expected, hint=hint)
    raise_any(problem for change in changes if (problem := _problem(change, old)) is not None)
    return WhatIfQuestion(tuple(words), old, new, changes)


def _problem(change: KeyChange, old: Experiment) -> UserError | None:
    """Return why the log cannot answer for this change, or None if it can."""
    name = change.key.split(".")[1] if change.key.startswith("rewards.") else ""
    is_new = bool(name) and name not in old.rewards
    if whatif_effect(change.key) == "settles" and not is_new:
        return None
    if not is_new and whatif_effect(change.key) is None:
        what = "this decides what is sampled or learned, not what a stored completion is worth"
        expected = "rewards.NAME.weight, gate, offset, clip, normalize, on_error; aggregate, advantages, primary,"
        expected += " truncation; trainer.args.scale_rewards, normalize_advantages, reward_clip_range"
        got, advice = f"{change.old} -> {change.new}", "rlhf train asks it of a training"
        return ConfigError(what, where=change.key, got=got, expected=expected, advice=advice)
    if is_new:
        what, got = f"the run has scored no reward {name!r}", "rewards " + ", ".join(old.rewards)
        return ConfigError(what, where=change.key, got=got, expected="one that it has scored", hint=_SCORE)
    what, got = f"the run has not scored {name!r} like this", f"{change.old} -> {change.new}"
    return ConfigError(what, where=change.key, got=got, hint=_SCORE)


def _changes(old: Experiment, new: Experiment) -> Iterator[KeyChange]:
    # a gate is one value
    before, after = (dict(flat(side.model_dump(mode="json"), whole_with="by")) for side in (old, new))
    gone = {f"rewards.{name}" for name in set(old.rewards) - set(new.rewards)}
    come = {f"rewards.{name}" for name in set(new.rewards) - set(old.rewards)}
    yield from (KeyChange(key, "there", None) for key in sorted(gone))
    yield from (KeyChange(key, None, "there") for key in sorted(come))
    whole = tuple(f"{key}." for key in gone | come)
    for key in dict.fromkeys([*before, *after]):
        sides = before.get(key), after.get(key)
        is_said = all(side in (None, {}) for side in sides)  # of `args` that end or begin, each one is a key itself
        if not key.startswith(whole or ("\0",)) and sides[0] != sides[1] and not is_said:
            yield KeyChange(key, *sides)
