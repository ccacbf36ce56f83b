"""The estimate compared with a measured process, for two runs of scripts/bench/memory.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench.memory import in_a_process, make_place

AT_MOST, AT_LEAST = 1.15, 0.9


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    make_place(place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GRPO, gradient checkpointing", "SFT"])
def test_the_estimate_is_what_is_measured(models: Path, name: str) -> None:
    """Within 15 %, and never 10 % below: peaks of generation and of training, of a Llama of 42 million parameters."""
    found = in_a_process(name, models, "cpu")
    estimated, measured = (max(found[which].values()) for which in ("estimated", "measured"))
    print(f"{name}: estimated {estimated / 1e6:.0f} MB, measured {measured / 1e6:.0f}, {estimated / measured - 1:+.1%}")
    assert AT_LEAST * measured < estimated < AT_MOST * measured
    for phase, size in found["estimated"].items():
        if size:
            assert AT_LEAST * found["measured"][phase] < size < AT_MOST * found["measured"][phase], phase
    weights = found["plan"]["fullest"]["training"]["parts_bytes"]["weights"]
    assert not AT_LEAST * measured < estimated - 2 * weights < AT_MOST * measured  # without Adam it would be seen
