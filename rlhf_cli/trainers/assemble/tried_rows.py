"""Show the first rows of an experiment as its trainer reads them, and try every reward on them.

The steps are those of TRL's rollouts, without torch: a text is tokenised unchanged (with the tokenizer's prefix
tokens), a conversation is rendered by the chat template with `add_generation_prompt=True` and
`trainer.args.chat_template_kwargs`. The rows of trainers that learn from them are tokenised by TRL, with torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import ENVIRONMENT_COLUMN
from rlhf_cli.errors import ModelError
from rlhf_cli.evaluation.audit.attack import experiment_rows, unreachable
from rlhf_cli.evaluation.audit.trial import GoldAnswers, Trial, open_trial
from rlhf_cli.evaluation.score_bench import quantiles
from rlhf_cli.evaluation.score_completions import policy_tokenizer
from rlhf_cli.models.foreign_files import naming_foreign_files
from rlhf_cli.models.tokenizer_files import no_chat_template, prompt_ids
from rlhf_cli.plan.stack_building import told_tools
from rlhf_cli.rewards.completion_text import last_text

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Span:
    """A part of a text; `is_learned` says whether its tokens are trained on."""

    text: str
    is_learned: bool


@dataclass(frozen=True)
class LearnedText:
    """A text of one row, with its prompt: its column, its parts, its tokens, and how many of these are trained on."""

    column: str
    spans: list[Span]
    tokens: int
    learned_tokens: int


def learned_texts(
    experiment: Experiment, rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> list[list[LearnedText]]:
    """Return the texts of each row as TRL tokenises them; none for a row that it leaves out."""
    from rlhf_cli.trainers.assemble.prepared_rows import prepared_rows  # imports TRL

    def shown(column: str, ids: list[int], learned: list[bool]) -> LearnedText:
        spans = []
        for is_learned, part in groupby(zip(ids, learned, strict=True), key=lambda pair: pair[1]):
            spans.append(Span(str(tokenizer.decode([token for token, _ in part])), is_learned))
        return LearnedText(column, spans, len(ids), sum(learned))

    return [[shown(*read) for read in texts] for texts in prepared_rows(experiment, rows, tokenizer)]


@dataclass(frozen=True)
class SeenPrompt:
    """A prompt as the text of its tokens, including special ones, and their number."""

    text: str
    tokens: int


@dataclass(frozen=True)
class TokenLengths:
    """The token counts of many texts: quantile ("0" is the minimum, "1" the maximum) -> tokens."""

    of: str
    count: int
    quantiles: Mapping[str, float]


@dataclass(frozen=True)
class PromptsSeen:
    """The first prompts as the model sees them, the lengths of all texts read, and the token that ends an answer."""

    prompts: list[SeenPrompt]
    lengths: list[TokenLengths]
    ends_with: str


def prompts_seen(
    experiment: Experiment,
    prompts: Sequence[object],
    *,
    shown: int,
    answers: Sequence[str] = (),
    environments: Sequence[object] | None = None,
) -> PromptsSeen:
    """Return the first `shown` prompts as tokens, and the lengths of all prompts and of the right answers.

    Raise ModelError if the policy's tokenizer cannot be loaded, or if it has no chat template for conversations.
    """
    tokenizer = policy_tokenizer(experiment, wanted_by="a prompt as the model sees it")
    settings = experiment.trainer.setting("chat_template_kwargs")
    if tokenizer.chat_template is None and not isinstance(prompts[0], str):
        raise no_chat_template(tokenizer.name_or_path, where="model.path")
    with naming_foreign_files({"model.path": tokenizer.name_or_path}):
        tools = list(map(told_tools(experiment), environments or [None] * len(prompts)))
        ids = prompt_ids(tokenizer, prompts, settings if isinstance(settings, Mapping) else {}, tools)
    counted = {"prompts": ids}
    if answers:
        counted["right answers"] = tokenizer(list(answers), add_special_tokens=False, verbose=False)["input_ids"]
    lengths = [TokenLengths(of, len(some), quantiles(list(map(len, some)))) for of, some in counted.items()]
    seen = [SeenPrompt(str(tokenizer.decode(prompt)), len(prompt)) for prompt in ids[:shown]]
    return PromptsSeen(seen, lengths, str(tokenizer.eos_token))


_ROWS_FOR_LENGTHS = 1000


@dataclass(frozen=True)
class TriedAnswer:
    """A scored answer, `gold`, `empty` or `echo`. `raw`: reward -> score or None. `errors`: reward -> its error."""

    kind: str
    text: str
    total: float | None
    raw: Mapping[str, float | None]
    errors: Mapping[str, str]


@dataclass(frozen=True)
class TriedRows:
    """The first rows of an experiment: prompts as the model sees them, and the rewards of some answers by row.

    Without the policy's tokenizer `seen` is None, for the reason `why_not_seen`. `gold_source` and `gold_way` are the
    column and format of the right answers. A trainer that learns from rows has `learned`, and no answers to try.
    """

    seen: PromptsSeen | None
    why_not_seen: str | None
    prompts: list[str]
    gold_source: str | None = None
    gold_way: str | None = None
    answers: list[list[TriedAnswer]] = field(default_factory=list)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    learned: list[list[LearnedText]] = field(default_factory=list)


def try_rows(experiment: Experiment, count: int) -> TriedRows:
    """Score the first `count` rows, or show what is learned from them. Raise DataError if there are no rows."""
    if experiment.trainer.row.learns_from:
        return _learned_rows(experiment, count)
    rows = experiment_rows(experiment, max(count, _ROWS_FOR_LENGTHS))
    prompts = [last_text(row["prompt"]) for row in rows[:count]]
    tried = TriedRows(None, None, prompts, left_out=unreachable(experiment))
    golds: list[str] = []
    if len(tried.left_out) < len(experiment.rewards):
        with open_trial(experiment, rows, left_out=tried.left_out, gold=None) as trial:
            gold = trial.gold_answers(is_costly=True, first=count)
            tried = replace(tried, answers=_tried(trial, gold, prompts), notes=tuple(trial.notes))
            if trial.gold is not None:
                golds = [answer for answer in trial.gold.answers if answer is not None]
            if trial.gold is not None and gold.texts:
                tried = replace(tried, gold_source=trial.gold.source, gold_way=gold.way.name)
    try:
        asked, named = [row["prompt"] for row in rows], [row.get(ENVIRONMENT_COLUMN) for row in rows]
        seen = prompts_seen(experiment, asked, shown=count, answers=golds, environments=named)
    except ModelError as error:  # reported with the other results, because it depends on this machine
        return replace(tried, why_not_seen=str(error))
    return replace(tried, seen=seen)


def _learned_rows(experiment: Experiment, count: int) -> TriedRows:
    try:
        tokenizer = policy_tokenizer(experiment, wanted_by="a row as the trainer reads it")
    except ModelError as error:
        return TriedRows(None, str(error), [])
    from rlhf_cli.trainers.assemble.trainer import training_rows  # imports TRL

    rows = training_rows(experiment)[0]
    learned = learned_texts(experiment, rows.select(range(min(len(rows), max(count, _ROWS_FOR_LENGTHS)))), tokenizer)
    tokens: dict[str, list[int]] = {}
    for text in (text for texts in learned for text in texts):
        tokens.setdefault(text.column, []).append(text.tokens)
    lengths = [TokenLengths(column, len(counts), quantiles(counts)) for column, counts in tokens.items()]
    eos = str(tokenizer.eos_token)  # a conversation may end otherwise
    ends = all(text.spans[-1].text.endswith(eos) for texts in learned for text in texts)
    seen = PromptsSeen([], lengths, eos if ends else "")
    left_out = [number for number, texts in enumerate(learned) if not texts]
    note = f"{len(left_out)} of {len(learned)} rows are left out, the first is row {left_out[0]}" if left_out else None
    return TriedRows(seen, None, [], notes=() if note is None else (note,), learned=learned[:count])


def _tried(trial: Trial, gold: GoldAnswers, prompts: list[str]) -> list[list[TriedAnswer]]:
    texts: list[tuple[str, int, str]] = []
    for row, prompt in enumerate(prompts):
        if row in gold.texts:
            texts.append(("gold", row, gold.texts[row]))
        texts += [("empty", row, ""), ("echo", row, prompt)]
    scores = trial.scored([(row, text) for _, row, text in texts])
    answers: list[list[TriedAnswer]] = [[] for _ in prompts]
    for (kind, row, text), scored in zip(texts, scores, strict=True):
        raw = {name: reward.raw for name, reward in scored.rewards.items()}
        errors = {name: reward.error for name, reward in scored.rewards.items() if reward.error is not None}
        answers[row].append(TriedAnswer(kind, text, scored.total, raw, errors))
    return answers
