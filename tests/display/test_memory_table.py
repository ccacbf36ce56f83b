"""Memory as it is shown: a row a phase, parts by size; at 80 and 120 columns."""

from __future__ import annotations

import pytest

from rlhf_cli.display.start_panel import memory_table
from rlhf_cli.plan.devices import Device
from rlhf_cli.plan.memory_estimate import MemoryPlan, Moment
from tests.support.terminal import drawn

GB = 10**9
GENERATING = Moment("generation", "generating 8 completions", {"weights": 2 * GB, "KV cache": 1 * GB})
LEARNING = Moment("training", "learning from 8 rows", {"weights": 2 * GB, "activations": 6 * GB, "logits": 10**6})
SMALLER = Moment("training", "the end of the backward pass", {"weights": 2 * GB, "gradients": 2 * GB})
PLAN = MemoryPlan(Device(on_gpu=True, num_bytes=16 * GB), (GENERATING, LEARNING, SMALLER))


@pytest.mark.parametrize("width", [80, 120])
def test_a_row_a_phase_and_its_parts_by_size(width: int) -> None:
    heading, generation, training, most = (" ".join(line.split()) for line in drawn(memory_table(PLAN), width))
    assert heading == "memory of each GPU (16 GB) peak estimated parts"
    assert generation == "generation 3 GB weights 2 GB, KV cache 1 GB"
    assert training == "training 8 GB activations 6 GB, weights 2 GB"  # the fullest moment, without what is below 1 %
    assert most == "largest part: activations, 75% (learning from 8 rows)"


def test_more_than_there_is() -> None:
    plan = MemoryPlan(Device(on_gpu=True, num_bytes=7 * GB), (GENERATING, LEARNING))
    assert drawn(memory_table(plan))[-1] == "more than the 7.0 GB of the GPU: it will not fit"


def test_what_is_not_known_is_said() -> None:
    assert drawn(memory_table(MemoryPlan(Device(), unknown="model_type mamba2"))) == [
        "memory: not estimated (model_type mamba2)"
    ]
    some = MemoryPlan(Device(), (LEARNING,), leaves_out=("prompts, whose length is not known",))
    assert drawn(memory_table(some))[-1] == "not counted: prompts, whose length is not known"
