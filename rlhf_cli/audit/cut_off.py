"""Apply an experiment's truncation policy to the totals of single rows, outside a training batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.evaluate.policy_tokenizer import policy_tokenizer
from rlhf_cli.measure.scored_rows import ScoredReward, ScoredRow

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

    from rlhf_cli.assemble.stack_building import truncation_policy
    from rlhf_cli.stack.truncation import EFFECTS, Endings

    lengths = [0] * len(rows)
    if policy == "soft_overlong":
        tokenizer = policy_tokenizer(experiment, wanted_by="truncation=soft_overlong")
        counted = [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]
        lengths = [(limit or count) if cut else count for count, cut in zip(counted, is_cut, strict=True)]
    totals = torch.tensor([torch.nan if row.total is None else row.total for row in rows], dtype=torch.float64)
    endings = Endings(torch.tensor(list(is_cut)), torch.tensor(lengths), limit)
    function = EFFECTS[policy].added
    assert function is not None
    return [
        _with(row, added)
        for row, added in zip(rows, function(totals, truncation_policy(experiment), endings).tolist(), strict=True)
    ]


def _with(row: ScoredRow, added: float) -> ScoredRow:
    given = None if row.total is None else added
    reward = ScoredReward(raw=given, effective=given, weighted=given, open=True, error=None)
    return ScoredRow(None if row.total is None else row.total + added, {**row.rewards, COMPONENT: reward})
