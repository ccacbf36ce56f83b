"""A plain computation of torch's `varlen_attn` as documented, for CPUs, which lack the kernel.

Groups of query heads share key heads only with `enable_gqa`. The default scale is one over the root of the head size.
The window (-1, 0) is aligned to the bottom right, as in flash-attention: with 2 queries and 5 keys 1 1 1 1 0 over
1 1 1 1 1 (the docstring of `flash_attn_varlen_func`). Like the kernel, it reads at most `max_q` queries and `max_k`
keys of a segment, and takes int32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor


@dataclass
class ReferenceVarlen:
    """Record the calls. `align`, `scale_by` and `error` make the kernel wrong."""

    align: str = "bottom right"
    scale_by: float | None = None
    error: Exception | None = None
    calls: list[int] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> Tensor:
        if self.error is not None:
            raise self.error
        self.calls.append(len(query))
        self.dtypes.append(query.dtype)
        assert {query.dtype, key.dtype, value.dtype} == {query.dtype}
        assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
        assert query.shape[1] == key.shape[1] or enable_gqa, "Try setting enable_gqa=True for GQA."
        group = query.shape[1] // key.shape[1]
        keys, values = (one.double().repeat_interleave(group, dim=1).transpose(0, 1) for one in (key, value))
        queries = query.double().transpose(0, 1)
        scale = (query.shape[-1] ** -0.5 if scale is None else scale) if self.scale_by is None else self.scale_by
        outputs = []
        ends = zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], cu_seq_k.tolist(), cu_seq_k.tolist()[1:], strict=False)
        for first_q, end_q, first_k, end_k in ends:
            count_q, count_k = min(end_q - first_q, max_q), min(end_k - first_k, max_k)
            own = queries[:, first_q : first_q + count_q] * scale
            scores = own @ keys[:, first_k : first_k + count_k].transpose(1, 2)
            ahead = count_k - count_q if self.align == "bottom right" else 0
            if window_size == (-1, 0):
                mask = torch.ones(count_q, count_k, dtype=torch.bool).tril(ahead)
                scores = scores.masked_fill(~mask, -torch.inf)
            outputs.append(scores.softmax(dim=-1) @ values[:, first_k : first_k + count_k])
        return torch.cat(outputs, dim=1).transpose(0, 1).to(query.dtype)


def stand_in(monkeypatch: pytest.MonkeyPatch, kernel: Any = None) -> Any:
    """Let packed rows attend all at once on a CPU, in any precision, with the reference or another kernel."""
    kernel = ReferenceVarlen() if kernel is None else kernel
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    for module in ("models.packing.row_attention", "models.reward_model_scorer"):
        monkeypatch.setattr(f"rlhf_cli.{module}.why_no_varlen", lambda _heads: None)
    monkeypatch.setattr("rlhf_cli.trainers.pass_mixin.why_no_varlen_for", lambda model, accelerator: None)
    return kernel
