"""What answers to prompts come to: means with intervals over prompts, pass@k and maj@k.

Intervals are over prompts, since the answers to one are not independent of each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rlhf_cli.numerics.intervals import (
    Estimate,
    attempt_counts,
    majority,
    mean_with_interval,
    pass_at_k,
    student,
    wilson,
)
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.rewards.numbers import last_number
from rlhf_cli.runs.evaluations import POLICY, SAMPLED

Content = dict[str, Any]
_SHOWN = 5


@dataclass(frozen=True)
class Part:
    """One way of answering all prompts, `each` times; entry i of both lists belongs to prompt i // each.

    A record is the row of the data with `completion`, `completion_ids` (with the end-of-sequence token) and
    `is_truncated`; what it scored is `total` and, by reward, raw, effective and weighted.
    """

    each: int
    records: list[Content]
    scored: list[Content]

    def by_prompt(self, value: Callable[[int], float | None]) -> list[float]:
        """The mean over a prompt's completions, prompt by prompt, without those where there is nothing."""
        means = []
        for start in range(0, len(self.records), self.each):
            values = [found for row in range(start, start + self.each) if (found := value(row)) is not None]
            if values:
                means.append(fmean(values))
        return means


def policy_content(parts: dict[str, Part], names: Sequence[str]) -> Content:
    """What an evaluation says of a policy that answered in these ways; `names` are its rewards."""
    first = next(iter(parts.values()))
    shown = zip(first.records[:_SHOWN], first.scored, strict=False)
    return {
        "kind": POLICY,
        "rows": len(first.records) // first.each,
        "parts": {name: _part(part, names) for name, part in parts.items()},
        "attempts": _attempts(parts[SAMPLED], names) if SAMPLED in parts else {},
        "win_rate": None,
        "shown": [
            {"prompt": record["prompt"], "completion": record["completion"], "total": one["total"]}
            for record, one in shown
        ],
    }


def completions_of(parts: dict[str, Part]) -> list[Content]:
    """One record a completion, with the part, its number among those of its prompt, total and raw rewards."""
    return [
        {
            **record,
            **{"part": name, "sample": index % part.each, "total": one["total"]},
            "rewards": {reward: value["raw"] for reward, value in one["rewards"].items()},
        }
        for name, part in parts.items()
        for index, (record, one) in enumerate(zip(part.records, part.scored, strict=True))
    ]


def write_completions(file: Path, records: list[Content]) -> None:
    """One JSON object a line, as `rlhf score --completions` reads them."""
    lines = (json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records)
    file.write_text("".join(lines), encoding="utf-8")


def _part(part: Part, names: Sequence[str]) -> Content:
    def component(name: str, kind: str) -> Content:
        return mean_with_interval(part.by_prompt(lambda row: part.scored[row]["rewards"][name][kind])).as_dict()

    lengths = [len(record["completion_ids"]) for record in part.records]
    return {
        "rewards": {name: {kind: component(name, kind) for kind in ("raw", "effective", "weighted")} for name in names},
        "total": mean_with_interval(part.by_prompt(lambda row: part.scored[row]["total"])).as_dict(),
        "truncated": share(part.by_prompt(lambda row: float(part.records[row]["is_truncated"]))).as_dict(),
        "tokens": {**student(part.by_prompt(lambda row: float(lengths[row]))).as_dict(), "max": max(lengths)},
    }


def share(shares: list[float]) -> Estimate:
    """Wilson's interval over prompts; where a prompt has a share of its own, at least as wide as it has to be."""
    return wilson(math.fsum(shares), len(shares))


def _attempts(part: Part, names: Sequence[str]) -> Content:
    """pass@k and maj@k of every reward whose scores are all 0 or 1. No score (a gate, a failure) is not right.

    The answer that maj@k counts is the last number of a completion, or its whole text where it holds none.
    """
    found: Content = {}
    answers = [_answer(text_of(record["completion"])) for record in part.records]
    for name in names:
        raw = [one["rewards"][name]["raw"] for one in part.scored]
        if not any(value is not None for value in raw) or any(value not in (None, 0.0, 1.0) for value in raw):
            continue
        right = [value or 0.0 for value in raw]
        spans = [slice(start, start + part.each) for start in range(0, len(right), part.each)]
        found[name] = {
            "pass": {
                str(k): share([pass_at_k(part.each, int(sum(right[span])), k) for span in spans]).as_dict()
                for k in attempt_counts(part.each)
            },
            "maj": {str(part.each): share([majority(answers[span], right[span]) for span in spans]).as_dict()},
        }
    return found


def _answer(text: str) -> str:
    number = last_number(text)
    return text.strip() if number is None else str(number)
