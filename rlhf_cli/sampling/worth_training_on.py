"""Make training data from sampled answers: preference pairs, and the best answers alone (rejection sampling).

A pair is the best answer to a prompt against the worst, both from the policy itself, as in iterated DPO (Xu et al.,
arXiv 2312.16682, also take the best and worst by a reward). The best answers alone are what RAFT trains on (Dong et
al., arXiv 2304.06767). A truncated answer is never a training target, because a trainer would teach the policy to end
there. An answer without text is not used at all, because no trainer accepts it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.sampling.sampled_answers import TOTAL, SampledAnswer, SampledPrompt

Row = dict[str, object]


@dataclass(frozen=True)
class MadeRows:
    """Rows for a trainer, and the prompts that gave none: reason -> number of prompts."""

    rows: list[Row]
    left_out: dict[str, int]


def preference_pairs(prompts: Sequence[SampledPrompt], *, by: str = TOTAL, least_margin: float = 0.0) -> MadeRows:
    """Return at most one preference row per prompt.

    The columns are prompt, chosen, rejected, margin (of the scores `by`), score_chosen and score_rejected. The margin
    is above 0 and at least `least_margin`. Among equal scores, the first sampled answer is used. A repeated pair is
    written once, even if its prompt occurs several times.
    """
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    seen: set[str] = set()
    for prompt in prompts:
        ranked = _ranked(prompt, by)
        chosen = next((one for one in ranked if not one[1].is_truncated), None)
        if len(ranked) < 2:
            left_out["fewer than two answers have a score and a text"] += 1
        elif chosen is None:
            left_out["no answer ends"] += 1
        else:
            low = min(score for score, _ in ranked)
            rejected = next(one for one in ranked if one[0] == low)
            margin = chosen[0] - low
            key = _key(prompt.prompt, chosen[1].completion, rejected[1].completion)
            if margin <= 0:
                left_out["the best that ends is no better than the worst"] += 1
            elif margin < least_margin:
                left_out[f"the margin is below {least_margin:g}"] += 1
            elif key in seen:
                left_out["the same pair again"] += 1
            else:
                seen.add(key)
                rows.append(
                    {
                        "prompt": prompt.prompt,
                        "chosen": chosen[1].completion,
                        "rejected": rejected[1].completion,
                        "margin": margin,
                        "score_chosen": chosen[0],
                        "score_rejected": low,
                    }
                )
    return MadeRows(rows, dict(left_out))


def best_answers(
    prompts: Sequence[SampledPrompt], *, by: str = TOTAL, keep: int = 1, at_least: float | None = None
) -> MadeRows:
    """Return rows with prompt, completion and score: the `keep` best distinct answers per prompt, best first.

    Answers that score below `at_least` are left out (None for no limit). An answer is used once per prompt.
    """
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    seen: set[str] = set()
    for prompt in prompts:
        ranked = _ranked(prompt, by)
        ended = [one for one in ranked if not one[1].is_truncated]
        good = [one for one in ended if at_least is None or one[0] >= at_least]
        new: list[Row] = []
        for score, answer in good:
            key = _key(prompt.prompt, answer.completion)
            if key not in seen and len(new) < keep:
                seen.add(key)
                new.append({"prompt": prompt.prompt, "completion": answer.completion, "score": score})
        rows += new
        if not ranked:
            left_out["no answer has a score and a text"] += 1
        elif not ended:
            left_out["no answer ends"] += 1
        elif not good:
            left_out[f"no answer that ends scores {at_least:g} or more"] += 1
        elif not new:
            left_out["the same answers again"] += 1
    return MadeRows(rows, dict(left_out))


def _ranked(prompt: SampledPrompt, by: str) -> list[tuple[float, SampledAnswer]]:
    """Return the answers that have a score and a text, best first; equal scores keep the sampling order."""
    with_text = [answer for answer in prompt.answers if text_of(answer.completion).strip()]
    scored = [(score, answer) for answer in with_text if (score := answer.score(by)) is not None]
    return sorted(scored, key=lambda one: -one[0])


def _key(*texts: object) -> str:
    return json.dumps(texts, sort_keys=True, default=str)
