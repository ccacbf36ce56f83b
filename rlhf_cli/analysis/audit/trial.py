"""Score texts as answers to real rows, truncation policy included.

The rewards are those of the training: functions, weights, gates, aggregate and truncation policy. Three things differ.
A reward that raises on a text does not end the trial, but the error is reported. Batch deviations and z-scores are
skipped, because they have no meaning here. Unreachable rewards are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from rlhf_cli.analysis.audit.gold_answers import DEFAULT_TAGS, AnswerFormat, Gold, final_part, find_gold, ways_to_write
from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.source import Row
from rlhf_cli.evaluation.score_completions import policy_tokenizer, score_with
from rlhf_cli.rewards.stack.reward_functions import required_columns
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from rlhf_cli.trainers.assemble.stack_building import reward_stack

COMPONENT = "truncation"


def after_truncation(
    experiment: Experiment, rows: Sequence[ScoredRow], texts: Sequence[str], is_cut: Sequence[bool], limit: int | None
) -> list[ScoredRow]:
    """Return the rows with the truncation policy applied to their totals, by the training code.

    is_cut: the length limit of `limit` tokens truncated the text. If the policy adds to totals, every row gets it as an
        additional reward, `truncation`; a row that the policy excludes has no total. `bootstrap` needs a critic's
        value, which is not available here, so its rows stay unchanged.
    """
    policy = experiment.truncation.policy
    if policy in ("none", "bootstrap") or not rows:
        return list(rows)
    if policy == "exclude":
        return [replace(row, total=None) if cut else row for row, cut in zip(rows, is_cut, strict=True)]
    import torch

    from rlhf_cli.rewards.stack.truncation import Endings
    from rlhf_cli.trainers.assemble.stack_building import truncation_policy

    lengths = [0] * len(rows)
    if policy == "soft_overlong":
        tokenizer = policy_tokenizer(experiment, wanted_by="truncation=soft_overlong")
        counted = [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]
        lengths = [(limit or count) if cut else count for count, cut in zip(counted, is_cut, strict=True)]
    totals = torch.tensor([torch.nan if row.total is None else row.total for row in rows], dtype=torch.float64)
    endings = Endings(torch.tensor(list(is_cut)), torch.tensor(lengths), limit)
    changed = []
    for row, added in zip(rows, truncation_policy(experiment).added(totals, endings).tolist(), strict=True):
        given = None if row.total is None else added
        reward = ScoredReward(given, given, given)
        total = None if row.total is None else row.total + added
        changed.append(ScoredRow(total, {**row.rewards, COMPONENT: reward}))
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

    `gold` are the right answers, or None if no column contains them; `tags` those that a reward requires;
    `limit_tokens` is the longest answer of the training. `notes` list the differences from a training.
    """

    def __init__(
        self, experiment: Experiment, stack: RewardStack, rows: list[Row], *, gold: str | None, notes: list[str]
    ) -> None:
        self.experiment, self.stack, self.rows, self.notes = experiment, stack, rows, notes
        self.num_texts = 0
        required = [column for component in stack.components for column in required_columns(component.score)]
        self.gold: Gold | None = find_gold(rows, required, named=gold)
        self.is_gold_named = gold is not None
        limit = trl_args.setting(
            trl_args.trainer(experiment.trainer.trl), experiment.trainer.trl_args, "max_completion_length"
        )
        self.limit_tokens = limit if isinstance(limit, int) else None
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
        cut = list(is_cut) if is_cut is not None else [False] * len(texts)
        return after_truncation(self.experiment, scored, [text for _, text in texts], cut, self.limit_tokens)

    def gold_answers(self, *, is_costly: bool, first: int | None = None) -> GoldAnswers:
        """Return the gold answers, in the format that these rewards pay best, and their scores.

        `is_costly`: use fewer rows to choose the format. `first`: only the first rows, None for all.
        """
        ways = ways_to_write(self.tags)
        if self.gold is None:
            return GoldAnswers({}, {}, ways[0])
        known = [row for row, answer in enumerate(self.gold.answers[:first]) if answer is not None]
        if not known or self.is_gold_named:
            ways = ways[:1]
        way = ways[0]
        if len(ways) > 1:
            few = known[: _COSTLY_ROWS_FOR_WAYS if is_costly else _ROWS_FOR_WAYS]
            scored = self.scored([(row, _written(self.gold, row, one)) for one in ways for row in few])
            of_way = {one: scored[place * len(few) : (place + 1) * len(few)] for place, one in enumerate(ways)}
            way = max(ways, key=lambda one: _mean(of_way[one]))
        texts = {row: _written(self.gold, row, way) for row in known}
        return GoldAnswers(texts, dict(zip(known, self.scored(list(texts.items())), strict=True)), way)


@contextmanager
def open_trial(
    experiment: Experiment, rows: list[Row], *, left_out: Mapping[str, str], gold: str | None
) -> Iterator[Trial]:
    """Open a trial of an experiment's rewards without those in `left_out`; `gold` as in `find_gold`.

    Raise the errors of building the rewards, and DataError or ConfigError for an invalid gold column.
    """
    tried, notes = _as_tried(experiment, left_out)
    stack = reward_stack(tried, device="cpu")
    try:
        yield Trial(tried, stack, rows, gold=gold, notes=notes)
    finally:
        stack.close()


def _as_tried(experiment: Experiment, left_out: Mapping[str, str]) -> tuple[Experiment, list[str]]:
    notes = []
    rewards = {}
    for name, reward in experiment.rewards.items():
        if name in left_out:
            continue
        changed: dict[str, object] = {}
        if reward.on_error == "raise":
            changed["on_error"] = "exclude"
        if reward.normalize != "none":
            changed["normalize"] = "none"
            notes.append(f"rewards.{name}.normalize is left out: its deviation is that of a training")
        kept = [gate for gate in reward.gates if gate.by not in left_out]
        if len(kept) < len(reward.gates):
            changed["gate"] = kept or None
            notes.append(f"a gate of rewards.{name} stays open: what it reads is left out")
        if not isinstance(reward.weight, float):
            notes.append(f"rewards.{name}.weight is the one of the first step, {reward.weight.start:g}")
        rewards[name] = reward.model_copy(update=changed)
    changed = {"rewards": rewards}
    if experiment.aggregate == "normalize_then_sum":
        changed["aggregate"] = "sum"
        notes.append("aggregate is taken as sum: z-scores are those of a group in training")
    return experiment.model_copy(update=changed), notes


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


def _mean(rows: Sequence[ScoredRow]) -> float:
    totals = [row.total for row in rows if row.total is not None]
    return fmean(totals) if totals else -math.inf
