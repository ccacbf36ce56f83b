"""Find the right answer to each row and the words that a reward looks for, and score texts as answers to real rows.

The data contains the right answer (`18`), but seldom in the format that the rewards require (`<answer>18</answer>`,
`#### 18`). So the gold answers are written in several formats, and the degenerate answers are compared with the one
that the experiment's own rewards pay best.

The rewards are those of the training: functions, weights, gates, aggregate and truncation policy. Three things differ.
A reward that raises on a text does not end the trial, but the error is reported. Batch deviations and z-scores are
skipped, because they have no meaning here. Unreachable rewards are skipped.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from types import CodeType, FunctionType

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import AGGREGATES, Reward
from rlhf_cli.data.source import Row, missing_column
from rlhf_cli.errors import ConfigError, RewardError, ServerSilent, in_one_line
from rlhf_cli.evaluation.score_completions import policy_tokenizer, score_with
from rlhf_cli.plan.stack_building import reward_stack
from rlhf_cli.rewards.numeric import marked_answer
from rlhf_cli.rewards.stack.isolated import Isolated
from rlhf_cli.rewards.stack.reward_functions import required_columns
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from rlhf_cli.rewards.tags import DEFAULT_TAGS
from rlhf_cli.text.template_grammar import is_text, parse
from rlhf_cli.truncation import COMPONENT, Endings

GOLD_COLUMNS = (
    *("answer", "solution", "gold", "gold_answer", "ground_truth", "target", "reference", "expected", "output"),
    *("response", "summary", "chosen", "completion"),
)
"""Common column names for the right answer, the most specific first."""

_REASONING = "The question is read once more, and what it asks for is worked out in order."


@dataclass(frozen=True)
class Gold:
    """The right answers, one per row, None if a row has none. `source` is the column they are from."""

    answers: list[str | None]
    source: str


@dataclass(frozen=True)
class AnswerFormat:
    """A format of an answer: a text with `{gold}`. `name` is shown to the user."""

    name: str
    text: str

    def write(self, answer: str) -> str:
        """Return the answer in this format."""
        return self.text.replace("{gold}", answer)


def find_gold(rows: Sequence[Row], required: Sequence[str], *, named: str | None) -> Gold | None:
    """Return the gold answers of the rows, or None if no column qualifies; of known names, `required` ones come first.

    named: a column, or a text with `{column}`, from the user. Raise ConfigError or DataError if it is invalid.
    """
    columns = list(rows[0])
    if named is not None and "{" in named:
        template = parse(named, where="--gold", error=ConfigError)
        for column in template.columns:
            if column not in columns:
                raise missing_column(column, columns, "--gold")
        whole = [all(row[column] is not None for column in template.columns) for row in rows]
        filled = [template.fill(row) if is_whole else None for row, is_whole in zip(rows, whole, strict=True)]
        return Gold(filled, f"--gold '{named}'")
    if named is not None:
        if named not in columns:
            raise missing_column(named, columns, "--gold")
        return Gold([answer_of(row[named]) for row in rows], f"column {named}")
    known = [name for name in GOLD_COLUMNS if name in columns]
    known.sort(key=lambda name: name not in required)
    # If a reward reads only one column, it compares with that column; `entry` and `tests` hold no answer alone.
    only = {name for name in required if name not in ("prompt", "entry", "tests")}
    if len(only) == 1 and all(isinstance(rows[0].get(name), str) for name in only):
        known = [*only, *known]
    for name in known:
        answers = [answer_of(row[name]) for row in rows]
        if any(answers):
            return Gold(answers, f"column {name}")
    return None


def answer_of(value: object) -> str | None:
    """Return the text of a gold value: a text, a number, the first of alternatives, the last message; else None."""
    if is_text(value) and not isinstance(value, bool):
        return str(value).strip() or None
    if isinstance(value, list | tuple) and value:
        last = value[-1]
        return answer_of(last.get("content")) if isinstance(last, Mapping) else answer_of(value[0])
    return None


def final_part(answer: str) -> str:
    r"""Return what numeric_answer reads after `####`, else in `\boxed{}`, else a text after `####`, else all."""
    marked = marked_answer(answer)
    if marked is None and "####" in answer:
        marked = answer.rsplit("####", 1)[1].strip().partition("\n")[0]
    return (marked or answer).strip()


def ways_to_write(tags: Sequence[str]) -> list[AnswerFormat]:
    """Return the possible formats of a right answer, plain first. The last of the tags holds the answer."""
    before = "".join(f"<{tag}>{_REASONING}</{tag}>" for tag in tags[:-1])
    return [
        AnswerFormat("as it is", "{gold}"),
        AnswerFormat("".join(f"<{tag}>" for tag in tags), f"{before}<{tags[-1]}>{{gold}}</{tags[-1]}>"),
        AnswerFormat("<think> before it", f"<think>{_REASONING}</think>\n{{gold}}"),
        AnswerFormat("<answer>", "<answer>{gold}</answer>"),
        AnswerFormat("\\boxed{}", f"{_REASONING} The answer is \\boxed{{{{gold}}}}."),
        AnswerFormat("####", f"{_REASONING}\n#### {{gold}}"),
        AnswerFormat("a sentence", "The answer is {gold}"),
        AnswerFormat("Answer:", f"{_REASONING}\nAnswer: {{gold}}"),
        AnswerFormat("code block", "```python\n{gold}\n```"),
        AnswerFormat("JSON", '{"answer": "{gold}"}'),
    ]


_WORD = re.compile(r"[^\W\d_][\w' .,!?-]{1,30}")  # words and phrases, but not patterns, formats or keys with symbols


def reward_words(functions: Iterable[Callable[..., object]]) -> list[str]:
    """Return up to 40 plain texts in these rewards: in their arguments, their code and what it uses of its module."""
    seen = set[int]()
    texts = (text for function in functions for text in _texts(function, seen, {}) if _WORD.fullmatch(text))
    return list(dict.fromkeys(texts))[:40]


def _texts(value: object, seen: set[int], module: Mapping[str, object]) -> Iterator[str]:
    """Yield the texts in a value; `seen` are the ids of what to skip, `module` the globals of a code's module."""
    inner = list[object]()
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | set | frozenset | dict):
        inner = [*value]
    elif isinstance(value, functools.partial | Isolated):
        inner = [*getattr(value, "keywords", {}).values(), value.func]
    elif isinstance(value, CodeType):
        named = (module.get(name) for name in value.co_names)
        inner = [one for one in named if getattr(one, "__module__", module["__name__"]) == module["__name__"]]
        inner += value.co_consts
    elif id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, FunctionType):
            module, inner = value.__globals__, [value.__code__]
        elif isinstance(call := vars(type(value)).get("__call__"), FunctionType):  # of a class of the user's
            inner = [*getattr(value, "__dict__", {}).values(), call]
    for one in inner:
        yield from _texts(one, seen, module)


def after_truncation(
    experiment: Experiment, rows: Sequence[ScoredRow], texts: Sequence[str], is_cut: Sequence[bool], limit: int | None
) -> list[ScoredRow]:
    """Return the rows with the truncation policy applied to their totals, by the training code.

    is_cut: the limit of `limit` tokens truncated the text. If the policy adds to totals, every row gets an additional
    reward, `truncation`. A critic's value is not available here, so the rows of a policy that needs one stay unchanged.
    """
    policy = experiment.truncation.rule
    if policy.excludes:
        return [replace(row, total=None) if cut else row for row, cut in zip(rows, is_cut, strict=True)]
    if not policy.changes_total or not rows:
        return list(rows)
    import torch

    lengths = [0] * len(rows)
    if policy.reads_lengths:
        tokenizer = policy_tokenizer(experiment, wanted_by=f"truncation={policy.name}")
        counted = [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]
        lengths = [(limit or count) if cut else count for count, cut in zip(counted, is_cut, strict=True)]
    totals = torch.tensor([torch.nan if row.total is None else row.total for row in rows], dtype=torch.float64)
    endings = Endings(torch.tensor(list(is_cut)), torch.tensor(lengths), limit)
    changed = []
    for row, added in zip(rows, policy.added(totals, endings).tolist(), strict=True):
        given, total = (None, None) if row.total is None else (added, row.total + added)
        changed.append(ScoredRow(total, {**row.rewards, COMPONENT: ScoredReward(given, given, given)}))
    return changed


_ROWS_FOR_WAYS, _COSTLY_ROWS_FOR_WAYS = 16, 2


@dataclass(frozen=True)
class GoldAnswers:
    """The formatted gold answers and their scores, by row; empty if the data has none."""

    texts: Mapping[int, str]
    scores: Mapping[int, ScoredRow]
    way: AnswerFormat


class Trial:
    """A scorer of texts with one reward stack, which must stay open.

    `gold` are the right answers, if a column contains them; `tags` those that a reward requires; `notes` list the
    differences from a training.
    """

    def __init__(
        self, experiment: Experiment, stack: RewardStack, rows: list[Row], *, gold: str | None, notes: list[str]
    ) -> None:
        self.experiment, self.stack, self.rows, self.notes = experiment, stack, rows, notes
        self.num_texts = 0
        required = [column for component in stack.components for column in required_columns(component.score)]
        self.gold: Gold | None = find_gold(rows, required, named=gold)
        self.is_gold_named = gold is not None
        self.limit_tokens = experiment.trainer.whole("max_completion_length")
        self.tags = _tags(experiment)

    def scored(self, texts: Sequence[tuple[int, str]], *, is_cut: Sequence[bool] | None = None) -> list[ScoredRow]:
        """Return the scores of (row, text); `is_cut`: the length limit truncated it, None if no text was truncated."""
        if not texts:
            return []
        self.num_texts += len(texts)
        rows: list[Row] = []
        for row, text in texts:
            is_chat = isinstance(self.rows[row].get("prompt"), list)
            completion: object = [{"role": "assistant", "content": text}] if is_chat else text
            rows.append({**self.rows[row], "completion": completion})
        scored = score_with(self.stack, self.experiment, rows, where="data").rows
        for name, error in ((name, reward.error) for row in scored for name, reward in row.rewards.items()):
            # Any other text would wait as long.
            if error is not None and error.startswith(f"{ServerSilent.__name__}: "):
                silent = in_one_line(error.partition(": ")[2])
                raise RewardError(f"reward {name!r} cannot be tried", where=f"rewards.{name}", got=silent)
        cut = list(is_cut) if is_cut is not None else [False] * len(texts)
        return after_truncation(self.experiment, scored, [text for _, text in texts], cut, self.limit_tokens)

    def gold_answers(self, *, is_costly: bool, first: int | None = None) -> GoldAnswers:
        """Return the gold answers (of the `first` rows) in the format paid best; if costly, few rows decide on it."""
        ways = ways_to_write(self.tags)
        if self.gold is None:
            return GoldAnswers({}, {}, ways[0])
        known = [row for row, answer in enumerate(self.gold.answers[:first]) if answer is not None]
        way = ways[0]
        if known and not self.is_gold_named:
            few = known[: _COSTLY_ROWS_FOR_WAYS if is_costly else _ROWS_FOR_WAYS]
            scored = self.scored([(row, _written(self.gold, row, form)) for form in ways for row in few])
            scored_in = {form: scored[place * len(few) : (place + 1) * len(few)] for place, form in enumerate(ways)}
            totals = {form: [row.total for row in scored_in[form] if row.total is not None] for form in ways}
            way = max(ways, key=lambda form: fmean(totals[form] or [-math.inf]))
        texts = {row: _written(self.gold, row, way) for row in known}
        return GoldAnswers(texts, dict(zip(known, self.scored(list(texts.items())), strict=True)), way)


@contextmanager
def open_trial(
    experiment: Experiment, rows: list[Row], *, left_out: Mapping[str, str], gold: str | None
) -> Iterator[Trial]:
    """Open a trial of an experiment's rewards without those in `left_out`; `gold` is `named` of `find_gold`."""
    tried, notes = _as_tried(experiment, left_out)
    stack = reward_stack(tried, device="cpu")
    try:
        yield Trial(tried, stack, rows, gold=gold, notes=notes)
    finally:
        stack.close()


def _as_tried(experiment: Experiment, left_out: Mapping[str, str]) -> tuple[Experiment, list[str]]:
    """Return the experiment with the rewards and the aggregate that a trial can run, and what differs."""
    notes: list[str] = []
    rewards: dict[str, Reward] = {}
    for name, reward in experiment.rewards.items():
        if name in left_out:
            continue
        changed: dict[str, object] = {}
        if reward.on_error == "raise":
            changed["on_error"] = "exclude"
        if reward.normalize != "none":
            changed["normalize"] = "none"
            notes.append(f"rewards.{name}.normalize is ignored: it needs the deviation of a training")
        kept = [gate for gate in reward.gates if gate.by not in left_out]
        if len(kept) < len(reward.gates):
            changed["gate"] = kept or None
            notes.append(f"a gate of rewards.{name} stays open: the reward it reads is skipped")
        if not isinstance(reward.weight, float):
            notes.append(f"rewards.{name}.weight is that of the first step, {reward.weight.start:g}")
        rewards[name] = reward.model_copy(update=changed)
    aggregate = experiment.aggregate
    if aggregate == "normalize_then_sum" or (left_out and aggregate not in AGGREGATES):
        why = "z-scores need a group of a training" if aggregate in AGGREGATES else "its function reads skipped rewards"
        aggregate, notes = "sum", [*notes, f"aggregate is sum here: {why}"]
    return experiment.model_copy(update={"rewards": rewards, "aggregate": aggregate}), notes


def _written(gold: Gold, row: int, way: AnswerFormat) -> str:
    answer = gold.answers[row]
    assert answer is not None
    return way.write(answer if way.text == "{gold}" else final_part(answer))


def _tags(experiment: Experiment) -> list[str]:
    """Return the tags that a reward of the experiment requires."""
    for reward in experiment.rewards.values():
        tags = reward.args.get("tags")
        if isinstance(tags, list) and tags and all(isinstance(tag, str) for tag in tags):
            return [str(tag) for tag in tags]
    return list(DEFAULT_TAGS)
