"""Show the first rows of an experiment as its trainer reads them, and try every reward on them.

Does not import torch; loading a tokenizer takes `transformers` about a second. The steps are those of TRL's rollouts: a
text is tokenised unchanged (with the tokenizer's prefix tokens), a conversation is rendered by the chat template with
`add_generation_prompt=True` and `trainer.args.chat_template_kwargs`. For SFT, DPO, KTO
and reward trainers every text is shown whole: a plain answer ends with the EOS token, what differs from the prompt
rendered alone is trained on, and a reward model scores a whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, cast

from rlhf_cli.analysis.audit.attack import experiment_rows, loaded_rows, prompt_text, unreachable
from rlhf_cli.analysis.audit.trial import GoldAnswers, Trial, open_trial
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.learnt_columns import check_learnt
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import Row
from rlhf_cli.errors import ModelError
from rlhf_cli.evaluation.score_completions import policy_tokenizer
from rlhf_cli.measure.score_bench import QUANTILES, quantiles
from rlhf_cli.models.tokenizer_files import no_chat_template
from rlhf_cli.tables.trl_trainers import TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LEARNED = ("completion", "chosen", "rejected", "reference", "messages", "conversations")


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
    experiment: Experiment, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> list[list[LearnedText]]:
    """Return the texts of each row that the trainer learns from. Raise DataError if it cannot read the rows."""
    trainer = experiment.trainer
    setting = trainer.setting
    field = str(setting("dataset_text_field") or TEXT)
    names = list(dict.fromkeys(name for row in rows for name in row))
    read = check_learnt(RowTable(rows, names), trainer.row, text_field=field)
    columns = [name for name in read if name in (*_LEARNED, field)]
    reads_whole = trainer.row.trains == "reward model" or setting("completion_only_loss") is False
    reader = _Reader(tokenizer, reads_whole=reads_whole, only_assistant=setting("assistant_only_loss") is True)
    return [[reader.read(row, name) for name in columns] for row in rows]


class _Reader:
    """Tokenise a text with its prompt as TRL does, and mark the tokens that are trained on."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, reads_whole: bool, only_assistant: bool) -> None:
        self._tokenizer = tokenizer
        self._reads_whole = reads_whole
        self._only_assistant = only_assistant

    def read(self, row: Row, column: str) -> LearnedText:
        prompt, answer = _prompt_and_answer(row, column)
        if isinstance(answer, list):
            ids, marks = self._conversation(prompt, answer)
        else:
            ids, marks = self._plain(str(prompt or ""), str(answer))
        spans = []
        for is_learned, part in groupby(zip(ids, marks, strict=True), key=lambda pair: pair[1]):
            spans.append(Span(str(self._tokenizer.decode([token for token, _ in part])), is_learned))
        return LearnedText(column, spans, len(ids), sum(marks))

    def _plain(self, prompt: str, answer: str) -> tuple[list[int], list[bool]]:
        eos = str(self._tokenizer.eos_token)
        whole = prompt + (answer if answer.endswith(eos) else answer + eos)
        ids, before = (list(self._tokenizer(text, verbose=False)["input_ids"]) for text in (whole, prompt))
        return ids, self._after(before if prompt else [], ids)

    def _conversation(self, prompt: object, answer: list[object]) -> tuple[list[int], list[bool]]:
        asked = [_message(one) for one in (prompt if isinstance(prompt, list) else [])]
        whole = [*asked, *(_message(one) for one in answer)]
        render: Callable[..., object] = self._tokenizer.apply_chat_template  # its return type depends on the arguments
        settings = {"tokenize": True, "return_dict": True}
        if self._only_assistant:
            found = cast("Mapping[str, list[int]]", render(whole, return_assistant_tokens_mask=True, **settings))
            return list(found["input_ids"]), [bool(one) for one in found["assistant_masks"]]
        ids = cast("Mapping[str, list[int]]", render(whole, **settings))["input_ids"]
        before: list[int] = []
        if asked:
            before = cast("Mapping[str, list[int]]", render(asked, add_generation_prompt=True, **settings))["input_ids"]
        return list(ids), self._after(before, ids)

    def _after(self, prompt: Sequence[int], ids: Sequence[int]) -> list[bool]:
        same = 0 if self._reads_whole else _shared(prompt, ids)
        return [place >= same for place in range(len(ids))]


def _prompt_and_answer(row: Row, column: str) -> tuple[object, object]:
    """Return the row's prompt and the answer; of a pair without a prompt, what both begin with is the prompt."""
    answer, pair = row[column], [row.get(name) for name in ("chosen", "rejected")]
    if row.get("prompt") is not None or column not in ("chosen", "rejected") or None in pair:
        return row.get("prompt"), answer
    if isinstance(answer, str):
        shared = answer[: _shared(*cast("list[str]", pair))].removesuffix(" ")
        return shared, answer.removeprefix(shared)
    messages, first, second = cast("list[list[object]]", [answer, *pair])
    count = _shared(first, second)
    return messages[:count], messages[count:]


def _shared(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many items both begin with."""
    return sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(first, second, strict=False)))


def _message(message: object) -> dict[str, object]:
    """Return a message in OpenAI's form; ShareGPT writes `from` and `value`."""
    given = cast("Mapping[str, object]", message)
    if "from" in given:
        return {"role": given["from"], "content": given["value"]}
    return dict(given)


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
    """The first prompts as the model sees them, the lengths of all texts read, and the end-of-sequence token."""

    prompts: list[SeenPrompt]
    lengths: list[TokenLengths]
    ends_with: str


def prompts_seen(
    experiment: Experiment, prompts: Sequence[object], *, shown: int, answers: Sequence[str] = ()
) -> PromptsSeen:
    """Return the first `shown` prompts as tokens, and the lengths of all prompts and of the right answers.

    Raise ModelError if the policy's tokenizer cannot be loaded, or if it has no chat template for conversations.
    """
    tokenizer = policy_tokenizer(experiment, wanted_by="a prompt as the model sees it")
    settings = experiment.trainer.setting("chat_template_kwargs")
    ids = _encoded(tokenizer, prompts, settings if isinstance(settings, Mapping) else {})
    lengths = [_token_lengths("prompts", [len(one) for one in ids])]
    if answers:
        of_answers = tokenizer(list(answers), add_special_tokens=False, verbose=False)["input_ids"]
        lengths.append(_token_lengths("right answers", [len(one) for one in of_answers]))
    seen = [SeenPrompt(str(tokenizer.decode(one)), len(one)) for one in ids[:shown]]
    return PromptsSeen(seen, lengths, str(tokenizer.eos_token))


def _encoded(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[object], settings: Mapping[str, object]
) -> list[list[int]]:
    if isinstance(prompts[0], str):
        return [list(ids) for ids in tokenizer(list(prompts), verbose=False)["input_ids"]]
    if tokenizer.chat_template is None:
        raise no_chat_template(tokenizer.name_or_path, where="model.path")
    render: Callable[..., object] = tokenizer.apply_chat_template  # its return type depends on the arguments
    asked = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, **settings}
    try:
        rendered = cast("Mapping[str, list[list[int]]]", render(list(prompts), **asked))
    except Exception as error:  # a template can raise anything: jinja2's errors, ValueError
        raise ModelError(
            "the chat template does not take these conversations",
            where="model.path",
            got=f"{type(error).__name__}: {error}",
            expected=f"roles and contents that {tokenizer.name_or_path} knows",
        ) from error
    return [list(ids) for ids in rendered["input_ids"]]


def _token_lengths(of: str, lengths: Sequence[int]) -> TokenLengths:
    shares = (f"{share:g}" for share in QUANTILES)
    return TokenLengths(of, len(lengths), dict(zip(shares, quantiles(lengths), strict=True)))


_ROWS_FOR_LENGTHS = 1000


@dataclass(frozen=True)
class TriedAnswer:
    """An answer that was scored: its kind (`gold`, `empty`, `echo`), its text, its rewards.

    `raw` maps reward -> score, or None; `errors` maps reward -> the error it raised.
    """

    kind: str
    text: str
    total: float | None
    raw: Mapping[str, float | None]
    errors: Mapping[str, str]


@dataclass(frozen=True)
class TriedRows:
    """The first rows of an experiment: prompts as the model sees them, and the rewards of some answers.

    `answers` are by row. If the policy's tokenizer is not available, `seen` is None and `why_not_seen` is the reason.
    `gold_source` and `gold_way` are the column and format of the right answers, or None. `learned` are the texts of
    each row for a trainer that learns from rows; it has no answers to try.
    """

    seen: PromptsSeen | None
    why_not_seen: str | None
    prompts: list[str]
    gold_source: str | None
    gold_way: str | None
    answers: list[list[TriedAnswer]]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]
    learned: list[list[LearnedText]] = field(default_factory=list)


def try_rows(experiment: Experiment, count: int) -> TriedRows:
    """Score the first `count` rows, or show what is learned from them. Raise DataError if there are no rows.

    A missing tokenizer is reported with the other results, because it depends on this machine.
    """
    if experiment.trainer.row.learns_from:
        return _learned_rows(experiment, count)
    rows = experiment_rows(experiment, max(count, _ROWS_FOR_LENGTHS))
    prompts = [prompt_text(row["prompt"]) for row in rows[:count]]
    left_out = unreachable(experiment)
    if len(left_out) == len(experiment.rewards):
        seen, why = _seen(experiment, rows, count, [])
        return TriedRows(seen, why, prompts, None, None, [], left_out, ())
    with open_trial(experiment, rows, left_out=left_out, gold=None) as trial:
        golds = [answer for answer in trial.gold.answers if answer is not None] if trial.gold is not None else []
        seen, why = _seen(experiment, rows, count, golds)
        gold = trial.gold_answers(is_costly=True, first=count)
        answers = _tried(trial, gold, prompts)
        source, way = (trial.gold.source, gold.way.name) if trial.gold is not None and gold.texts else (None, None)
        return TriedRows(seen, why, prompts, source, way, answers, left_out, tuple(trial.notes))


def _learned_rows(experiment: Experiment, count: int) -> TriedRows:
    rows = loaded_rows(experiment, max(count, _ROWS_FOR_LENGTHS))
    try:
        tokenizer = policy_tokenizer(experiment, wanted_by="a row as the trainer reads it")
    except ModelError as error:
        return TriedRows(None, str(error), [], None, None, [], {}, ())
    learned = learned_texts(experiment, rows, tokenizer)
    columns = {text.column: None for texts in learned for text in texts}
    lengths = [
        _token_lengths(column, [text.tokens for texts in learned for text in texts if text.column == column])
        for column in columns
    ]
    seen = PromptsSeen([], lengths, str(tokenizer.eos_token))
    notes = () if columns else ("the rows are token ids already",)
    return TriedRows(seen, None, [], None, None, [], {}, notes, learned[:count])


def _seen(
    experiment: Experiment, rows: list[Row], count: int, golds: list[str]
) -> tuple[PromptsSeen | None, str | None]:
    try:
        return prompts_seen(experiment, [row["prompt"] for row in rows], shown=count, answers=golds), None
    except ModelError as error:
        return None, str(error)


def _tried(trial: Trial, gold: GoldAnswers, prompts: list[str]) -> list[list[TriedAnswer]]:
    texts: list[tuple[str, int, str]] = []
    for row, prompt in enumerate(prompts):
        if row in gold.texts:
            texts.append(("gold", row, gold.texts[row]))
        texts += [("empty", row, ""), ("echo", row, prompt)]
    scores = trial.scored([(row, text) for _, row, text in texts])
    answers: list[list[TriedAnswer]] = [[] for _ in prompts]
    for (kind, row, text), scored in zip(texts, scores, strict=True):
        raw = {name: one.raw for name, one in scored.rewards.items()}
        errors = {name: one.error for name, one in scored.rewards.items() if one.error is not None}
        answers[row].append(TriedAnswer(kind, text, scored.total, raw, errors))
    return answers
