"""Run one evaluation: load the model and rows, evaluate, and write JSON and the completions.

A policy answers prompts greedily, and sampled with the trainer's settings; a run with tools, an environment or a
rollout function passes `Interact`, which answers as in its training. Rewards are evaluated as in `rlhf score`: with the
run's stack and aggregate, and the weights and running deviations of its last step. The truncation policy and KL belong
to the trainer and are not part of the total.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.images import images_of
from rlhf_cli.data.rows import prompt_key
from rlhf_cli.data.source import Row
from rlhf_cli.errors import writing
from rlhf_cli.evaluation.evaluation_results import (
    SEEN,
    UNSEEN,
    AnsweredPrompt,
    Evaluation,
    Heading,
    Measured,
    PartAnswers,
    PolicyEvaluation,
    completions_of,
    evaluation_json,
    sum_up_answers,
)
from rlhf_cli.evaluation.held_out_rows import HeldOut, end_of_run, load_held_out
from rlhf_cli.evaluation.reward_model_scores import evaluate_reward_model
from rlhf_cli.evaluation.score_completions import EndOfRun, Interact, refuse_uncallable_rewards, score_each
from rlhf_cli.evaluation.scored_pairs import RewardModelEvaluation
from rlhf_cli.evaluation.targets import Target
from rlhf_cli.models.policy_model import SAMPLING_ARGUMENTS, PolicyModel, Sampling
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.models.tokenizer_files import read_tokenizer
from rlhf_cli.plan.batches import count
from rlhf_cli.plan.prompt_room import prompt_room
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, ScoredRow
from rlhf_cli.runs.reward_records import trained_with_eos
from rlhf_cli.runs.run_folder import (
    GREEDY,
    HELD_OUT,
    REWARD_MODEL,
    SAMPLED,
    TRAINING_ROWS,
    make_folder,
    write_json,
    write_rows,
)
from rlhf_cli.tools_and_environments import failed_calls

Say = Callable[[str], None]
_POLICY_BATCH, _SCORER_BATCH = 32, 16
_SETTINGS = (*SAMPLING_ARGUMENTS, "max_completion_length", "generation_kwargs", "chat_template_kwargs")
_PROMPT = "prompt_was"
"""Column that says whether a pair's prompt was also trained on. It is used as a slice."""
_OTHER_ENDING = {
    True: "every text ends with the end-of-sequence token, and in training it did not",
    False: "the texts end without the end-of-sequence token, which they had in training",
}


@dataclass(frozen=True)
class EvaluationRequest:
    """How to evaluate. `name` is the base name of the files; `data` describes the rows on the screen.

    `trained` is the experiment that trained the model, if known. `has_own_rows`: the rows are the experiment's own.
    `slices`, `as_chat` and `with_eos` are for a reward model, `samples` (per prompt) and `interact` for a policy.
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
    """Evaluate, and write `NAME.json` and a policy's `NAME.completions.jsonl`; return the evaluation and the files."""
    transformers_logging.disable_progress_bar()
    folder = asked.out or target.folder
    make_folder("the evaluation", folder, "--out FOLDER")
    is_reward_model = target.kind == REWARD_MODEL
    policy = None if is_reward_model else load_policy(target.model, experiment)
    held_out = load_held_out(
        experiment,
        needs="chosen" if is_reward_model else "prompt",
        limit=asked.rows,
        or_training=not is_reward_model,
        trained=asked.trained,
        room=None if policy is None else prompt_room(experiment, policy.config, policy.tokenizer),
    )
    if asked.has_own_rows and held_out.num_trained_on == len(held_out.rows):
        asked = replace(asked, name=TRAINING_ROWS + asked.name.removeprefix(HELD_OUT))
    measured: Measured
    completions: list[Row] = []
    if policy is None:
        measured = _reward_model(target, experiment, held_out, asked, say)
    else:
        measured, completions = _policy(target, policy, experiment, held_out, asked, say)
    heading = Heading(
        name=asked.name,
        model=target.label,
        path=str(target.model),
        data=asked.data,
        trained_on=held_out.num_trained_on,
        time=time.time(),
        warnings=held_out.warnings,
    )
    evaluation = Evaluation(heading, measured)
    files = [folder / f"{asked.name}.json"]
    with writing("the evaluation", folder, "--out FOLDER"):  # the disk may be full
        if completions:
            files.append(folder / f"{asked.name}.completions.jsonl")
            write_rows(files[-1], completions)
        write_json(files[0], evaluation_json(evaluation))
    return evaluation, files


def _reward_model(
    target: Target, experiment: Experiment, held_out: HeldOut, asked: EvaluationRequest, say: Say
) -> RewardModelEvaluation:
    rows, slices = held_out.rows, asked.slices
    if 0 < (held_out.num_trained_on or 0) < len(rows):
        seen = held_out.trained_on or ()
        rows = [{**row, _PROMPT: SEEN if prompt_key(row) in seen else UNSEEN} for row in rows]
        slices = [_PROMPT, *slices]
    say(f"scoring {len(rows)} pairs with {target.label}")
    named = named_files(target.model, experiment)
    scorer = RewardModelScorer(
        str(target.model),
        batch_size=asked.batch_size or _SCORER_BATCH,
        dtype=experiment.model.dtype,
        device=device_of(experiment),
        with_eos=asked.with_eos,
        trust_remote_code=experiment.model.trust_remote_code,
        tokenizer=named["tokenizer"],
        revision=named["revision"],
    )
    if trained_with_eos(target.model) not in (None, asked.with_eos):
        held_out.warnings.append(_OTHER_ENDING[asked.with_eos])
    tokens = Path(named["tokenizer"] or target.model)
    if asked.with_eos and (unread := read_tokenizer(tokens, where=target.label).unread_end):
        held_out.warnings.append(f"the model pads with {unread}, so it never reads it at the end of a text")
    return evaluate_reward_model(scorer, rows, slices=slices, as_chat=asked.as_chat)


def _policy(
    target: Target, policy: PolicyModel, experiment: Experiment, held_out: HeldOut, asked: EvaluationRequest, say: Say
) -> tuple[PolicyEvaluation, list[Row]]:
    rows = held_out.rows
    total = len(rows) * (1 + asked.samples)
    say(f"{count(total, 'completion')} of {count(len(rows), 'prompt')}, {1 + asked.samples} each")
    done = 0

    def on_batch(num: int) -> None:
        nonlocal done
        if (done + num) * 4 // total > done * 4 // total:
            say(f"{done + num} of {total}")
        done += num

    sampling = sampling_of(experiment, asked.samples, asked.batch_size or _POLICY_BATCH, on_batch)
    end = end_of_run(target)
    if asked.interact is not None:
        parts, no_total = asked.interact(target.model, experiment, rows, sampling.each, sampling.batch_size, end)
    else:
        ways = {GREEDY: replace(sampling, each=1, is_greedy=True), SAMPLED: sampling}
        parts, no_total = policy_answers(policy, experiment, rows, ways, end)
    evaluation = sum_up_answers(
        parts, list(experiment.rewards), no_total=no_total, trained_on=held_out.trained_on or frozenset()
    )
    settings = {**sampling.settings, "samples": sampling.each, "seed": sampling.seed}
    completions = completions_of(parts)
    held_out.warnings.extend(failed_calls([row["completion"] for row in completions]))
    return replace(evaluation, settings=settings), completions


def sampling_of(
    experiment: Experiment, each: int, batch_size: int, on_batch: Callable[[int], None] | None = None
) -> Sampling:
    """Return the sampling of an experiment's trainer, with GRPO's defaults for arguments that it does not have."""
    import trl

    trainer = experiment.trainer
    settings = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig) if field.name in _SETTINGS}
    limit = trainer.row.answers_up_to or "max_completion_length"
    own = {name: trainer.setting(limit if name == "max_completion_length" else name) for name in _SETTINGS}
    settings |= {name: value for name, value in own.items() if value is not None or name in trainer.args}
    return Sampling(settings, batch_size, experiment.seed, each, on_batch=on_batch)


def device_of(experiment: Experiment) -> str:
    """Return `cuda` if there is a GPU and the experiment may use it, else `cpu`."""
    return "cuda" if torch.cuda.is_available() and experiment.launch.device != "cpu" else "cpu"


def named_files(path: Path, experiment: Experiment) -> dict[str, str | None]:
    """Return the tokenizer and revision of the model that the experiment names; one that a run saved has its own."""
    model = experiment.model
    is_named = model.path is not None and path == Path(model.path)
    return {name: getattr(model, name) if is_named else None for name in ("tokenizer", "revision")}


def load_policy(path: Path, experiment: Experiment) -> PolicyModel:
    """Load a model with an experiment's dtype, device, way to generate and trust, and the files that it names."""
    transformers_logging.disable_progress_bar()
    return PolicyModel(
        path,
        dtype=experiment.model.dtype,
        device=device_of(experiment),
        generation=experiment.trainer.generation,
        trust_remote_code=experiment.model.trust_remote_code,
        chat_template=experiment.model.chat_template,
        response_template=experiment.model.response_template,
        parses=experiment.trainer.row.has_tools,
        **named_files(path, experiment),
    )


def policy_answers(
    policy: PolicyModel, experiment: Experiment, rows: list[Row], ways: Mapping[str, Sampling], end: EndOfRun
) -> tuple[dict[str, PartAnswers], str | None]:
    """Return the answers by decoding mode (`ways`), scored as at the run's `end`, and why they have no total.

    Raise RewardError or DataError before sampling if a reward cannot be called.
    """
    refuse_uncallable_rewards(rows, experiment)
    answered = {name: answer_prompts(policy, rows, way) for name, way in ways.items() if way.each}
    # Apart, as in a training: a reward that compares the answers to a prompt must not compare greedy with sampled ones.
    batches = [[answer.as_row() for answer in answers] for answers in answered.values()]
    if experiment.rewards:
        scored = score_each(experiment, batches, device=policy.device, decode=policy.decode, end=end)
    else:
        scored = [CompletionScores([ScoredRow(None, {}) for _ in answers]) for answers in batches]
    parts = {
        name: PartAnswers(ways[name].each, answers, scores.rows)
        for (name, answers), scores in zip(answered.items(), scored, strict=True)
    }
    return parts, scored[0].no_total


def answer_prompts(policy: PolicyModel, rows: list[Row], sampling: Sampling) -> list[AnsweredPrompt]:
    """Return `sampling.each` answers per row, as messages if the prompt is a list of messages."""
    repeated = [row for row in rows for _ in range(sampling.each)]
    answers = []
    prompts, images = [row["prompt"] for row in repeated], list(map(images_of, repeated))
    for row, answer in zip(repeated, policy.complete(prompts, sampling, images), strict=True):
        is_chat = isinstance(row["prompt"], list)
        completion = [answer.message or {"role": "assistant", "content": answer.text}] if is_chat else answer.text
        answers.append(AnsweredPrompt(row, completion, answer.ids, answer.is_truncated))
    return answers
