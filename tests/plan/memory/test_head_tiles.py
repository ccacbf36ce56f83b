"""What TRL's fused head needs at a time, counted by hand, against torch's own tracker of the memory of operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from trl.kernels import ChunkedLogProbFunction

from rlhf_cli.plan.memory.parts import TILE_WORDS, forward_bytes, head_backward_bytes
from rlhf_cli.plan.memory.shapes import Architecture, Precision

TOKENS, HIDDEN, WORDS = 16, 8, TILE_WORDS + 1000
ARCH = Architecture("llama", HIDDEN, 1, 1, 1, HIDDEN, 1, WORDS, 64, ties_head=False)
FLOAT32 = Precision(4.0)
OUTPUTS = ("log_probs", "entropy")
"""Of GRPO; those of DPO and SFT differ by what takes a byte a word."""


def peak_bytes(*, trains_head: bool, goes_backward: bool) -> int:
    """Bytes of the largest moment, without what is given to the head; two tiles, of which the first is whole."""
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    weight = torch.randn(WORDS, HIDDEN, requires_grad=trains_head)
    targets = torch.randint(0, WORDS, (TOKENS,))
    tracker = MemTracker()
    tracker.track_external(hidden, weight, targets)
    with tracker:
        logps, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, TILE_WORDS, None, 1.0, OUTPUTS)
        if goes_backward:
            logps.sum().backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return int(peak) - sum(one.untyped_storage().nbytes() for one in (hidden, weight, targets))


def test_log_probabilities_take_four_tiles() -> None:
    counted = forward_bytes(ARCH, FLOAT32, TOKENS, on_gpu=False)
    assert counted == pytest.approx(peak_bytes(trains_head=True, goes_backward=False), rel=0.01)
    assert counted == 4 * 4 * TOKENS * TILE_WORDS


@pytest.mark.parametrize("trains_head", [True, False], ids=["full", "adapter"])
def test_their_gradient_takes_eight_and_the_head_its_own(trains_head: bool) -> None:
    measured = peak_bytes(trains_head=trains_head, goes_backward=True)
    counted = head_backward_bytes(ARCH, FLOAT32, TOKENS, trains_head=trains_head, on_gpu=False)
    assert counted == pytest.approx(measured, rel=0.01)
    without = head_backward_bytes(
        replace(ARCH, vocabulary=WORDS // 2), FLOAT32, TOKENS, trains_head=False, on_gpu=False
    )
    assert without != pytest.approx(measured, rel=0.3)  # negative control: half of the vocabulary
