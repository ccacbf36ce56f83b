"""Run one evaluation: load the model and rows, evaluate, and write JSON and the completions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.utils import logging as transformers_logging

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.rows import prompt_key
from rlhf_cli.errors import RunError
from rlhf_cli.evaluation.evaluation_files import Evaluation, Heading, Measured, evaluation_json
from rlhf_cli.evaluation.held_out_rows import HeldOut, end_of_run, load_held_out
from rlhf_cli.evaluation.policy_results import SEEN, UNSEEN, PolicyEvaluation
from rlhf_cli.evaluation.reward_model_scores import evaluate_reward_model
from rlhf_cli.evaluation.scored_pairs import RewardModelEvaluation, Row
from rlhf_cli.evaluation.targets import Target
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.models.tokenizer_files import read_tokenizer
from rlhf_cli.runs.reward_records import trained_with_eos
from rlhf_cli.runs.run_folder import HELD_OUT, REWARD_MODEL, TRAINING_ROWS, write_json, write_rows

if TYPE_CHECKING:
    from rlhf_cli.evaluation.generation import Interact

Say = Callable[[str], None]
_POLICY_BATCH, _SCORER_BATCH = 32, 16
_PROMPT = "prompt_was"
"""Column that says whether a pair's prompt was also trained on. It is used as a slice."""
_OTHER_ENDING = {
    True: "every text ends with the end-of-sequence token, and in training it did not",
    False: "the texts end without the end-of-sequence token, which they had in training",
}


@dataclass(frozen=True)
class EvaluationRequest:
    """How to evaluate. `name` is the base name of the files; `data` describes the rows on the screen.

    `trained` is the experiment that trained the model, or None if unknown. `has_own_rows` says that the rows are the
    experiment's own evaluation rows. `out` is the output folder, None for the target's. `rows` is the maximum number of
    rows, None for all. `batch_size` counts completions, None for the default of the model's kind. `slices`, `as_chat`
    and `with_eos` are for a reward model, `samples` (per prompt) for a policy. `interact` generates for a run with
    tools, an environment or a rollout function.
    """

    name: str
    data: str
    out: Path | None = None
    rows: int | None = None
    slices: list[str] = field(default_factory=list)
    samples: int = 4
    batch_size: int | None = None
    as_chat: bool = False
    with_eos: bool = False
    trained: Experiment | None = None
    has_own_rows: bool = False
    interact: Interact | None = None


def evaluate(
    target: Target, experiment: Experiment, asked: EvaluationRequest, say: Say
) -> tuple[Evaluation, list[Path]]:
    """Evaluate and write `NAME.json` and, for a policy, `NAME.completions.jsonl` into the output folder.

    Return the evaluation and these files. Raise UserError for a model or rows that cannot be loaded, and any error that
    a reward raises.
    """
    transformers_logging.disable_progress_bar()
    folder = asked.out or target.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    except OSError as error:
        raise RunError(
            "the results cannot be written", where=str(folder), got=error.strerror, hint="--out FOLDER"
        ) from error
    is_reward_model = target.kind == REWARD_MODEL
    held_out = load_held_out(
        experiment,
        needs="chosen" if is_reward_model else "prompt",
        limit=asked.rows,
        or_training=not is_reward_model,
        trained=asked.trained,
    )
    rows, warnings = held_out.rows, held_out.warnings
    if asked.has_own_rows and held_out.num_trained_on == len(rows):
        asked = replace(asked, name=TRAINING_ROWS + asked.name.removeprefix(HELD_OUT))
    measured: Measured
    completions: list[Row] = []
    if is_reward_model:
        measured = _reward_model(target, experiment, held_out, asked, say)
    else:
        measured, completions = _policy(target, experiment, held_out, asked, say)
    heading = Heading(
        name=asked.name,
        model=target.label,
        path=str(target.model),
        data=asked.data,
        trained_on=held_out.num_trained_on,
        time=time.time(),
        warnings=warnings,
    )
    evaluation = Evaluation(heading, measured)
    files = [folder / f"{asked.name}.json"]
    if completions:
        files.append(folder / f"{asked.name}.completions.jsonl")
        write_rows(files[-1], completions)
    write_json(files[0], evaluation_json(evaluation))
    return evaluation, files


def _reward_model(
    target: Target, experiment: Experiment, held_out: HeldOut, asked: EvaluationRequest, say: Say
) -> RewardModelEvaluation:
    from rlhf_cli.evaluation.generation import device_of

    rows, slices = held_out.rows, asked.slices
    if 0 < (held_out.num_trained_on or 0) < len(rows):
        seen = held_out.trained_on or ()
        rows = [{**row, _PROMPT: SEEN if prompt_key(row) in seen else UNSEEN} for row in rows]
        slices = [_PROMPT, *slices]
    say(f"scoring {len(rows)} pairs with {target.label}")
    scorer = RewardModelScorer(
        str(target.model),
        batch_size=asked.batch_size or _SCORER_BATCH,
        dtype=experiment.model.dtype,
        device=device_of(experiment),
        trust_remote_code=experiment.model.trust_remote_code,
    )
    if trained_with_eos(target.model) not in (None, asked.with_eos):
        held_out.warnings.append(_OTHER_ENDING[asked.with_eos])
    if asked.with_eos and (unread := read_tokenizer(Path(target.model), where=target.label).unread_end):
        held_out.warnings.append(f"the model pads with {unread}, so it never reads it at the end of a text")
    return evaluate_reward_model(scorer, rows, slices=slices, as_chat=asked.as_chat, with_eos=asked.with_eos)


def _policy(
    target: Target, experiment: Experiment, held_out: HeldOut, asked: EvaluationRequest, say: Say
) -> tuple[PolicyEvaluation, list[Row]]:
    from rlhf_cli.evaluation.generation import evaluate_interactively, evaluate_policy, load_policy, sampling_of

    rows, trained_on = held_out.rows, held_out.trained_on or frozenset()
    total = len(rows) * (1 + asked.samples)
    say(f"{total} completions of {len(rows)} prompts, {1 + asked.samples} each")
    done = 0

    def on_batch(count: int) -> None:
        nonlocal done
        if (done + count) * 4 // total > done * 4 // total:
            say(f"{done + count} of {total}")
        done += count

    sampling = sampling_of(experiment, asked.samples, asked.batch_size or _POLICY_BATCH, on_batch)
    end = end_of_run(target)
    if (interact := asked.interact) is not None:
        return evaluate_interactively(
            interact, target.model, experiment, rows, sampling, end=end, trained_on=trained_on
        )
    policy = load_policy(target.model, experiment)
    return evaluate_policy(policy, experiment, rows, sampling, end=end, trained_on=trained_on)
