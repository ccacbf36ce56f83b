"""Attack rewards with degenerate answers and compare their scores with the right answer's."""

from __future__ import annotations

import math
import socket
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, median, median_low
from urllib.parse import urlsplit

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.data.peeking import first_rows
from rlhf_cli.data.source import Row
from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.evaluation.audit.audit_result import AuditResult, Contribution, KindResult
from rlhf_cli.evaluation.audit.degenerate_answers import KINDS, OTHER_GOLD, AttackInputs, AttackKind
from rlhf_cli.evaluation.audit.trial import AnswerFormat, Trial, final_part, open_trial, reward_words
from rlhf_cli.evaluation.score_completions import rewards_without_tokenizer
from rlhf_cli.numerics.intervals import wilson
from rlhf_cli.plan.sources_and_components import KEEP_TIME, training_sources
from rlhf_cli.rewards.completion_text import last_text
from rlhf_cli.rewards.stack.reward_functions import required_columns, resolve
from rlhf_cli.rewards.stack.scored_rows import ScoredRow
from rlhf_cli.services.hub_lookup import cached_model
from rlhf_cli.text.suggest import nearest

_ROUNDING = 1e-9
LEAST_SHARE = 0.2  # a kind is a hole if the whole 95 % interval of its share of rows is above this
_NEARLY = 0.8  # a near answer closes this share of the gap between the median degenerate total and the gold one
_MOST_CHARACTERS = 20_000
_CHARACTERS_A_TOKEN = 4
_Variant = Mapping[int, tuple[str, ScoredRow]]  # row -> (text, its score), for one variant of a kind


@dataclass(frozen=True)
class AuditPlan:
    """The rows, kinds and variants per kind (None: all) to try, the source of gold answers, a line on the `cost`."""

    rows: list[Row]
    kinds: tuple[AttackKind, ...] = KINDS
    variants: int | None = None
    gold: str | None = None
    cost: str | None = None


@dataclass(frozen=True)
class GoldRow:
    """The gold answer's score in a row, and the minimum and median total of the degenerate answers there."""

    scored: ScoredRow
    floor: float | None
    usual: float | None

    @property
    def is_recognised(self) -> bool:
        """Return whether the gold answer gets more than the minimum; if not, no answer can tie with it."""
        total = self.scored.total
        return total is not None and self.floor is not None and total > self.floor + _tolerance(total)


def _tolerance(total: float) -> float:
    return _ROUNDING * max(1.0, abs(total))


class Outcome(StrEnum):
    """How an answer compares with the gold one in its row, the worst first. One without a total enters no advantage."""

    BEATS = "a higher total"
    TIES = "the same total as a gold answer that is recognised"
    FOOLS = "the main component pays it as much"
    NEAR = "a total nearly as high"
    LOSES = "less"


def outcome_of(attack: ScoredRow, gold: GoldRow, main: str | None) -> Outcome:
    """Return the outcome of one answer. `main` distinguishes gold answers from the others; None if nothing does."""
    total, right, usual = attack.total, gold.scored.total, gold.usual
    if total is None or right is None:
        return Outcome.LOSES
    if total > right + _tolerance(right):
        return Outcome.BEATS
    if gold.is_recognised and total >= right - _tolerance(right):
        return Outcome.TIES
    if main is not None and _reaches(main, attack, gold.scored):
        return Outcome.FOOLS
    is_near = usual is not None and usual < right and total >= usual + _NEARLY * (right - usual)
    return Outcome.NEAR if is_near else Outcome.LOSES


def compared(kind: AttackKind, attacks: _Variant, gold: Mapping[int, GoldRow], *, main: str | None) -> KindResult:
    """Return the comparison of one variant of a kind with the gold answers, row by row."""
    outcomes = {row: outcome_of(attacks[row][1], answer, main) for row, answer in gold.items() if row in attacks}
    count = Counter(outcomes.values())
    share = wilson(count[Outcome.BEATS] + count[Outcome.TIES], len(outcomes))
    at_all = wilson(len(outcomes) - count[Outcome.LOSES], len(outcomes))
    is_hole = share.low is not None and share.low > LEAST_SHARE
    is_near = not is_hole and at_all.low is not None and at_all.low > LEAST_SHARE
    shown = _shown_rows(outcomes) or list(attacks)
    gold_means = contributions_of([gold[row].scored for row in shown if row in gold])
    means = contributions_of([attacks[row][1] for row in shown])
    contributions = {name: Contribution(value, gold_means.get(name)) for name, value in means.items()}
    best_paid = _best_paid(contributions) if is_hole or is_near or not gold else None
    totals = {row: scored.total for row, (_, scored) in attacks.items() if scored.total is not None}
    right = {row: gold[row].scored.total for row in outcomes}
    margins = [totals[row] - other for row, other in right.items() if other is not None and row in totals]
    rewards = [named for _, scored in attacks.values() for named in scored.rewards.items()]
    return KindResult(
        name=kind.name,
        caption=kind.caption,
        text=attacks[shown[0]][0],
        mean_total=fmean(totals.values()) if totals else None,
        rows=len(outcomes),
        beats=count[Outcome.BEATS],
        ties=count[Outcome.TIES],
        share=share,
        margin=fmean(margins) if margins else None,
        is_hole=is_hole,
        is_near=is_near,
        let_in=main if is_near and count[Outcome.FOOLS] else best_paid,
        contributions=contributions,
        errors={name: reward.error for name, reward in rewards if reward.error is not None},
        shown_row=shown[0],
    )


def _shown_rows(outcomes: Mapping[int, Outcome]) -> list[int]:
    """Return the rows with the worst outcomes; a tie is shown behind a higher total, but in the same list."""
    for kinds in ((Outcome.BEATS, Outcome.TIES), (Outcome.FOOLS,), (Outcome.NEAR,)):
        if rows := [row for kind in kinds for row, outcome in outcomes.items() if outcome is kind]:
            return rows
    return list(outcomes)


def main_component(
    gold: Mapping[int, ScoredRow],
    attacks: Sequence[tuple[int, ScoredRow]],
    own: Collection[str],
    *,
    others: Sequence[tuple[int, ScoredRow]] = (),
) -> str | None:
    """Return the component that best distinguishes gold answers: the one whose gold score the fewest attacks reach.

    gold: by row. attacks: (row, score). own: the components without a gate; a gated one repeats its gate's information.
    others: the attacks that are right answers to other rows. If a component pays these less, components that do not,
    such as a form reward, are excluded. Only components that pay gold answers more than the median other answer count;
    of equals the one that pays them most. Return None if there is none.
    """
    rows = [(scored, gold[row]) for row, scored in attacks if row in gold]
    if not rows:
        return None
    other_rows = [(other, gold[row]) for row, other in others if row in gold]
    knowing = {name for name in own if not all(_reaches(name, other, right) for other, right in other_rows)}
    usual = [other for other, _ in (other_rows if knowing else rows)]
    candidates = []
    for name, value in contributions_of(list(gold.values())).items():
        gain = value - median(other.rewards[name].weighted or 0.0 for other in usual)
        if gain > _ROUNDING and name in (knowing or own):
            candidates.append((sum(_reaches(name, attack, right) for attack, right in rows), -gain, name))
    return min(candidates)[-1] if candidates else None


def _reaches(name: str, attack: ScoredRow, gold: ScoredRow) -> bool:
    """Return whether a component pays the answer as much as the gold one, and the gold one more than 0."""
    paid, right = attack.rewards[name].weighted, gold.rewards[name].weighted
    return paid is not None and right is not None and right > 0 and paid >= right - _tolerance(right)


def contributions_of(rows: Sequence[ScoredRow]) -> dict[str, float]:
    """Return each component's mean weighted reward over rows; a component that does not apply counts as 0."""
    return {name: fmean(row.rewards[name].weighted or 0.0 for row in rows) for name in rows[0].rewards} if rows else {}


def _best_paid(contributions: Mapping[str, Contribution]) -> str | None:
    """Return the component that pays the most compared with the gold answer, None if none pays anything."""
    paid = {name: (round(part.attack - (part.gold or 0.0), 9), part.attack) for name, part in contributions.items()}
    best = max(paid, key=paid.__getitem__)
    return None if paid[best][0] <= 0 and paid[best][1] == 0 else best


def attack(experiment: Experiment, plan: AuditPlan, *, left_out: dict[str, str]) -> AuditResult:
    """Return the scores of the degenerate answers and of the gold ones. `left_out`: skipped reward -> reason."""
    with open_trial(experiment, plan.rows, left_out=left_out, gold=plan.gold) as trial:
        answers = trial.gold_answers(is_costly=plan.variants is not None)
        by_kind = _attacks(trial, plan, answers.way)
    gold_scores, names = list(answers.scores.values()), trial.stack.names
    attacks = [(row, scored) for kind in by_kind.values() for variant in kind for row, (_, scored) in variant.items()]
    totals_by_row: dict[int, list[float]] = defaultdict(list)
    for row, scored in attacks:
        totals_by_row[row] += [] if scored.total is None else [scored.total]
    gold = {
        row: GoldRow(scored, min(totals, default=None), median(totals) if totals else None)
        for row, scored in answers.scores.items()
        for totals in [totals_by_row[row]]
    }
    num_unrecognised = sum(not answer.is_recognised for answer in gold.values())
    share = wilson(num_unrecognised, len(gold))
    own = [component.name for component in trial.stack.components if not component.gates]
    others = [(row, one) for variant in by_kind.get(OTHER_GOLD, []) for row, (_, one) in variant.items()]
    main = main_component(answers.scores, attacks, own, others=others)
    kinds = [
        max((compared(kind, variant, gold, main=main) for variant in variants), key=_danger)
        for kind in plan.kinds
        if (variants := [variant for variant in by_kind.get(kind.name, []) if variant])
    ]
    totals = [scored.total for scored in gold_scores if scored.total is not None]
    medians = {name: [raw for row in gold_scores if (raw := row.rewards[name].raw) is not None] for name in names}
    return AuditResult(
        rows=len(plan.rows),
        texts=trial.num_texts,
        gold_source=trial.gold.source if trial.gold is not None and gold else None,
        gold_way=answers.way.name if gold else None,
        gold_text=next(iter(answers.texts.values()), None),
        gold_total=fmean(totals) if totals else None,
        gold_contributions=contributions_of(gold_scores),
        gold_raw={name: median_low(raw) if raw else None for name, raw in medians.items()},
        main=main,
        num_unrecognised=num_unrecognised,
        unrecognised=share.low is not None and share.low > LEAST_SHARE,
        blind=tuple(name for name in names if _is_blind(name, gold_scores, [scored for _, scored in attacks])),
        kinds=tuple(sorted(kinds, key=_danger, reverse=True)),
        left_out=left_out,
        notes=tuple(trial.notes),
    )


def _attacks(trial: Trial, plan: AuditPlan, way: AnswerFormat) -> dict[str, list[_Variant]]:
    """Return kind -> its variants."""
    inputs = _inputs(trial, way)
    texts = [
        (kind, variant, row, text)
        for kind in plan.kinds
        for row, given in enumerate(inputs)
        for variant, text in enumerate([*kind.write(given)][: plan.variants])
        if text is not None
    ]
    scored = trial.scored([(row, text) for *_, row, text in texts], is_cut=[kind.is_cut for kind, *_ in texts])
    variants: dict[str, dict[int, dict[int, tuple[str, ScoredRow]]]] = defaultdict(lambda: defaultdict(dict))
    for (kind, variant, row, text), score in zip(texts, scored, strict=True):
        variants[kind.name][variant][row] = (text, score)
    return {name: [numbered[number] for number in sorted(numbered)] for name, numbered in variants.items()}


def _inputs(trial: Trial, way: AnswerFormat) -> list[AttackInputs]:
    answers: Iterable[str | None] = trial.gold.answers if trial.gold is not None else []
    golds = [None if answer is None else final_part(answer) for _, answer in zip_longest(trial.rows, answers)]
    known = [gold for gold in golds if gold is not None]
    common = [word for word, _ in Counter(word for gold in known for word in gold.split()).most_common(8)]
    most_common = [gold for gold, _ in Counter(known).most_common(3)]
    words = reward_words(component.score for component in trial.stack.components)
    characters = (trial.limit_tokens or 512) * (1 if trial.experiment.model.build is not None else _CHARACTERS_A_TOKEN)
    return [
        AttackInputs(
            prompt=last_text(trial.rows[row].get("prompt", "")),
            gold=gold,
            # The distinct right answers of other rows, starting after this row.
            others=[
                answer
                for answer in dict.fromkeys([*known[row + 1 :], *known[: row + 1]])
                if gold is None or answer.casefold() != gold.casefold()
            ],
            common=common,
            most_common=most_common,
            way=way,
            tags=trial.tags,
            longest_characters=min(characters, _MOST_CHARACTERS),
            reward_words=words,
        )
        for row, gold in enumerate(golds)
    ]


def _is_blind(name: str, gold: Sequence[ScoredRow], attacks: Sequence[ScoredRow]) -> bool:
    """Return whether a component does not distinguish gold answers from any other text."""
    right, other = ({row.rewards[name].raw for row in rows if row.rewards[name].open} for rows in (gold, attacks))
    return len(right) == 1 and right == other


def _danger(kind: KindResult) -> tuple[bool, bool, float, float]:
    """Return a key for sorting: a hole is worse than what is near, then what is paid more often, then by more.

    Without gold answers there is no hole, and a kind has no share and no margin: its mean total decides.
    """
    size = kind.mean_total if kind.margin is None else kind.margin
    share = (kind.beats + kind.ties) / kind.rows if kind.rows else 0.0
    return kind.is_hole, kind.is_near, share, -math.inf if size is None else size


def expensive(experiment: Experiment) -> dict[str, str]:
    """Return name -> cost per text, for the rewards that are not plain functions."""
    found = {}
    for name, reward in experiment.rewards.items():
        if reward.model is not None:
            found[name] = f"a forward pass of {reward.model}"
        elif _urls(reward):
            found[name] = f"a request to {_urls(reward)[0]}"
        elif reward.isolate or (reward.fn or "").startswith(KEEP_TIME):
            found[name] = "a new process"
    return found


_ONLY_IN_ROLLOUTS = "only rollouts have"


def unreachable(experiment: Experiment) -> dict[str, str]:
    """Return name -> why a reward cannot be called: a server, a model, a tokenizer or a rollout is missing."""
    found, made = rewards_without_tokenizer(experiment), set(experiment.rollout_columns)
    for name, reward in experiment.rewards.items():
        if reward.model is not None:
            if not Path(reward.model).expanduser().is_dir() and cached_model(reward.model) is None:
                found[name] = f"{reward.model} is neither a folder nor in the hub's cache"
        elif (urls := _urls(reward)) and not any(map(_listens, urls)):
            found[name] = f"no server listens at {urls[0]}"
        elif reward.environment is not None:
            found[name] = f"{_ONLY_IN_ROLLOUTS} an environment"
        elif made and reward.fn is not None:
            read = required_columns(resolve(reward.fn, reward.args, where=f"rewards.{name}.fn"))
            if of_rollouts := [column for column in read if column in made]:
                found[name] = f"{_ONLY_IN_ROLLOUTS} {' and '.join(of_rollouts)}"
    return found


def _urls(reward: Reward) -> list[str]:
    given = reward.args.get("url")
    urls = given if isinstance(given, list) else [given]
    return [url for url in urls if isinstance(url, str) and url.startswith("http")]


def _listens(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=2.0).close()
    except (OSError, ValueError):
        return False
    return True


_ROWS, _COSTLY_ROWS = 64, 8
_WAYS_TO_WRITE_GOLD = 10


def chosen_kinds(typed: Sequence[str]) -> tuple[AttackKind, ...]:
    """Return the kinds that were typed, or all if none were. Raise ConfigError for an unknown name."""
    by_name = {kind.name: kind for kind in KINDS}
    names = [name.strip() for text in typed for name in text.split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            what, expected = f"there is no kind of answer {name!r}", "one of " + ", ".join(by_name)
            raise ConfigError(what, where="--kinds", expected=expected, hint=nearest(name, by_name))
    return tuple(kind for kind in KINDS if kind.name in names) if names else KINDS


def plan_of(experiment: Experiment, kinds: tuple[AttackKind, ...], *, limit: int | None, gold: str | None) -> AuditPlan:
    """Return the plan of an audit with at most `limit` rows; None for a default that depends on the cost."""
    if not experiment.rewards:
        what, got = "there is no reward to attack", f"trainer={experiment.trainer.name}, rewards is empty"
        expected, hint = "an experiment with rewards", "reward@rewards.NAME=exact_match, or rlhf list reward"
        raise ConfigError(what, where="rewards", got=got, expected=expected, hint=hint)
    costly = expensive(experiment)
    rows = experiment_rows(experiment, limit or (_COSTLY_ROWS if costly else _ROWS))
    cost = None
    if costly:
        count = len(rows) * (len(kinds) + 1) + min(2, len(rows)) * (0 if gold else _WAYS_TO_WRITE_GOLD)
        each = "; ".join(f"rewards.{name} {what}" for name, what in costly.items())
        cost = f"at most {count} texts ({len(rows)} rows), each of them: {each}. --limit and --kinds reduce this"
    return AuditPlan(rows, kinds, 1 if costly else None, gold, cost)


def experiment_rows(experiment: Experiment, limit: int) -> list[dict[str, object]]:
    """Return the first rows of an experiment's training data. Raise DataError if they have no prompt."""
    prompt = experiment.data.model_dump()["prompt"]
    rows = first_rows(training_sources(experiment), prompt=prompt, seed=experiment.seed, limit=limit)
    if not rows or "prompt" not in rows[0]:
        what, got = "the data has no column 'prompt'", "columns " + ", ".join(rows[0] if rows else ())
        hint = "data.rename.prompt=COLUMN, or data.prompt='Question: {COLUMN}'"
        raise DataError(what, where="data", got=got, expected="a column of prompts", hint=hint)
    return rows


def attack_reachable(experiment: Experiment, plan: AuditPlan) -> AuditResult:
    """Return the audit without the unreachable rewards, which it lists. Raise ConfigError if no reward is left."""
    left_out = unreachable(experiment)
    if len(left_out) == len(experiment.rewards):
        name, why = next(iter(left_out.items()))
        start = f"start it, or set rewards.{name}.args.url=URL or rewards.{name}.model=FOLDER"
        advice = None if why.startswith(_ONLY_IN_ROLLOUTS) else start
        raise ConfigError("no reward can be called", where=f"rewards.{name}", got=why, advice=advice)
    return attack(experiment, plan, left_out=left_out)
