"""What packed rows keep and what a head that keeps its softmax needs, by hand, against autograd and torch's tracker."""

from __future__ import annotations

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker

from rlhf_cli.models.packing.one_pass_head import OnePassLogProbs, fits
from rlhf_cli.models.packing.packed_rows import packed_rows
from rlhf_cli.models.packing.row_attention import model_inputs, register
from rlhf_cli.plan.memory.parts import Batch, fits_one_pass, kept_bytes, one_pass_backward_bytes, one_pass_forward_bytes
from rlhf_cli.plan.memory.shapes import Architecture, Precision
from tests.plan.memory.test_saved_tensors import PRECISIONS, model_of

PROMPT, ANSWER, GROUP, PROMPTS = 24, 40, 3, 2
LEFT_OUT = 0.02
"""Of all that is kept: rotary angles, one number a norm and token, and the masks in bool, once for all layers."""


def saved_bytes(family: str, precision: str) -> tuple[int, Architecture]:
    """Bytes that a pass over 2 groups of 3 packed rows saves, and no parameter's, and the model's shape."""
    model, arch = model_of(family, precision)
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: list[torch.Tensor] = []
    prompts = torch.randint(2, 100, (PROMPTS, PROMPT)).repeat_interleave(GROUP, dim=0)
    ids = torch.cat([prompts, torch.randint(2, 100, (PROMPTS * GROUP, ANSWER))], dim=1)
    rows = packed_rows(ids, torch.ones_like(ids), ANSWER)
    assert rows is not None
    register()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    is_autocast = precision == "autocast"
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
        model.base_model(**model_inputs(rows), use_cache=False)  # type: ignore[operator]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    copies = 2 * sum(one.numel() for one in model.parameters() if one.dim() == 2 and one.shape[0] != 128) * is_autocast
    return sum(size for place, size in storages.items() if place not in own) - copies, arch


def counted_bytes(arch: Architecture, precision: str, batch: Batch) -> float:
    to_the_head = batch.size * arch.hidden * PRECISIONS[precision].weight_bytes
    return kept_bytes(arch, PRECISIONS[precision], batch, checkpointing=False) - to_the_head


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_packed_rows_keep_what_is_counted(family: str, precision: str) -> None:
    """2 prompts of 23 places (without their last token) and 6 rows of 40; joined keys of 63 for each row."""
    real, arch = saved_bytes(family, precision)
    batch = Batch(PROMPTS * GROUP, PROMPT + ANSWER, prompts=PROMPTS, prompt_tokens=PROMPT)
    assert (batch.size, batch.joined_size, batch.mask_size) == (2 * 23 + 6 * 40, 6 * 63, 6 * 40 * 63)
    counted = counted_bytes(arch, precision, batch)
    assert counted == pytest.approx(real, rel=LEFT_OUT)
    each = Batch(PROMPTS * GROUP, PROMPT + ANSWER, prompts=PROMPTS * GROUP, prompt_tokens=PROMPT)
    assert counted_bytes(arch, precision, each) > 1.1 * real  # negative control: no prompt shared


TOKENS, HIDDEN, WORDS = 64, 8, 3000
ARCH = Architecture("llama", HIDDEN, 1, 1, 1, HIDDEN, 1, WORDS, 64, ties_head=False)


def head_bytes(*, goes_backward: bool, has_entropy: bool, entropy_learns: bool = False) -> int:
    """Bytes of the largest moment of the head, without what is given to it."""
    hidden, weight = torch.randn(TOKENS, HIDDEN, requires_grad=True), torch.randn(WORDS, HIDDEN, requires_grad=True)
    targets = torch.randint(0, WORDS, (TOKENS,))
    tracker = MemTracker()
    tracker.track_external(hidden, weight, targets)
    with tracker:
        logps, entropy = OnePassLogProbs.apply(hidden, weight, None, targets, 1.0, goes_backward, has_entropy)
        if goes_backward:
            (logps.sum() + (entropy.sum() if entropy_learns else 0.0)).backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return int(peak) - sum(one.untyped_storage().nbytes() for one in (hidden, weight, targets))


@pytest.mark.parametrize("has_entropy", [False, True])
def test_log_probabilities_take_one_tile_and_entropies_two_more(has_entropy: bool) -> None:
    counted = one_pass_forward_bytes(ARCH, Precision(4.0), TOKENS, has_entropy=has_entropy)
    assert counted == 4 * TOKENS * WORDS * (1 + 2 * has_entropy)
    assert counted == pytest.approx(head_bytes(goes_backward=False, has_entropy=has_entropy), rel=0.02)


@pytest.mark.parametrize("entropy_learns", [False, True])
def test_their_gradient_is_made_beside_the_softmax(entropy_learns: bool) -> None:
    measured = head_bytes(goes_backward=True, has_entropy=True, entropy_learns=entropy_learns)
    forward = one_pass_forward_bytes(ARCH, Precision(4.0), TOKENS, has_entropy=True)
    backward = one_pass_backward_bytes(ARCH, Precision(4.0), TOKENS, trains_head=True, entropy_learns=entropy_learns)
    assert max(forward, backward) == pytest.approx(measured, rel=0.02)


def test_the_plan_and_the_head_draw_the_line_at_the_same_size() -> None:
    """256 MiB of float32 are 2**26 numbers: 65,536 places of 1024 words, and not one more."""
    weight = torch.empty((1024, 1), device="meta")
    arch = Architecture("llama", 1, 1, 1, 1, 1, 1, 1024, 64, ties_head=False)
    for tokens, is_within in ((65536, True), (65537, False), (0, False)):
        assert fits(torch.empty((tokens, 1), device="meta"), weight) is fits_one_pass(arch, tokens) is is_within
