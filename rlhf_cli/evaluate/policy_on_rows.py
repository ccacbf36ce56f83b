"""What a policy is worth by the rewards of its own run: greedy and sampled, against another run, with intervals.

Rewards are evaluated as in `rlhf score`: the run's stack, the weights of its last step, the weighted sum as the total.
The truncation policy and KL are the trainer's business and are not in it. Everything is scored in one call, so that
what normalising divides by is one number for all parts, and totals can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from statistics import fmean
from typing import Any

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.evaluate.generation import Completion, Policy
from rlhf_cli.evaluate.score_completions import score
from rlhf_cli.measure.policy_answers import Part, completions_of, policy_content, share
from rlhf_cli.measure.preference_pairs import Row
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.evaluations import GREEDY, SAMPLED

Content = dict[str, Any]
_OTHERS = "against_"


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
    asked: dict[str, tuple[int, list[Row]]] = {}
    for prefix, model in (("", policy), (_OTHERS, against)):
        for name, each in ((GREEDY, 1), (SAMPLED, samples)):
            if model is not None and each:
                repeated = [row for row in rows for _ in range(each)]
                completions = model.complete(
                    [row["prompt"] for row in repeated],
                    settings,
                    greedy=name == GREEDY,
                    batch_size=batch_size,
                    seed=seed,
                    on_batch=on_batch,
                )
                records = [_record(row, one) for row, one in zip(repeated, completions, strict=True)]
                asked[prefix + name] = each, records
    scored = iter(
        _scores(experiment, [one for _, records in asked.values() for one in records], policy, step, max_steps)
    )
    parts = {name: Part(each, records, list(islice(scored, len(records)))) for name, (each, records) in asked.items()}
    own = {name: part for name, part in parts.items() if not name.startswith(_OTHERS)}
    content = policy_content(own, list(experiment.rewards))
    content["settings"] = {**settings, "samples": samples, "seed": seed}
    content["win_rate"] = None if against is None else _wins(parts, samples)
    return content, completions_of(parts)


def _record(row: Row, completion: Completion) -> Row:
    text: Any = completion.text
    if isinstance(row["prompt"], list):
        text = [{"role": "assistant", "content": completion.text}]
    return {**row, "completion": text, "completion_ids": completion.ids, "is_truncated": completion.is_truncated}


def _scores(experiment: Experiment, records: list[Row], policy: Policy, step: int, max_steps: int) -> list[Content]:
    if not experiment.rewards:
        return [{"total": None, "rewards": {}} for _ in records]
    asked = [{name: value for name, value in record.items() if name != "is_truncated"} for record in records]
    result = score(experiment, asked, device=policy.device, decode=policy.decode, step=step, max_steps=max_steps)
    rows: list[Content] = result["rows"]
    return rows


def _wins(parts: dict[str, Part], samples: int) -> Content:
    """The share of prompts on which our total is the higher one, ties a half; sampled: over all pairs of samples."""

    def compared(name: str) -> Estimate:
        ours, theirs = parts[name], parts[_OTHERS + name]
        shares = []
        for start in range(0, len(ours.records), ours.each):
            span = range(start, start + ours.each)
            both = [(ours.scored[a]["total"], theirs.scored[b]["total"]) for a in span for b in span]
            points = [(1.0 if a > b else 0.5 if a == b else 0.0) for a, b in both if a is not None and b is not None]
            if points:
                shares.append(fmean(points))
        return share(shares)

    return {name: compared(name).as_dict() for name in ((GREEDY, SAMPLED) if samples else (GREEDY,))}
