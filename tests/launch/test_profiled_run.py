"""Runs whose phases are timed: where the seconds of a slow reward go, and what is there without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.utils import parameters_to_vector

from rlhf_cli.runs.metrics_file import read_metrics

SLOW_S = 0.15
OTHERS_S = 0.02
"""What other rewards take at most: once the slow one is known to wait they run beside it, and share the time."""
SLOW = f"""\
import time

def slow(completions, **_):
    time.sleep({SLOW_S})
    return [float(len(c)) for c in completions]
"""


def seconds(event: dict[str, float]) -> dict[str, float]:
    """Phase -> seconds of a log event."""
    prefix = "time/share/"
    shares = {name.removeprefix(prefix): value for name, value in event.items() if name.startswith(prefix)}
    return {name: share * event["time/elapsed_s"] for name, share in shares.items()}


def _parameters(folder: Path) -> list[torch.Tensor]:
    return list(load_file(folder / "model.safetensors").values())


def test_seconds_go_to_what_took_them(train, workplace: Path) -> None:
    """The reward sleeps SLOW_S a step; all shares of every event add up to 1; two log events after one another have the
    seconds between them. Negative controls: phases that did not run have no time, and without a profile nothing logged
    of it, while losses and weights are the same to the last digit.
    """
    (workplace / "mine.py").write_text(SLOW)
    words = ["rewards.slow.fn=./mine.py:slow", "trainer.args.beta=0.05", "trainer.args.save_steps=2"]
    code, folder = train(*words)
    assert code == 0
    *events, last = read_metrics(folder.metrics)
    assert len(events) == 3
    for event in [*events, last]:
        assert sum(seconds(event).values()) == pytest.approx(event["time/elapsed_s"], rel=1e-4)
    for event in events:
        took = seconds(event)
        assert took["reward/slow"] >= SLOW_S - OTHERS_S
        assert took["reward/slow"] == pytest.approx(event["rewards/slow/seconds"], abs=OTHERS_S)
        assert all(took[name] > 0 for name in ("generation", "forward", "backward", "optimizer", "checks", "logging"))
        assert took["reference_logps"] > 0
        assert took["old_logps"] == 0  # each rollout is used once, so they are not computed
        assert took["evaluation"] == 0
    assert seconds(events[2])["saving"] > 0  # after step 2, before the event of step 3
    assert seconds(events[1])["saving"] == 0
    between = events[2]["time_s"] - events[1]["time_s"]
    assert events[2]["time/elapsed_s"] == pytest.approx(between, abs=0.05)
    assert 0 < events[0]["passes/slots"] < events[0]["passes/tokens"]  # a group's prompt is computed once
    _, without = train(*words, "profile=off", name="without")
    logged = read_metrics(without.metrics)
    assert not any(name.startswith(("time/", "passes/slots", "passes/tokens")) for event in logged for name in event)
    assert [event["loss"] for event in events] == [event["loss"] for event in logged[:3]]
    assert torch.equal(*(parameters_to_vector(_parameters(one.model)) for one in (folder, without)))
