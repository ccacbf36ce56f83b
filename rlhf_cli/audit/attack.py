"""Scores degenerate answers by an experiment's own rewards and holds them against the gold answers.

The rewards are those of the training: functions, weights, gates, aggregate and truncation policy. Three things differ.
A reward that raises on such a text does not end the audit: it is told. Deviations and z-scores of a batch are left
out, which have no meaning here. And what cannot be reached is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median_low

from rlhf_cli.assemble.stack_building import reward_stack
from rlhf_cli.audit.audit_result import AuditResult, KindResult
from rlhf_cli.audit.compared_with_gold import GoldRow, compared, contributions_of, main_component
from rlhf_cli.audit.cut_off import after_truncation
from rlhf_cli.audit.degenerate_answers import KINDS, Asked, Kind
from rlhf_cli.audit.gold_answers import DEFAULT_TAGS, Gold, Way, final_part, find_gold, ways_to_write
from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.formats import Row
from rlhf_cli.evaluate.score_completions import score_with
from rlhf_cli.measure.scored_rows import ScoredRow
from rlhf_cli.numerics.intervals import wilson
from rlhf_cli.rewards.completion_text import content_text
from rlhf_cli.stack.reward_functions import required_columns
from rlhf_cli.stack.reward_stack import RewardStack

LEAST_SHARE = 0.2
"""A kind is a hole where its share of rows is surely above this: its interval of 95 % lies there whole."""
_ROWS_FOR_WAYS = 16
_MOST_CHARACTERS = 20_000
_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Plan:
    """Says what to try: on which rows, which kinds, how many variants of each (None: all), which gold answers."""

    rows: list[Row]
    kinds: tuple[Kind, ...] = KINDS
    variants: int | None = None
    gold: str | None = None


def attack(experiment: Experiment, plan: Plan, *, left_out: dict[str, str]) -> AuditResult:
    """Return what the degenerate answers got, and the gold ones.

    experiment: as it is trained; `left_out` names rewards that are not attacked, with the reason. Raises what the
    rewards raise while they are built, and DataError or ConfigError for a gold column that there is not.
    """
    attacked, notes = _as_attacked(experiment, left_out)
    stack = reward_stack(attacked, device="cpu")
    try:
        trial = _Trial(attacked, stack, plan)
        return trial.result(left_out, notes)
    finally:
        stack.close()


def _as_attacked(experiment: Experiment, left_out: dict[str, str]) -> tuple[Experiment, list[str]]:
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
        rewards[name] = reward.model_copy(update=changed)
    changed = {"rewards": rewards}
    if experiment.aggregate == "normalize_then_sum":
        changed["aggregate"] = "sum"
        notes.append("aggregate is taken as sum: z-scores are those of a group in training")
    return experiment.model_copy(update=changed), notes


class _Trial:
    def __init__(self, experiment: Experiment, stack: RewardStack, plan: Plan) -> None:
        self.experiment, self.stack, self.plan = experiment, stack, plan
        self.rows = plan.rows
        self.num_texts = 0
        required = [column for component in stack.components for column in required_columns(component.score)]
        self.gold = find_gold(self.rows, required, named=plan.gold)
        args = experiment.trainer.trl_args
        limit = trl_args.setting(trl_args.trainer(experiment.trainer.trl), args, "max_completion_length")
        self.limit_tokens = limit if isinstance(limit, int) else None
        self.tags = _tags(experiment)

    def scored(self, texts: Sequence[tuple[int, str]], *, is_cut: Sequence[bool] | None = None) -> list[ScoredRow]:
        """Return the scores of (row, text)."""
        self.num_texts += len(texts)
        rows: list[Row] = []
        for row, text in texts:
            is_chat = isinstance(self.rows[row].get("prompt"), list)
            completion: object = [{"role": "assistant", "content": text}] if is_chat else text
            rows.append({**self.rows[row], "completion": completion})
        scored = score_with(self.stack, self.experiment, rows).rows
        cut = list(is_cut) if is_cut is not None else [False] * len(texts)
        return after_truncation(self.experiment, scored, [text for _, text in texts], cut, self.limit_tokens)

    def result(self, left_out: dict[str, str], notes: list[str]) -> AuditResult:
        gold_rows, way, gold_texts = self._gold()
        by_kind = self._attacks(way)
        floor = self._floor(by_kind)
        gold = {row: GoldRow(scored, floor.get(row)) for row, scored in gold_rows.items()}
        unrecognised = sum(not one.is_recognised for one in gold.values())
        share = wilson(unrecognised, len(gold_rows))
        is_unrecognised = share.low is not None and share.low > LEAST_SHARE
        every = [one for variants in by_kind.values() for variant in variants for _, one in variant.values()]
        main = main_component(list(gold_rows.values()), every)
        kinds = []
        for kind in self.plan.kinds:
            variants = by_kind.get(kind.name, [])
            found = [compared(kind, one, gold, main=main, least_share=LEAST_SHARE) for one in variants if one]
            if found:
                kinds.append(max(found, key=_strength))
        totals = [one.total for one in gold_rows.values() if one.total is not None]
        return AuditResult(
            rows=len(self.rows),
            texts=self.num_texts,
            gold_source=None if self.gold is None else self.gold.source,
            gold_way=None if way is None or self.gold is None else way.name,
            gold_text=next(iter(gold_texts.values()), None),
            gold_total=fmean(totals) if totals else None,
            gold_contributions=contributions_of(list(gold_rows.values())),
            gold_raw={name: _median(list(gold_rows.values()), name) for name in self.stack.names},
            num_unrecognised=unrecognised,
            unrecognised=is_unrecognised,
            main=main,
            blind=self._blind(list(gold_rows.values()), every),
            kinds=tuple(_ordered(kinds, has_gold=self.gold is not None)),
            left_out=left_out,
            notes=tuple(notes),
        )

    def _gold(self) -> tuple[dict[int, ScoredRow], Way, dict[int, str]]:
        """Return the gold answers' scores by row, the way they are written, and their texts."""
        if self.gold is None:
            return {}, ways_to_write(self.tags)[0], {}
        known = [row for row, answer in enumerate(self.gold.answers) if answer is not None]
        ways = ways_to_write(self.tags)[:1] if self.plan.gold is not None else ways_to_write(self.tags)
        way = ways[0]
        if len(ways) > 1:
            few = known[: _ROWS_FOR_WAYS if self.plan.variants is None else 2]
            tried = [(row, self._written(self.gold, row, one)) for one in ways for row in few]
            scored = self.scored(tried)
            means = [_mean(scored[place * len(few) : (place + 1) * len(few)]) for place in range(len(ways))]
            way = ways[means.index(max(means))]
        texts = {row: self._written(self.gold, row, way) for row in known}
        return dict(zip(known, self.scored(list(texts.items())), strict=True)), way, texts

    def _written(self, gold: Gold, row: int, way: Way) -> str:
        answer = gold.answers[row]
        assert answer is not None
        return way.write(answer if way.text == "{gold}" else final_part(answer))

    def _attacks(self, way: Way) -> dict[str, list[dict[int, tuple[str, ScoredRow]]]]:
        """Return kind -> variants -> row -> (text, its score)."""
        asked = self._asked(way)
        texts: list[tuple[str, int, int, str]] = []
        for kind in self.plan.kinds:
            for row, one in enumerate(asked):
                written = list(kind.write(one))[: self.plan.variants]
                texts += [(kind.name, variant, row, text) for variant, text in enumerate(written) if text is not None]
        is_cut = {kind.name: kind.is_cut for kind in self.plan.kinds}
        scored = self.scored([(row, text) for _, _, row, text in texts], is_cut=[is_cut[name] for name, *_ in texts])
        found: dict[str, list[dict[int, tuple[str, ScoredRow]]]] = {}
        for (name, variant, row, text), score in zip(texts, scored, strict=True):
            variants = found.setdefault(name, [])
            while len(variants) <= variant:
                variants.append({})
            variants[variant][row] = (text, score)
        return found

    def _asked(self, way: Way) -> list[Asked]:
        golds = [None if one is None else final_part(one) for one in (self.gold.answers if self.gold else [])]
        golds = golds or [None] * len(self.rows)
        known = [one for one in golds if one is not None]
        words = [word for word, _ in Counter(word for one in known for word in one.split()).most_common(8)]
        usual = [one for one, _ in Counter(known).most_common(3)]
        is_tiny = self.experiment.model.build is not None
        characters = (self.limit_tokens or 512) * (1 if is_tiny else _CHARACTERS_A_TOKEN)
        return [
            Asked(
                prompt=_prompt_text(self.rows[row].get("prompt", "")),
                gold=gold,
                others=_others(known, gold, row),
                common=words,
                most_common=usual,
                way=way,
                tags=self.tags,
                longest_characters=min(characters, _MOST_CHARACTERS),
            )
            for row, gold in enumerate(golds)
        ]

    def _floor(self, by_kind: dict[str, list[dict[int, tuple[str, ScoredRow]]]]) -> dict[int, float]:
        """Return by row the least total that any degenerate answer got."""
        floor: dict[int, float] = {}
        for row, (_, scored) in (
            (row, one) for kinds in by_kind.values() for kind in kinds for row, one in kind.items()
        ):
            if scored.total is not None:
                floor[row] = min(scored.total, floor.get(row, math.inf))
        return floor

    def _blind(self, gold: list[ScoredRow], attacks: list[ScoredRow]) -> tuple[str, ...]:
        """Return the components that tell no gold answer from any other text."""

        def seen(rows: list[ScoredRow], name: str) -> set[float | None]:
            return {row.rewards[name].raw for row in rows if row.rewards[name].open}

        def is_blind(name: str) -> bool:
            of_gold = seen(gold, name)
            return len(of_gold) == 1 and of_gold == seen(attacks, name)

        return tuple(name for name in self.stack.names if gold and is_blind(name))


def _strength(kind: KindResult) -> tuple[float, float]:
    return (kind.beats + kind.ties) / kind.rows if kind.rows else 0.0, kind.margin or kind.mean_total or -math.inf


def _ordered(kinds: list[KindResult], *, has_gold: bool) -> list[KindResult]:
    """Return the holes first, the worst one at the top; without gold answers the best paid first."""
    if not has_gold:
        return sorted(kinds, key=lambda one: -(one.mean_total if one.mean_total is not None else -math.inf))
    return sorted(kinds, key=lambda one: (not one.is_hole, not one.is_near, *(-part for part in _strength(one))))


def _others(known: Sequence[str], gold: str | None, row: int) -> list[str]:
    """Return the different right answers of other rows, each once, beginning behind this row."""
    turned = [*known[row + 1 :], *known[: row + 1]]
    return [one for one in dict.fromkeys(turned) if gold is None or one.casefold() != gold.casefold()]


def _tags(experiment: Experiment) -> list[str]:
    """Return the tags that a reward of the experiment asks for."""
    for reward in experiment.rewards.values():
        tags = reward.args.get("tags")
        if isinstance(tags, list) and tags and all(isinstance(tag, str) for tag in tags):
            return [str(tag) for tag in tags]
    return list(DEFAULT_TAGS)


def _prompt_text(prompt: object) -> str:
    if isinstance(prompt, list):
        return content_text(prompt[-1]) if prompt else ""
    return str(prompt)


def _median(rows: Sequence[ScoredRow], name: str) -> float | None:
    raw = [value for row in rows if (value := row.rewards[name].raw) is not None]
    return median_low(raw) if raw else None


def _mean(rows: Sequence[ScoredRow]) -> float:
    totals = [row.total for row in rows if row.total is not None]
    return fmean(totals) if totals else -math.inf
