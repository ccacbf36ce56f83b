"""Count the tokens of rows as TRL makes them, and tell which rows a trainer leaves out because they are too long."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlhf_cli.config.schema.trainer_sections import ENVIRONMENT_COLUMN
from rlhf_cli.config.trl_args import package_dir
from rlhf_cli.data.dialogues import ANSWERS
from rlhf_cli.data.images import in_parts
from rlhf_cli.data.learnt_columns import read_columns
from rlhf_cli.data.model_limits import TEMPLATE_ERRORS
from rlhf_cli.data.preferences import IDS
from rlhf_cli.data.rows import DIALOGUES, Messages, RowTable, values_of
from rlhf_cli.data.source import Row
from rlhf_cli.errors import DataError, ModelError
from rlhf_cli.models.tokenizer_files import TokenizerFiles, context_of, language_part, render_chat, vocab_size_of
from rlhf_cli.models.weight_shapes import TINY_VOCABULARY
from rlhf_cli.plan.batches import RowLengths
from rlhf_cli.plan.checks.facts import Check, DataFacts, Findings, ReadSource, Subject
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.stack_building import told_tools
from rlhf_cli.tables.trl_trainers import TEXT, ColumnSet, too_short_for_all
from rlhf_cli.text.json_values import JsonTree

ASKING = ("prompt", "tools", "chat_template_kwargs", ENVIRONMENT_COLUMN)  # the columns that make a prompt
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_WHOLE = (*DIALOGUES, TEXT)
_IDS = ("input_ids", "chosen_ids", "rejected_ids")
_RENDERED = 200
_RESIZES = "model.resize_token_embeddings(len(tokenizer)) and save_pretrained make a model that knows it"
_OTHER_IDS = "another tokenizer made these ids: make them with the model's, or write texts"
_COUNTED = 64  # rows that are counted, those with the most characters: to tokenize a hundred thousand takes seconds
_DROP_LONG_ROWS = ("SFTTrainer", "DPOTrainer", "KTOTrainer", "RewardTrainer")
_CUT_UNMEASURED = ("ORPOTrainer", "CPOTrainer", "GKDTrainer")  # a run measures the rows of the others, and tells
_NEED_PROMPTS = ("GKDTrainer", "GOLDTrainer")  # they cut the beginning, and a row needs a token of its prompt
_GKD_MOST = 1024  # tokens at which TRL's collator cuts a row without max_length
_ADDED = 8  # upper bound on the special tokens added to a plain text


class _Text(NamedTuple):
    """What is tokenized, and how many tokens TRL adds to it beside the tokenizer's own special ones."""

    text: str
    has_special: bool
    added: int


@dataclass(frozen=True)
class RowCounter:
    """Count the tokens of rows; `settings` are the template's variables, `columns` those that are read beside the
    texts; `in_parts`: the template gets contents in parts. `told` returns what it is told of the tools of a row's
    environment. With `adds_ends` the trainer adds the tokens that begin and
    end a row, unless they are there, and the tokenizer none.
    """

    tokenizer: TokenizerFiles
    settings: Mapping[str, object]
    columns: ColumnSet = ()
    adds_ends: bool = False
    in_parts: bool = False
    told: Callable[[object], list[JsonTree]] | None = None

    def prompts(self, rows: Sequence[Row], least: int = 0) -> list[int]:
        """Return the tokens of the rows' prompts, 0 without one; any number up to `least` may be 0."""
        return self._longest([[self._text(row, row.get("prompt") or "", asks=True)] for row in rows], least)

    def texts(self, row: Row) -> list[str]:
        """Return what is tokenized of a row: its prompt, and the texts that are trained on."""
        return [self._text(row, text, asks=False).text for text in (row.get("prompt") or "", *_wholes(row))]

    def wholes(self, rows: Sequence[Row], least: int = 0) -> list[int]:
        """Return the tokens of rows that are trained on: the prompt with its longest answer, or the whole text."""
        counts = self._longest([[self._text(row, text, asks=False) for text in _wholes(row)] for row in rows], least)
        return [max(count, _ids(row)) for count, row in zip(counts, rows, strict=True)]

    def answers(self, rows: Sequence[Row]) -> list[int]:
        """Return the tokens of each row's answer: the last message of a dialogue, or what stands behind a prompt."""
        talks = [[talk[:-1] for talk in _wholes(row) if isinstance(talk, list)] for row in rows]
        asked = [[row["prompt"]] if row.get("prompt") else own for row, own in zip(rows, talks, strict=True)]
        texts = [[self._text(row, text, asks=True) for text in own] for row, own in zip(rows, asked, strict=True)]
        return [whole - prompt for whole, prompt in zip(self.wholes(rows), self._longest(texts, 0), strict=True)]

    def _text(self, row: Row, text: object, *, asks: bool) -> _Text:
        is_chat = isinstance(text, list)
        written = self._by_template(row, text, asks=asks) if isinstance(text, list) else str(text)
        if not self.adds_ends:
            return _Text(written, has_special=not is_chat, added=int(not is_chat and not asks))
        begin, end = self.tokenizer.special("bos_token"), self.tokenizer.special("eos_token")
        ends = asks or (end is not None and written.endswith(end))
        return _Text(written, has_special=False, added=(not written.startswith(begin or "")) + (not ends))

    def _by_template(self, row: Row, messages: Messages, *, asks: bool) -> str:
        """Return the dialogue as the chat template writes it; its contents alone if it cannot."""
        read = {name: row.get(name) for name in self.columns}
        given = read.get("chat_template_kwargs")
        tools = self.told(row.get(ENVIRONMENT_COLUMN)) if self.told is not None else read.get("tools")
        own = {"tools": tools or None} | (given if isinstance(given, dict) else {})
        # The run reports a template that is missing, or fails on this conversation.
        with contextlib.suppress(*TEMPLATE_ERRORS):
            settings = {**self.settings, **own, "add_generation_prompt": asks}
            if self.tokenizer.chat_template is not None:
                return rendered(in_parts(messages) if self.in_parts else messages, self.tokenizer, settings)
        return "".join(_contents(messages))

    def _longest(self, texts: Sequence[Sequence[_Text]], least: int) -> list[int]:
        """Return the tokens of each row's longest text, 0 for a text of at most `least` bytes."""
        longest = [0] * len(texts)
        for has_special in (True, False):
            # A token is at least a byte, so most texts need no count.
            counted = [
                (row, text)
                for row, own in enumerate(texts)
                for text in own
                if text.has_special is has_special and len(text.text.encode()) + _ADDED > least
            ]
            lengths = self.tokenizer.lengths([text.text for _, text in counted], special_tokens=has_special) or ()
            for (row, text), tokens in zip(counted, lengths, strict=True):
                longest[row] = max(longest[row], tokens + text.added)
        return longest


def _wholes(row: Row) -> list[object]:
    """Return the texts and dialogues of a row that are trained on, each answer after the prompt."""
    asked = row.get("prompt") or ""
    answers = [answer for name in ANSWERS if (answer := row.get(name))]
    joined = [
        [*(asked if isinstance(asked, list) else ()), *answer] if isinstance(answer, list) else f"{asked}{answer}"
        for answer in answers
    ]
    return [*(row[name] for name in _WHOLE if row.get(name)), *joined]


def _contents(text: object) -> list[str]:
    if not isinstance(text, list):
        return [str(text)]
    return [str(message.get("content")) for message in text if isinstance(message, Mapping)]


def _ids(row: Row) -> int:
    """Return the number of token ids in a row, 0 for texts."""
    return max((len(value) for name in _IDS if isinstance(value := row.get(name), list)), default=0)


def characters_of(row: Row) -> int:
    """Return the size of a row in characters, and of token ids in tokens."""
    texts = (row.get("prompt") or "", *_wholes(row))
    return max(_ids(row), *(sum(map(len, _contents(text))) for text in texts))


def counter_of(subject: Subject) -> RowCounter | None:
    """Return what counts an experiment's rows, None if only transformers can read the policy's tokenizer."""
    tokenizer, trainer = subject.tokenizer, subject.experiment.trainer
    if tokenizer is None or tokenizer.lengths([""], special_tokens=False) is None:
        return None
    given = trainer.args.get("chat_template_kwargs")
    settings, reads_images = given if isinstance(given, Mapping) else {}, bool(subject.reads_images)
    told = told_tools(subject.experiment) if trainer.row.generates and subject.experiment.interacts else None
    return RowCounter(tokenizer, settings, trainer.row.along, trainer.row.adds_ends, in_parts=reads_images, told=told)


def asking_columns(rows: RowTable) -> list[Row]:
    """Return what rows have in the columns ASKING."""
    named = {name: values_of(rows, name) for name in ASKING if name in rows.column_names}
    return [dict(zip(named, values, strict=True)) for values in zip(*named.values(), strict=True)]


def rendered(messages: Messages, tokenizer: TokenizerFiles, settings: Mapping[str, object]) -> str:
    """Return a prompt's messages as the chat template writes them. Raise one of TEMPLATE_ERRORS."""
    special = {name: token for name in SPECIAL if (token := tokenizer.special(name)) is not None}
    return render_chat(tokenizer.template_with(settings.get("tools")), messages, special, settings)


def _rows(subject: Subject, read: ReadSource) -> list[Row]:
    """Return what the trainer reads of the rows of a source, with the text that SFT learns in the column TEXT."""
    if (table := read.rows) is None:
        return []
    trainer, field = subject.experiment.trainer.row, subject.experiment.trainer.text_field
    columns = read_columns(trainer, table.column_names, text_field=field)
    if trainer.trains == "reward model" and set(IDS) <= set(table.column_names):  # the texts beside them are left out
        columns = [*IDS]
    columns += [ENVIRONMENT_COLUMN] * (trainer.generates and ENVIRONMENT_COLUMN in table.column_names)
    rows = map(table.select_columns(columns).__getitem__, range(len(table)))
    return [row | {TEXT: row[field]} if field in row else row for row in rows]


def _largest(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=characters_of, reverse=True)[:_COUNTED]


def longest_rows(subject: Subject, data: DataFacts, most_prompt_tokens: int | None) -> RowLengths | None:
    """Return the longest prompt and row of all sources, in tokens, of those with the most characters; None if the rows
    or the policy's tokenizer are not on this machine. Prompts with more than `most_prompt_tokens` are dropped or cut.
    """
    rows, counter = [row for read in data.sources for row in _rows(subject, read)], counter_of(subject)
    if not rows or counter is None:
        return None
    prompt = max(counter.prompts(_largest([{name: row.get(name) for name in ASKING} for row in rows])))
    if subject.experiment.trainer.row.generates:
        return RowLengths(min(prompt, most_prompt_tokens or prompt), 0)
    return RowLengths(prompt, max(counter.wholes(_largest(rows))))


def vocabulary_problems(subject: Subject, data: DataFacts) -> Findings:
    """Yield an error for the first row of each source with a token beyond the model's vocabulary: a token id, or a
    token that was added to the tokenizer and not to the model. Spare ones, which no text has, do no harm.
    """
    model, tokenizer = subject.experiment.model, subject.tokenizer
    size = TINY_VOCABULARY if model.build is not None else vocab_size_of(subject.config_below(model.path))
    if size is None:
        return
    known = tokenizer.tokens if tokenizer is not None else {}
    beyond = {token: number for token, number in known.items() if number >= size}
    counter = counter_of(subject) if beyond else None
    for read in data.sources:
        for place, row in enumerate(_rows(subject, read), 1):
            ids = [ids for name in _IDS if isinstance(ids := row.get(name), list) and ids]
            ends = [end for listed in ids for end in (min(listed), max(listed)) if not 0 <= end < size]
            texts = counter.texts(row) if counter is not None and place <= _RENDERED else []
            wrong = [(f"the id {end}", _OTHER_IDS) for end in ends]
            wrong += [
                (f"{token!r}, id {beyond[token]}", _RESIZES) for token in beyond if any(token in one for one in texts)
            ]
            for got, advice in wrong[:1]:
                what, where = "a row has a token that the model does not know", f"{read.source.name}, row {place}"
                where, expected = f"{where} (the first row is 1)", f"ids below the model's vocab_size of {size}"
                yield read.source.with_file(ModelError(what, where=where, got=got, expected=expected, advice=advice))
            if wrong:
                break


def start_notices(subject: Subject, data: DataFacts) -> Findings:
    """Yield a notice for each source whose first row has a plain text that would begin with a token twice, or a prompt
    behind which the tokenizer ends the text.
    """
    if (tokenizer := subject.tokenizer) is None:
        return
    for read in data.sources:
        for row in _rows(subject, read)[:1]:
            if isinstance(row.get("prompt"), str) and (end := tokenizer.added_end) is not None:
                text = f"the tokenizer adds {end} behind every text, so behind a prompt, too; model.tokenizer=FOLDER"
                yield Notice(read.source.name, f"{text} names another, or write the prompts as messages")
            texts = (text for text in (row.get("prompt"), *_wholes(row)) if isinstance(text, str))
            if (token := next(filter(None, map(tokenizer.doubled_start, texts)), None)) is not None:
                text = f"{token} would begin a text twice: the first row has it, and the tokenizer adds it"
                yield Notice(read.source.name, f"{text}; take it out of the rows")


_MARK = "\ue000"  # a private character of Unicode


def _answered(subject: Subject, read: ReadSource) -> list[str]:
    """Return the first rows' dialogues that end with an answer, as the chat template writes them."""
    if (counter := counter_of(subject)) is None:
        return []
    rows = _rows(subject, read)[:_RENDERED]
    written = [pair for row in rows for pair in zip(_wholes(row), counter.texts(row)[1:], strict=True)]
    return [text for talk, text in written if isinstance(talk, list) and talk[-1]["role"] in ("assistant", "model")]


def assistant_problems(subject: Subject, data: DataFacts) -> Check[TokenizerFiles | None]:
    """Return the tokenizer with the chat template that TRL learns by: under `assistant_only_loss`, if the model's does
    not mark its messages, TRL's own variant, and yield a notice if that writes dialogues in another way.
    """
    tokenizer, key = subject.tokenizer, "trainer.args.assistant_only_loss"
    own = tokenizer.chat_template if tokenizer is not None else None
    is_asked = subject.experiment.trainer.setting("assistant_only_loss") is True
    if tokenizer is None or own is None or not is_asked or re.search(r"\{%-?\s*generation\s*-?%\}", own):
        return tokenizer
    files = (package_dir("trl") / "chat_templates").glob("*_training.jinja")
    known = {file.with_name(file.name.replace("_training", "")).read_text("utf-8"): file for file in files}
    if own not in known:
        what = "the chat template does not mark the assistant's messages, and TRL has no variant of it that does"
        expected = "model.chat_template with {% generation %} and {% endgeneration %} around them"
        raise ModelError(what, where=subject.where(key), expected=expected, hint=f"{key}=false")
    learnt = replace(tokenizer, other_template=known[own].read_text("utf-8"))
    for read in data.sources:
        texts = [*zip(*(_answered(replace(subject, tokenizer=one), read) for one in (tokenizer, learnt)), strict=True)]
        if others := [(ours, theirs) for ours, theirs in texts if ours != theirs]:
            text = f"under {key}, TRL learns by a chat template of its own, which writes {len(others)} of {len(texts)}"
            text += f" dialogues of {read.source.name} in another way"
            keeps = any(ours.count("<think>") < theirs.count("<think>") for ours, theirs in others)
            yield Notice("model", text + ", with <think> where the model's leaves it out" * keeps)
    return learnt


def end_notices(subject: Subject, data: DataFacts) -> Findings:
    """Yield a notice for each source with dialogues in which what is learnt does not end where the policy stops."""
    trainer, tokenizer = subject.experiment.trainer, subject.tokenizer
    is_learnt = trainer.row.learns_from and trainer.row.trains == "language model" and not trainer.row.adds_ends
    if tokenizer is None or not is_learnt or trainer.row.answers_up_to is not None:
        return
    ids = subject.config_below(subject.experiment.model.path, "generation_config.json").get("eos_token_id")
    ends = [token for token, number in tokenizer.tokens.items() if number in (ids if isinstance(ids, list) else [ids])]
    ends.append(str(trainer.setting("eos_token") or tokenizer.special("eos_token")))
    if trainer.setting("assistant_only_loss") is True:  # what is learnt ends at the mark
        marked = re.sub(r"(\{%-?\s*endgeneration)", _MARK + r"\1", tokenizer.chat_template or "")
        subject = replace(subject, tokenizer=replace(tokenizer, other_template=marked))
    for read in data.sources:
        texts = [(text.rpartition(_MARK)[0] or text).rstrip() for text in _answered(subject, read)]
        if unended := sum(not text.endswith(tuple(ends)) for text in texts):
            text = f"{unended} of {len(texts)} answers of {read.source.name} do not end in {ends[-1]} under the chat"
            text += " template: it will not learn to stop. Write {{ eos_token }} behind answers in model.chat_template"
            yield Notice("model", text + ", or name what ends them in trainer.args.eos_token" * (trainer.name == "sft"))


def context_problems(subject: Subject, data: DataFacts) -> Findings:
    """Yield an error for each source with rows beyond a table of positions: of the policy, its teacher or its critic;
    and for a reward model's `max_length` beyond its own (without one it cuts texts at the last position). Yield a
    notice where the policy's are rotary. Its prompts have a check of their own, with room for the answer.
    """
    experiment, trainer, build = subject.experiment, subject.experiment.trainer, subject.experiment.model.build
    counter, limit = counter_of(subject), trainer.whole("max_length")
    answer = (trainer.whole("max_completion_length") or 0) if trainer.row.reads_prompts else None
    most = math.inf  # a longer prompt is refused, dropped or cut
    for key, path in {"model.path": experiment.model.path, **subject.named_models()}.items():
        config, is_policy = language_part(subject.config_below(path)), key == "model.path"
        context = build.context_tokens if is_policy and build is not None else context_of(config)
        is_rotary = (is_policy and build is not None) or any("rope" in name or "rotary" in name for name in config)
        if is_policy and answer is not None:
            most = context or most
            continue
        if key.startswith("rewards."):
            key, asked = key.replace(".model", ".max_length"), experiment.rewards[key.split(".")[1]].max_length
            if asked is not None and context is not None and asked > context:
                what, hint = "max_length exceeds the number of positions of the reward model", f"{key}={context}"
                yield ModelError(what, where=subject.where(key), got=asked, expected=f"at most {context}", hint=hint)
            continue
        is_cut = answer is None and limit is not None and context is not None and limit <= context
        if context is None or counter is None or is_cut or (is_rotary and not is_policy):
            continue
        for read in data.sources:
            rows = _rows(subject, read)
            if answer is None:
                counts = counter.wholes(rows, context)
            else:
                counts = [tokens + answer for tokens in counter.prompts(rows, context - answer)]
            if long := [tokens for tokens in counts if context < tokens <= most]:
                what = f"{len(long)} of {len(rows)} rows are longer than the context of {key}, {context} tokens"
                hint, got = f"trainer.args.max_length={context}", f"the longest has {max(long)} tokens"
                if is_rotary:
                    yield Notice(read.source.name, f"{what}, {got}; {hint} cuts them")
                    continue
                expected, room = f"at most {context}: it has no positions beyond, and fails there", context - max(long)
                if answer is not None:
                    got += f", {answer} of them max_completion_length"
                    hint = f"trainer.args.max_completion_length={room + answer}" if room + answer > 0 else ""
                yield DataError(what, where=read.source.name, got=got, expected=expected, hint=hint or None)


def length_problems(subject: Subject, data: DataFacts) -> Check[DataFacts]:
    """Yield an error if `max_length` leaves no row of a source, or no answer to a mean over answers, and a notice of
    the rows that are dropped; return the facts without them: a pair of a reward model with a longer text, and a row of
    other trainers whose prompt fills it. ORPO and CPO cut the answer instead, GKD and GOLD the beginning: a notice says
    so, or an error if they would cut a whole prompt.
    """
    trainer, counter = subject.experiment.trainer, counter_of(subject)
    name, loss, is_pair = trainer.row.name, trainer.setting("loss_type"), trainer.row.trains == "reward model"
    limit = trainer.whole("max_length") or (_GKD_MOST if name == "GKDTrainer" else None)
    is_kept = trainer.setting("packing") is True or trainer.setting("truncation_mode") == "keep_end"
    cuts = name == "ORPOTrainer" or (name == "CPOTrainer" and loss in ("ipo", "simpo"))
    if limit is None or counter is None:
        return data
    for read in data.sources if name in (*_CUT_UNMEASURED, *_NEED_PROMPTS) else ():
        rows = _rows(subject, read)
        answers = counter.answers(rows) if name in _NEED_PROMPTS else []
        if filled := [tokens for tokens in answers if tokens >= limit]:
            what = f"max_length cuts the whole prompt of {len(filled)} of {len(rows)} rows, where TRL ends a run"
            got = f"trainer.args.max_length={limit}, and an answer of {max(filled)} tokens"
            hint = f"trainer.args.max_length={max(counter.wholes(rows))}"
            yield DataError(what, where=read.source.name, got=got, expected="room for a token before it", hint=hint)
            continue
        longer = [tokens for tokens in counter.wholes(rows, limit) if tokens > limit]
        if longer and name in _CUT_UNMEASURED:
            text = f"trainer.args.max_length={limit} cuts {len(longer)} of {len(rows)} rows"
            yield Notice(read.source.name, f"{text}; the longest has {max(longer)} tokens")
    if is_kept or not (cuts or name in _DROP_LONG_ROWS):
        return data
    count, most = (counter.wholes, limit) if is_pair else (counter.prompts, limit - 1)
    for read in data.sources:
        rows = _rows(subject, read)
        dropped = {place: tokens for place, tokens in enumerate(count(rows, most)) if tokens > most}
        long = dropped.values()
        if long and cuts:
            what = f"max_length cuts the whole answer of {len(long)} of {len(rows)} rows"
            got = f"trainer.args.max_length={limit}, and a prompt of {max(long)} tokens"
            expected = "room for an answer: the mean over no tokens is NaN"
            hint = f"trainer.args.max_length={max(counter.wholes(rows))}"
            yield DataError(what, where=read.source.name, got=got, expected=expected, hint=hint)
        elif long and len(long) == len(rows) == read.num_selected:
            longest = max(counter.wholes(rows))
            yield DataError(**too_short_for_all(len(rows), limit, min(long), longest), where=read.source.name)
        elif long:
            data = data.without(read, dropped, subject.experiment)
            text = f"trainer.args.max_length={limit} leaves out {len(long)} of {len(rows)} rows"
            yield Notice(read.source.name, f"{text}; the longest has {max(long)} tokens")
    return data
