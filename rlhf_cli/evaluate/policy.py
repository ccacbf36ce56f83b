"""What a policy is worth by the rewards of its own run: greedy and sampled, against another run, with intervals.

Rewards are evaluated as in `rlhf score`: the run's stack, the weights of its last step, the weighted sum as the total.
The truncation policy and KL are the trainer's business and are not in it. Everything is scored in one call, so that
what normalising divides by is one number for all parts, and totals can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rlhf_cli.config.schema import Experiment
from rlhf_cli.evaluate.generate import Completion, Policy
from rlhf_cli.evaluate.pairs import Row
from rlhf_cli.numerics.intervals import Estimate, majority, mean_with_interval, pass_at_k, student, wilson
from rlhf_cli.rewards.numbers import last_number
from rlhf_cli.runs.evaluations import POLICY
from rlhf_cli.score import score

Content = dict[str, Any]
GREEDY, SAMPLED = "greedy", "sampled"
_OTHERS = "against_"
_SHOWN = 5


@dataclass(frozen=True)
class Part:
    """One way of answering all prompts, `each` times; `scored[i]` belongs to prompt i // each."""

    each: int
    completions: list[Completion]
    scored: list[Content]

    def by_prompt(self, value: Callable[[int], float | None]) -> list[float]:
        """The mean over a prompt's completions, prompt by prompt, without those where there is nothing."""
        means = []
        for start in range(0, len(self.completions), self.each):
            values = [found for row in range(start, start + self.each) if (found := value(row)) is not None]
            if values:
                means.append(fmean(values))
        return means


def evaluate_policy(
    policy: Policy,
    experiment: Experiment,
    rows: list[Row],
    settings: dict[str, Any],
    *,
    samples: int,
    batch_size: int,
    seed: int,
    against: Policy | None = None,
    step: int = 0,
    max_steps: int = 1,
    on_batch: Callable[[int], None] = lambda done: None,
) -> tuple[Content, list[Row]]:
    """(everything about the policy as JSON can hold it, one record a completion).

    Each row's prompt is answered once greedily and `samples` times as the trainer sampled; `against` is given the same
    prompts and settings. Intervals are over prompts: the samples of one are no independent rows.
    """
    told: list[tuple[str, int, list[Completion]]] = []
    for prefix, model in (("", policy), (_OTHERS, against)):
        for name, each in ((GREEDY, 1), (SAMPLED, samples)):
            if model is not None and each:
                prompts = [row["prompt"] for row in rows for _ in range(each)]
                is_greedy = name == GREEDY
                found = model.complete(
                    prompts, settings, greedy=is_greedy, batch_size=batch_size, seed=seed, on_batch=on_batch
                )
                told.append((prefix + name, each, found))
    records = [
        {**rows[index // each], **_record(rows[index // each], completion), "part": name, "sample": index % each}
        for name, each, completions in told
        for index, completion in enumerate(completions)
    ]
    scored = _scores(experiment, records, policy, step, max_steps)
    parts: dict[str, Part] = {}
    begin = 0
    for name, each, completions in told:
        parts[name] = Part(each, completions, scored[begin : begin + len(completions)])
        begin += len(completions)
    names = list(experiment.rewards)
    content: Content = {
        "kind": POLICY,
        "rows": len(rows),
        "settings": {**settings, "samples": samples, "seed": seed},
        "parts": {name: _part(part, names) for name, part in parts.items() if not name.startswith(_OTHERS)},
        "attempts": _attempts(parts[SAMPLED], names) if samples else {},
        "win_rate": None if against is None else _wins(parts, samples),
        "shown": [_shown(record, one) for record, one in zip(records[:_SHOWN], scored, strict=False)],
    }
    return content, [{**record, **_flat(one)} for record, one in zip(records, scored, strict=True)]


def _record(row: Row, completion: Completion) -> Row:
    text: Any = completion.text
    if isinstance(row["prompt"], list):
        text = [{"role": "assistant", "content": completion.text}]
    return {"completion": text, "completion_ids": completion.ids, "is_truncated": completion.is_truncated}


def _scores(experiment: Experiment, records: list[Row], policy: Policy, step: int, max_steps: int) -> list[Content]:
    if not experiment.rewards:
        return [{"total": None, "rewards": {}} for _ in records]
    own = ("part", "sample", "is_truncated")
    asked = [{name: value for name, value in record.items() if name not in own} for record in records]
    result = score(experiment, asked, device=policy.device, decode=policy.decode, step=step, max_steps=max_steps)
    rows: list[Content] = result["rows"]
    return rows


def _part(part: Part, names: Sequence[str]) -> Content:
    def component(name: str, kind: str) -> Content:
        return mean_with_interval(part.by_prompt(lambda row: part.scored[row]["rewards"][name][kind])).as_dict()

    lengths = [len(one.ids) for one in part.completions]
    return {
        "rewards": {name: {kind: component(name, kind) for kind in ("raw", "effective", "weighted")} for name in names},
        "total": mean_with_interval(part.by_prompt(lambda row: part.scored[row]["total"])).as_dict(),
        "truncated": _share(part.by_prompt(lambda row: float(part.completions[row].is_truncated))).as_dict(),
        "tokens": {**student(part.by_prompt(lambda row: float(lengths[row]))).as_dict(), "max": max(lengths)},
    }


def _share(shares: list[float]) -> Estimate:
    """Wilson's interval over prompts; where a prompt has a share of its own, at least as wide as it has to be."""
    return wilson(math.fsum(shares), len(shares))


def _attempts(part: Part, names: Sequence[str]) -> Content:
    """pass@k and maj@k of every reward whose scores are all 0 or 1. No score (a gate, a failure) is not right.

    The answer that maj@k counts is the last number of a completion, or its whole text where it holds none.
    """
    found: Content = {}
    answers = [_answer(completion.text) for completion in part.completions]
    for name in names:
        raw = [one["rewards"][name]["raw"] for one in part.scored]
        if not any(value is not None for value in raw) or any(value not in (None, 0.0, 1.0) for value in raw):
            continue
        right = [value or 0.0 for value in raw]
        spans = [slice(start, start + part.each) for start in range(0, len(right), part.each)]
        found[name] = {
            "pass": {
                str(k): _share([pass_at_k(part.each, int(sum(right[span])), k) for span in spans]).as_dict()
                for k in _powers(part.each)
            },
            "maj": {str(part.each): _share([majority(answers[span], right[span]) for span in spans]).as_dict()},
        }
    return found


def _answer(text: str) -> str:
    number = last_number(text)
    return text.strip() if number is None else str(number)


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    return sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)})


def _wins(parts: dict[str, Part], samples: int) -> Content:
    """The share of prompts on which our total is the higher one, ties a half; sampled: over all pairs of samples."""

    def compared(name: str) -> Estimate:
        ours, theirs = parts[name], parts[_OTHERS + name]
        shares = []
        for start in range(0, len(ours.completions), ours.each):
            span = range(start, start + ours.each)
            both = [(ours.scored[a]["total"], theirs.scored[b]["total"]) for a in span for b in span]
            points = [(1.0 if a > b else 0.5 if a == b else 0.0) for a, b in both if a is not None and b is not None]
            if points:
                shares.append(fmean(points))
        return _share(shares)

    return {name: compared(name).as_dict() for name in ((GREEDY, SAMPLED) if samples else (GREEDY,))}


def _shown(record: Row, one: Content) -> Content:
    return {"prompt": record["prompt"], "completion": record["completion"], "total": one["total"]}


def _flat(one: Content) -> Content:
    return {"total": one["total"], "rewards": {name: value["raw"] for name, value in one["rewards"].items()}}
