"""`rlhf score` gives a function what `rlhf train` gives it, and accepts the same results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlhf_cli.cli import main

MINE = """
class Ids:
    def __call__(self, completions, **columns):
        return self._lengths(columns)

    def _lengths(self, columns):
        return [len(ids) for ids in columns["completion_ids"]]

def _lengths(columns):
    return [len(ids) for ids in columns.get("completion_ids")]

def ids(completions, **columns):
    return _lengths(columns)

def named(completion_ids):
    return [len(ids) for ids in completion_ids]

def array(completions, **columns):
    import numpy
    return numpy.array([[len(text)] for text in completions])

def tensor(completions):
    import torch
    return torch.tensor([[float(len(text))] for text in completions])

def lists(completions):
    return [[float(len(text))] if text else None for text in completions]

def bools(completions):
    return [len(text) > 2 for text in completions]

def scalars(completions, **columns):
    import numpy
    return [numpy.float32(len(text)) if len(text) % 2 else None for text in completions]

def state(completions, trainer_state, log_metric, log_extra):
    log_metric(name="mine", value=1.0)
    log_extra(column="mine", values=list(completions))
    return [float(trainer_state.is_world_process_zero) + trainer_state.num_input_tokens_seen] * len(completions)
"""
SAME = ("array", "tensor", "lists", "bools", "scalars")
IDS = ("Ids", "ids", "named")


@pytest.mark.parametrize("isolate", ["false", "true"])
def test_the_same_functions_in_both(
    isolate: str, place: Path, write: Callable[[str, str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    write("mine.py", MINE)
    names = (*SAME, *IDS, "state") if isolate == "false" else ("array", "Ids", "named")
    words = ["+exp=quickstart", *(f"~rewards.{one}" for one in ("correct", "format", "brevity")), "track=none"]
    words += [f"rewards.{name}.fn=./mine.py:{name}" for name in names]
    words += [f"rewards.{name}.isolate={isolate}" for name in names]
    words += ["expect=null", "run.name=r", "trainer.args.max_steps=1", "trainer.args.per_device_train_batch_size=8"]
    assert main(["train", *words]) == 0
    (table,) = Path("runs/quickstart/r/completions").glob("*.parquet")
    trained = pq.read_table(table).to_pylist()
    capfd.readouterr()
    assert main(["score", *words, "--completions", str(table), "--json"]) == 0
    printed = capfd.readouterr()
    rows = json.loads(printed.out)["rows"]
    for name in (one for one in names if one in SAME):
        assert [row[name] for row in trained] == [row["rewards"][name]["raw"] for row in rows]
    for name in (one for one in names if one in IDS):  # the answers are read again as text, without their last token
        assert {row[name] - again["rewards"][name]["raw"] for row, again in zip(trained, rows, strict=True)} <= {
            0.0,
            1.0,
        }
    if isolate == "false":
        assert {row["rewards"]["state"]["raw"] for row in rows} == {1.0}
        assert printed.err.count("rewards.lists returns lists of one number") <= 1  # said once a process
