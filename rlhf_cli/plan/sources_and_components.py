"""Translate the sections `data`, `reward_model` and `rewards` into what the data room and the reward stack take."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

from rlhf_cli.config.schema import model_and_data, reward_sections
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.preferences import PairRules
from rlhf_cli.data.preparing import template_columns
from rlhf_cli.data.rows import DIALOGUES
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import UserError
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.component import Component, ScoreGate
from rlhf_cli.rewards.stack.reward_functions import resolve
from rlhf_cli.tables.trl_trainers import data_key

_BEFORE = r"(?<![^\s'\"(=,])"
A_CALL_S, A_ROW_S = 900.0, 60.0  # default time limits in seconds: of a call on a batch, of an isolated one on a row
KEEP_TIME = ("rlhf_cli.rewards.server:", "rlhf_cli.rewards.judge", "rlhf_cli.rewards.code:")
"""Ready-made functions with their own `timeout_s` per row; the time of a batch depends on its size."""


def training_sources(experiment: Experiment) -> list[DataSource]:
    """Return the sources of the training rows: a single source, or one per member of the mix."""
    data = experiment.data
    if data.mix is not None:
        return [source_of(experiment, member, f"data.mix.{name}") for name, member in data.mix.items()]
    return [source_of(experiment, data, "data")]


def eval_sources(experiment: Experiment) -> list[DataSource]:
    """Return the source of each evaluation set that is not a fraction of the training rows."""
    sets = experiment.data.evals.items()
    return [source_of(experiment, held_out, data_key(name)) for name, held_out in sets if held_out.fraction is None]


def only_set(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment with one of its evaluation sets; '' changes nothing."""
    data = experiment.data
    kept = data.model_copy(update={"eval": {name: data.evals[name]}}) if name else data
    return experiment.model_copy(update={"data": kept})


def source_of(experiment: Experiment, section: model_and_data.Source, name: str) -> DataSource:
    """Return a section as a source whose rows are prepared for this experiment; `name` is its key."""
    given = {key: getattr(section, key) for key in model_and_data.Source.model_fields}
    given["keep"] = None if section.keep is None else (section.keep.column, *section.keep.between)
    row = experiment.trainer.row
    used = {"prompt", experiment.trainer.text_field, *row.along, *(name for names in row.learns_from for name in names)}
    used |= {str(section.sort).removeprefix("-"), section.keep.column if section.keep is not None else "prompt"}

    def is_read(column: str) -> bool:
        return column in used or column in columns_read(experiment)

    return DataSource(**given, name=name, transcripts=experiment.data.transcripts, trainer=row, is_read=is_read)


def columns_read(experiment: Experiment) -> set[str | None]:
    """Return the columns that prompt, rewards and rules read by their names; None if a function takes all of them.
    Another check reports rewards that cannot be imported, and templates that are malformed.
    """
    data, read = experiment.data, set[str | None]()
    if experiment.reward_model is not None:
        read |= {*preference_rules(experiment).columns}
    with suppress(UserError):
        read |= template_columns(data.model_dump()["prompt"] or "")
    for reward in experiment.rewards.values():
        with suppress(UserError):
            parameters = signature(resolve(reward.fn, reward.args, where="")).parameters if reward.fn else {}
            read |= {None if item.kind is item.VAR_KEYWORD else item.name for item in parameters.values()}
    return read | set(DIALOGUES if data.transcripts else ())


def describe_eval_rows(data: model_and_data.Data) -> str:
    """Describe in words which rows an evaluation runs on: with its name, if the set has one."""
    sets = {
        name: f"the {100 * rows.fraction:g}% held out" if rows.fraction is not None else str(rows.world or rows.path)
        for name, rows in data.evals.items()
    }
    return ", ".join(f"{name}: {text}" if name else text for name, text in sets.items()) or "training rows"


def preference_rules(experiment: Experiment) -> PairRules:
    """Return the rules for the pairs of an experiment; the defaults if it has no section `reward_model`."""
    section = experiment.reward_model or reward_sections.RewardModel()
    values = section.margin.model_dump() if section.margin is not None else {}
    drops_bad_margins = values.pop("on_bad", None) == "drop"
    return PairRules(**values, drops_bad_margins=drops_bad_margins, drops_bad_pairs=section.on_bad_pair == "drop")


@dataclass
class StateOfTrainer:
    """The state that a reward is given outside of training: transformers', which is imported for more than the step."""

    global_step: int
    max_steps: int

    def __getattr__(self, name: str) -> object:
        from transformers import TrainerState

        return getattr(TrainerState(), name)


def relative_to_cwd(text: str) -> str:
    """Return a text in which paths below the working folder are relative to it; other paths are unchanged."""
    here = str(Path.cwd())
    return text if here == os.sep else re.sub(_BEFORE + re.escape(here + os.sep), "", text)


def component(name: str, reward: reward_sections.Reward, score: Callable[..., object]) -> Component:
    """Return a component of the stack: `score` with the experiment's rules for it."""
    weight, as_given = reward.weight, ("offset", "clip", "normalize", "on_error", "eager", "spread", "per")
    assert not isinstance(reward.offset, str), "resolve_runs made a number of it"
    return Component(
        name=name,
        score=score,
        weight=weight if isinstance(weight, float) else Schedule(**weight.model_dump()),
        gates=tuple(map(_gate, reward.gates)),
        # An isolated function has its own limit per row, and is killed when it exceeds it.
        timeout_s=None if reward.isolate else timeout_of(reward),
        eval_only=reward.when == "eval",
        **{key: getattr(reward, key) for key in as_given},
    )


def timeout_of(reward: reward_sections.Reward) -> float | None:
    """Return how long a call may take in seconds (per row if it is isolated); None for no limit."""
    if reward.timeout_s != "auto":
        return reward.timeout_s if isinstance(reward.timeout_s, float) else None
    if reward.isolate:
        return A_ROW_S
    return None if reward.model is not None or str(reward.fn).startswith(KEEP_TIME) else A_CALL_S


def describe_scorer(reward: reward_sections.Reward, *, is_chat: bool) -> str:
    """Describe the scorer for the start panel: a function or method, or a model and whether its texts end with eos.
    `is_chat`: it scores conversations. Neither these nor texts with eos tell an answer that was cut off.
    """
    if reward.environment is not None:
        return f"{reward.environment} of the environment"
    if reward.model is None:
        relative = relative_to_cwd(str(reward.fn))
        return relative if relative == reward.fn else f".{os.sep}{relative}"  # as ./rewards.py:short
    from rlhf_cli.runs.reward_records import trained_with_eos  # only a reward model ends texts

    text, was = relative_to_cwd(f"reward model {reward.model}"), trained_with_eos(reward.model)
    if is_chat:
        return f"{text}, its chat template ends every answer, cut off or not"
    ends = (was is True) if reward.with_eos == "auto" else reward.with_eos
    unlike = ", unlike in its training" if was not in (None, ends) else ""
    ending = "with eos, cut off or not" if ends else "without eos"
    return text + (f", texts end {ending}{unlike}" if ends or unlike else "")


def _gate(gate: reward_sections.Gate) -> ScoreGate:
    low, high = gate.between or (gate.equals, gate.equals)
    low, high = gate.at_least if low is None else low, gate.at_most if high is None else high
    otherwise = 0.0 if gate.otherwise == "zero" else gate.otherwise
    return ScoreGate(gate.by, -math.inf if low is None else low, math.inf if high is None else high, otherwise)
