"""Test the kernel that attends in all segments at once on random numbers, forward and backward, before its use.

The reference is attention of each segment by itself in float32. This detects a kernel that aligns its causal mask
differently, omits the scale or is missing from this torch build, and shows where: a model's own numbers, in half
precision, would show less.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_cli.errors import in_a_line
from rlhf_cli.packing.joined_keys import JoinedKeys, joined_keys
from rlhf_cli.packing.varlen_kernel import Heads, attend_at_once

_LENGTHS, _SHARED = [150, 3, 1, 140, 2, 70], [0, 0, 1, None]
"""Two prompts and four rows: more tokens than a tile of the kernel, a single one, and a row without a prompt."""
_SCALING = 0.2
_TOLERANCE = 0.05
"""Relative to the norm: SDPA in bfloat16 on a CPU has 0.006, a mask aligned to the top left or another scale 0.6."""


def why_wrong(heads: Heads) -> str | None:
    """Return a description of what is wrong with the kernel's numbers, or its error; None if they are right.

    This does not depend on the caller's modes (no gradient, autocast, a checkpointed layer's hooks).
    """
    no_hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    is_off = torch.autocast(heads.device.type, enabled=False)
    with torch.inference_mode(mode=False), torch.enable_grad(), is_off, no_hooks:
        joined, given = joined_keys(_LENGTHS, _SHARED, heads.device), _drawn(heads)
        try:
            found = _with_gradients(attend_at_once(joined, *given, scaling=_SCALING), given)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            return f"it raises {in_a_line(error)}"
        exact = [one.detach().float().requires_grad_() for one in given]
        expected = _with_gradients(_a_segment_each(joined, *exact), exact)
    farthest = max(
        float((one.float() - other).norm() / other.norm()) for one, other in zip(found, expected, strict=True)
    )
    return None if farthest <= _TOLERANCE else f"on random numbers it is {farthest:.2g} off"


def _drawn(heads: Heads) -> list[Tensor]:
    """Return query, key and value (1, heads, tokens, size) without affecting other random numbers."""
    chance = torch.Generator().manual_seed(0)
    shapes = [(1, number, sum(_LENGTHS), heads.size) for number in (heads.num_heads, *[heads.num_key_heads] * 2)]
    return [torch.randn(shape, generator=chance).to(heads.device, heads.dtype).requires_grad_() for shape in shapes]


def _with_gradients(output: Tensor, given: list[Tensor]) -> list[Tensor]:
    """Return the output (1, tokens, heads, size), and the gradients of a weighted sum of it."""
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.device, output.dtype)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), given)]


def _a_segment_each(joined: JoinedKeys, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    starts_of_queries, starts_of_keys = joined.cu_queries.tolist(), joined.cu_keys.tolist()
    outputs = []
    for segment in range(len(starts_of_queries) - 1):
        queries = query[:, :, slice(*starts_of_queries[segment : segment + 2])]
        places = joined.places[slice(*starts_of_keys[segment : segment + 2])]
        shape = queries.shape[2], len(places)
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril(shape[1] - shape[0])
        group = query.shape[1] // key.shape[1]
        keys, values = (one[:, :, places].repeat_interleave(group, dim=1) for one in (key, value))
        scores = (queries @ keys.transpose(2, 3) * _SCALING).masked_fill(~mask, -torch.inf)
        outputs.append(scores.softmax(dim=-1) @ values)
    return torch.cat(outputs, dim=2).transpose(1, 2)
