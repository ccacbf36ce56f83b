"""Score completions of a file by an experiment's rewards.

The rows use the same reward stack and the same aggregation as in training, but without groups: an excluded component
adds nothing to a row's total. If training needs the other rows of a batch (`normalize`, normalize_then_sum), there is
no total, and the result says why.
"""

from __future__ import annotations

import functools
import glob
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import NOT_GIVEN, Source
from rlhf_cli.data.dialogues import read_conversations
from rlhf_cli.data.images import opened
from rlhf_cli.data.learnt_columns import rename_hint, stand_in
from rlhf_cli.data.peeking import peek
from rlhf_cli.data.preparing import prepare, template_columns
from rlhf_cli.data.rows import RowTable, Table, kind_of_text
from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError, ModelError, raise_any
from rlhf_cli.evaluation.targets import renames_in
from rlhf_cli.models.tokenizer_files import load_tokenizer
from rlhf_cli.plan.checks.machine_checks import require_on_hub
from rlhf_cli.plan.sources_and_components import StateOfTrainer, columns_read, source_of
from rlhf_cli.plan.stack_building import aggregate_of, function_of, reward_stack
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.reward_functions import RewardFunction, required_columns
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, settled_rows
from rlhf_cli.runs.metrics_file import step_of_table
from rlhf_cli.services.hub_lookup import HubQuestion
from rlhf_cli.text.suggest import nearest

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from rlhf_cli.evaluation.evaluation_results import PartAnswers
    from rlhf_cli.numerics.score_scaling import RunningDeviation
    from rlhf_cli.rewards.stack.token_offsets import ScoredPart


def policy_tokenizer(experiment: Experiment, *, wanted_by: str) -> PreTrainedTokenizerBase:
    """Return the policy's tokenizer, which `wanted_by` needs. Raise ModelError if it cannot be loaded."""
    model = experiment.model
    if model.build is not None:
        from rlhf_cli.models.byte_tokenizer import byte_tokenizer

        built = byte_tokenizer(model.build.context_tokens)
        built.chat_template = model.chat_template or built.chat_template
        return built
    name, where, revision = model.path, "model.path", model.revision
    if model.tokenizer:
        name, where, revision = model.tokenizer, "model.tokenizer", None
    if name is None or name == NOT_GIVEN:
        what = f"{wanted_by} needs the policy's tokenizer, and no policy is configured"
        expected, hint = "a model folder or a hub id, for its tokenizer", "model.path=FOLDER_OR_HUB_ID, or model=tiny"
        raise ModelError(what, where=where, expected=expected, hint=hint)
    if not Path(name).expanduser().exists():
        require_on_hub(HubQuestion("model", name, revision, needs_weights=False), where=where, local=f"{where}=FOLDER")
    trusts = model.trust_remote_code
    return load_tokenizer(name, model.chat_template, where=where, revision=revision, trust_remote_code=trusts)


def reads_tokens(function: RewardFunction) -> bool:
    """Return whether a reward reads token ids, also as `columns["completion_ids"]`; not if it has another unit."""
    parameters = inspect.signature(function).parameters
    if "completion_ids" in parameters:
        return "unit" not in parameters or parameters["unit"].default == "tokens"
    while hasattr(function, "func"):  # isolated, with arguments, or a partial
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    is_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return is_any and code is not None and "completion_ids" in code.co_consts


def _has_policy(experiment: Experiment) -> bool:
    model = experiment.model
    return model.build is not None or model.tokenizer is not None or model.path not in (None, NOT_GIVEN)


def rewards_without_tokenizer(experiment: Experiment) -> dict[str, str]:
    """Return reward name -> reason, for the rewards that count tokens when no policy is configured."""
    if _has_policy(experiment):
        return {}
    why = "it counts the policy's tokens, and no policy is configured: model.path=FOLDER_OR_HUB_ID, or model=tiny"
    return {
        name: why
        for name, reward in experiment.rewards.items()
        if reward.fn is not None and reads_tokens(function_of(name, reward.fn, reward.args))
    }


def read_completions(path: Path, *, limit: int | None, experiment: Experiment, label: str | None = None) -> list[Row]:
    """Read rows with `prompt` and `completion` from a file, a run folder or its completions/ (its last table).

    The experiment's renames, transcripts and prompt template apply as far as the file has their columns; `label` is a
    column that is read too. Raise DataError if the file does not exist, has no rows, or lacks one of the two columns.
    """
    if not path.exists() and not glob.has_magic(str(path)):
        from rlhf_cli.data.data_files import near_files

        # Otherwise the training data loader would look for a hub dataset of this name.
        what, expected = f"{path}: no such file", "a file with prompt and completion, a run folder or run:NAME"
        raise DataError(what, where="--completions", got=str(path.absolute()), expected=expected, **near_files(path))
    if path.is_dir():
        tables = [*path.glob("completions/*.parquet"), *path.glob("*.parquet")]
        if not tables:
            raise DataError("there are no completions in this folder", where=str(path), expected="*.parquet")
        path = max(tables, key=lambda table: (step_of_table(table), table))
    table = completions_in(path, limit or sys.maxsize, experiment, label)
    free = [name for name in table.column_names if name not in columns_read(experiment)]
    raise_any(
        DataError(
            f"the file has no column {column!r}",
            where=str(path),
            got="columns " + ", ".join(table.column_names),
            expected="prompt, completion, and the columns that the rewards read",
            hint=rename_hint("data", column, stand_in(column, free, first=table[0])),
        )
        for column in ("prompt", "completion")
        if column not in table.column_names
    )
    table = read_conversations(table, ("prompt", "completion"), name=str(path))
    read = [opened(dict(table[row])) for row in range(len(table))]
    for number, row in enumerate(read, 1):
        if kind_of_text(completion := row["completion"]) is None:
            got, where = f"{completion!r:.80}", f"{path}, row {number} (the first row is 1)"
            expected = "text, or messages: [{role: assistant, content: ...}]; a row for each completion"
            raise DataError("the completion cannot be scored", where=where, got=got, expected=expected)
    return read


def completions_in(path: Path, limit: int, experiment: Experiment, label: str | None) -> Table:
    """Return the rows of a file of completions, prepared as those of the experiment's data."""
    columns, renames = renames_in(str(path), experiment.data.rename, name="--completions")
    source = source_of(experiment, Source(path=str(path), rename=renames), "--completions")
    is_read, template = source.is_read, experiment.data.model_dump()["prompt"]
    source.is_read = lambda column: column in ("completion", label) or is_read(column)
    is_made = "prompt" in (*columns, *renames) or template is None
    prompt = None if is_made or template_columns(template) - {*columns, *renames} else template
    preview = peek(source, limit)
    if not preview.rows:
        raise DataError("the file has no rows", where=str(path), expected="a row a completion, with its prompt")
    return prepare(RowTable(preview.rows, preview.columns), source, prompt)


@dataclass(frozen=True)
class EndOfRun:
    """The last step, the total number of steps, and the saved running deviations by reward."""

    step: int = 0
    max_steps: int = 1
    running: Mapping[str, RunningDeviation] = field(default_factory=dict)


Interact = Callable[[Path, Experiment, list[Row], int, int, EndOfRun], "tuple[dict[str, PartAnswers], str | None]"]
"""Answers to every row by decoding mode, scored, from a model, an experiment, the rows, the number of samples and of
completions in a batch, and the end of the run; and why they have no total.
"""


def score_each(
    experiment: Experiment,
    batches: Sequence[list[Row]],
    *,
    device: torch.device | str = "cpu",
    decode: Callable[..., str] | None = None,
    end: EndOfRun | None = None,
) -> list[CompletionScores]:
    """Score batches of rows as at the `end` of a run (None for its first step), and summarise every reward over each.

    If no policy is configured, rewards that count tokens are left out, unless that would be all of them or a gate reads
    one; then no row has a total. `decode` turns token ids into text for rewards that score spans; None uses the
    policy's tokenizer. Raise DataError if a reward reads a column that the rows do not have.
    """
    left_out = {} if "completion_ids" in batches[0][0] else rewards_without_tokenizer(experiment)
    read_by_gates = {gate.by for reward in experiment.rewards.values() for gate in reward.gates}
    if len(left_out) == len(experiment.rewards) or read_by_gates & set(left_out):
        left_out = {}  # scoring says what is missing
    if left_out:  # there is no total: an aggregate of the user's may read any reward
        kept = {name: reward for name, reward in experiment.rewards.items() if name not in left_out}
        experiment = experiment.model_copy(update={"rewards": kept, "aggregate": "sum"})
    stack = reward_stack(experiment, device=device)
    try:
        scored = [score_with(stack, experiment, rows, decode=decode, end=end) for rows in batches]
    finally:
        stack.close()
    if not left_out:
        return scored
    why = "; ".join(f"rewards.{name} is left out: {why}" for name, why in left_out.items())
    return [replace(scores, rows=[replace(row, total=None) for row in scores.rows], no_total=why) for scores in scored]


def score_with(
    stack: RewardStack,
    experiment: Experiment,
    rows: list[Row],
    *,
    decode: Callable[..., str] | None = None,
    end: EndOfRun | None = None,
    where: str = "--completions",
) -> CompletionScores:
    """Score the rows with an open stack, like `score_each`; `where` names the source of the rows in error messages."""
    end = end or EndOfRun()
    wanting = [f"rewards.{component.name}" for component in stack.components if reads_tokens(component.score)]
    tokenizer = functools.cache(lambda: policy_tokenizer(experiment, wanted_by=" and ".join(wanting)))
    columns = dict.fromkeys(column for row in rows for column in row)
    refuse_missing_columns({one.name: one.score for one in stack.components}, rows, experiment, where=where)
    batch: dict[str, Any] = {column: [row.get(column) for row in rows] for column in columns}
    batch["prompts"], batch["completions"] = batch.pop("prompt"), batch.pop("completion")
    batch["trainer_state"] = StateOfTrainer(end.step, end.max_steps)
    batch |= {"log_extra": lambda column, values: None, "log_metric": lambda name, value: None}

    _evaluate(stack, batch, tokenizer, decode, counts=bool(wanting))
    if "completion_ids" not in batch and _has_policy(experiment):
        wanting += [f"rewards.{name}" for name, outcome in stack.outcomes.items() if outcome.has_token_values]
        if wanting:
            _evaluate(stack, batch, tokenizer, decode, counts=True)  # as a run, which compares values with tokens
    return _scores(stack, len(rows), aggregate_of(experiment), end)


def _evaluate(
    stack: RewardStack,
    batch: dict[str, Any],
    tokenizer: Callable[[], PreTrainedTokenizerBase],
    decode: Callable[..., str] | None,
    *,
    counts: bool,
) -> None:
    """Let the stack evaluate the batch; if it `counts` tokens, with the ids of the completions, each with its end."""
    if counts and "completion_ids" not in batch:
        texts, end = [text_of(text) for text in batch["completions"]], tokenizer().eos_token_id
        ids = tokenizer()(texts, add_special_tokens=False, verbose=False)["input_ids"]
        batch["completion_ids"] = [row if end is None else [*row, end] for row in ids]
    if "completion_ids" in batch:
        stack.decode = decode or (lambda ids: str(tokenizer().decode(list(ids), skip_special_tokens=True)))
    stack.evaluate(**batch)


def refuse_missing_columns(
    functions: Mapping[str, RewardFunction], rows: Sequence[Row], experiment: Experiment, *, where: str
) -> None:
    """Raise DataError if a reward reads a column that the rows do not have; `where` names the source of the rows."""
    columns = dict.fromkeys(column for row in rows for column in row)
    raise_any(
        DataError(
            f"the rows have no column {column!r}",
            where=where,
            got="columns " + ", ".join(columns),
            expected=f"{column}, which rewards.{name} reads",
            hint=f"'~rewards.{name}'  # only rollouts have the column"
            if column in experiment.rollout_columns
            else nearest(column, columns)
            if where != "data"
            else rename_hint("data", column, stand_in(column, [*columns], first=rows[0])),
        )
        for name, function in functions.items()
        for column in required_columns(function)
        if column not in columns
    )


def refuse_uncallable_rewards(rows: Sequence[Row], experiment: Experiment) -> None:
    """Raise RewardError or DataError if a reward cannot be called on answers to these rows. Call it before sampling."""
    named = {name: (reward.fn, reward.args) for name, reward in experiment.rewards.items() if reward.fn is not None}
    functions = {name: function_of(name, *call) for name, call in named.items()}
    rollout = dict.fromkeys(experiment.rollout_columns) if experiment.interacts else {}
    refuse_missing_columns(functions, [*rows, rollout], experiment, where="data")


def _scores(stack: RewardStack, num_rows: int, aggregate: Aggregate, end: EndOfRun) -> CompletionScores:
    outcomes = {name: stack.outcomes[name] for name in stack.names}

    def details(row: int, name: str) -> tuple[bool, str | None, list[ScoredPart] | None]:
        return outcomes[name].closed_by[row] is None, outcomes[name].errors[row], stack.parts(name, row)

    raw = list(zip(*(outcome.raw for outcome in outcomes.values()), strict=True))
    fixed = list(zip(*(outcome.fixed for outcome in outcomes.values()), strict=True))
    weights, running = stack.weights(end.step, end.max_steps), end.running
    settled = settled_rows(stack.components, raw, fixed, weights, aggregate=aggregate, running=running, details=details)

    def mean(name: str, kind: str) -> float | None:
        values = [one for row in settled.rows if (one := getattr(row.rewards[name], kind)) is not None]
        return sum(values) / len(values) if values else None

    summary = {
        name: RewardSummary(
            mean=mean(name, "raw"),
            effective_mean=mean(name, "effective"),
            weighted_mean=mean(name, "weighted"),
            open_fraction=outcome.num_open / num_rows,
            excluded=outcome.num_excluded,
            errors=outcome.num_errors,
            calls=outcome.calls,
        )
        for name, outcome in outcomes.items()
    }
    return replace(settled, summary=summary)
