"""What malloc holds beside tensors: where it does, and how much by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from rlhf_cli.plan.memory.estimate import Moment, kept_by_malloc, malloc_keeps
from rlhf_cli.plan.memory.parts import Batch
from rlhf_cli.plan.memory.shapes import Architecture, Precision

ARCH = Architecture("llama", 512, 12, 8, 4, 64, 1536, 4096, 1024, ties_head=False)
FLOAT32 = Precision(4.0)
MIB = 2**20


@pytest.mark.parametrize(
    ("libc", "environment", "keeps"),
    [
        ("glibc 2.36", {}, True),
        ("glibc 2.36", {"MALLOC_ARENA_MAX": "1"}, True),
        ("glibc 2.36", {"MALLOC_MMAP_THRESHOLD_": "65536"}, False),
        ("glibc 2.36", {"MALLOC_MMAP_THRESHOLD_": str(32 * MIB)}, True),
        ("glibc 2.36", {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, False),
        (None, {}, False),
    ],
)
def test_where_it_does(
    libc: str | None, environment: dict[str, str], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the C library is another, or another malloc is loaded, or it was told (mallopt(3), its environment)."""

    def confstr(name: str) -> str:
        if libc is None:
            raise ValueError("unrecognized configuration name")  # as on macOS and with musl
        return libc

    monkeypatch.setattr(os, "confstr", confstr)
    assert malloc_keeps(environment) is keeps


def test_what_dominates_is_what_it_comes_of() -> None:
    """There is something to type that lowers activations, and nothing for malloc."""
    assert (
        Moment("training", "learning", {"kept by malloc": 3, "activations": 2, "weights": 1}).largest == "activations"
    )


def test_a_share_of_what_lies_in_the_heap() -> None:
    """mallopt(3): a block of more than 32 MiB has a mapping of its own, which is given back, and leaves no gap.

    A row of 1024 tokens is 6 MiB of the MLP's 1536 numbers of 4 bytes, and 2 MiB of the 512: 5 rows are 30 MiB and all
    in the heap, of 6 the MLP's 12 x 4 x 36 MiB are not, of 17 nothing is (34 MiB).
    """

    def kept(rows: int, activations: float, logits: float = 0.0, **more: Any) -> float:
        batch = Batch(rows, 1024, padded=False)
        sizes = {"activations": activations, "logits": logits}
        return kept_by_malloc(ARCH, FLOAT32, batch, scored=rows * 1024, **sizes, **more)

    whole = kept(5, 2000 * MIB)
    assert 0 < whole < 2000 * MIB
    assert whole < kept(5, 2000 * MIB, trains_adapter=True) < 2000 * MIB  # no gradients that fill the gaps
    assert kept(5, 4000 * MIB) == pytest.approx(2 * whole)
    assert kept(6, 2000 * MIB) == pytest.approx(whole * (2000 - 12 * 4 * 36) / 2000)
    assert kept(17, 9000 * MIB) == 0
    # A tile of the head is 1024 tokens by 4096 words of 4 bytes, 16 MiB; of two rows it has a mapping of its own.
    assert kept(1, 0, logits=MIB) > 0
    assert kept(2, 0, logits=MIB) == 0
    # A gradient of the MLP's is 512 x 1536 numbers, 3 MiB; of 4096 x 4096 numbers it has a mapping of its own.
    assert 0 < kept(17, 0, gradients=MIB) < MIB
    wide = replace(ARCH, hidden=4096, ffn=4096)
    assert kept_by_malloc(wide, FLOAT32, Batch(1, 1), activations=0, logits=0, scored=1, gradients=MIB) == 0
