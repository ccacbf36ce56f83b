"""Load the rows that an evaluation or `rlhf generate` runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.images import opened
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.preparing import template_columns
from rlhf_cli.data.rows import check_rows, describe_shared, hold_out, prompt_key, shared_prompts
from rlhf_cli.data.source import Row
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.evaluation.score_completions import EndOfRun
from rlhf_cli.evaluation.targets import Target
from rlhf_cli.plan.prompt_room import PromptRoom
from rlhf_cli.plan.sources_and_components import describe_eval_rows, eval_sources, only_set, training_sources
from rlhf_cli.runs.reward_records import read_running
from rlhf_cli.runs.run_folder import checkpoint_folder
from rlhf_cli.runs.run_status import read_status

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class HeldOut:
    """The rows of an evaluation, and the `prompt_key` of those that were also trained on (None if unknown)."""

    rows: list[Row]
    trained_on: frozenset[bytes] | None
    warnings: list[str]

    @property
    def num_trained_on(self) -> int | None:
        """Return how many rows have a prompt that was also trained on, or None if unknown."""
        return None if self.trained_on is None else sum(prompt_key(row) in self.trained_on for row in self.rows)


def load_held_out(
    experiment: Experiment,
    *,
    needs: str,
    limit: int | None,
    or_training: bool,
    trained: Experiment | None = None,
    room: PromptRoom | None = None,
) -> HeldOut:
    """Return at most `limit` evenly spaced rows, with warnings. Column `needs` is non-empty in every row.

    The experiment has at most one evaluation set (`only_set`). A held-out fraction is reproduced exactly from the same
    data and seed. Equal and empty answers are dropped if training dropped them. With `or_training`, fall back to the
    training rows. `trained` is the experiment that trained the model, to count prompts that are also in its training
    rows. `room` leaves out or cuts prompts as training does. Raise ConfigError if no rows are configured, and DataError
    for prompts that leave no room to answer.
    """
    data, warnings = experiment.data, list[str]()
    prompt = data.model_dump()["prompt"]
    if sources := eval_sources(experiment):
        dataset = load_split(sources, seed=experiment.seed)
        if prompt is not None and template_columns(prompt) <= set(dataset.column_names):
            dataset = load_split(sources, prompt=prompt, seed=experiment.seed)
    else:
        dataset = load_split(training_sources(experiment), prompt=prompt, seed=experiment.seed)
        if data.fraction is not None:
            dataset = hold_out(dataset, data.fraction, experiment.seed)[1]
        elif or_training:
            warnings.append(
                "these are TRAINING rows, because the run held out none (data.eval.fraction=0.1, or --data FILE)"
            )
        else:
            raise ConfigError("no evaluation rows", where="data.eval", expected="--data FILE")
    if experiment.reward_model is not None and experiment.reward_model.on_bad_pair == "drop":
        from rlhf_cli.data.preferences import bad_pairs

        # A file of other rows (`--data`) may have no pairs. The caller that needs them raises the error.
        bad = bad_pairs(dataset) if {"chosen", "rejected"} <= set(dataset.column_names) else {}
        dataset = dataset.select([index for index in range(len(dataset)) if index not in bad])
    check_rows(dataset, [needs], "the evaluation rows")
    dataset, overlong = (dataset, []) if room is None else room.fitting(dataset, "the evaluation rows")
    dataset = dataset.select(_spread(len(dataset), limit))
    trained_on: frozenset[bytes] | None = None
    try:
        if trained is not None:
            known = None if trained.data.overlong_prompts == "error" else room  # then its training had none
            trained_on = shared_prompts(dataset, [_training_set(trained, known)[0]])
    except UserError as error:
        warnings.append(f"the training rows cannot be read, so shared prompts are not counted: {error.what}")
    held_out = HeldOut(list(map(opened, dataset.to_list())), trained_on, warnings)
    if (count := held_out.num_trained_on) and not warnings:
        warnings.append(describe_shared(count, len(held_out.rows)))
    warnings += overlong
    return held_out


def prompts_of(
    experiment: Experiment, *, data: str | None, held_out: bool, limit: int | None, room: PromptRoom | None = None
) -> tuple[list[Row], str]:
    """Return the rows of the file `data`, the held-out or training rows, fitted to `room`, and their description."""
    if data is None and not held_out:
        dataset, overlong = _training_set(experiment, room)
        check_rows(dataset, ["prompt"], "the training rows")
        kept = dataset.select(_spread(len(dataset), limit)).to_list()
        return list(map(opened, kept)), "; ".join(["training rows", *overlong])
    if held_out and experiment.data.eval is None:
        expected = "data.eval.fraction=0.1, or a file of other rows"
        raise ConfigError("the run held out no rows", where="data.eval", expected=expected, hint="--data FILE")
    rows, said = list[Row](), [data or describe_eval_rows(experiment.data)]
    for name in experiment.data.evals or [""]:
        of_set = only_set(experiment, name)
        found = load_held_out(of_set, needs="prompt", limit=limit, or_training=False, room=room)
        rows, said = rows + found.rows, said + found.warnings
    return [rows[place] for place in _spread(len(rows), limit)], "; ".join(said)


def _training_set(experiment: Experiment, room: PromptRoom | None) -> tuple[datasets.Dataset, list[str]]:
    """Return the rows that are trained on, and what happens to prompts that are too long."""
    data = experiment.data
    prompt = data.model_dump()["prompt"]
    dataset = load_split(training_sources(experiment), prompt=prompt, seed=experiment.seed)
    if data.fraction is not None:
        dataset = hold_out(dataset, data.fraction, experiment.seed)[0]
    if room is None:
        return dataset, []
    return replace(room, policy=data.overlong_prompts).fitting(dataset, "the training rows")


def _spread(num_rows: int, limit: int | None) -> Sequence[int]:
    """Return the places of at most `limit` of the rows, evenly spaced."""
    if limit is None or limit >= num_rows:
        return range(num_rows)  # datasets keeps its table for a range, and looks at each number of a list
    return [place * num_rows // limit for place in range(limit)]


def end_of_run(target: Target) -> EndOfRun:
    """Return the end of the target's run, or of the checkpoint being evaluated; defaults for a model without a run."""
    running = read_running(target.model)
    if target.run is None:
        return EndOfRun(running=running or {})
    status = read_status(target.run)
    running = running or read_running(checkpoint_folder(target.run.checkpoints, status.step))
    return EndOfRun(status.step, status.max_steps or 1, running or {})
