"""One command repeats the failure of a reward in training, until it is fixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_cli.cli import main
from rlhf_cli.evaluation.score_completions import read_completions
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.reward_records import kept_batches

REWARDS = """
from pathlib import Path

def even(b, **kwargs):
    return [float(number % 2 == 0) for number in b]

async def gated(a, b, **kwargs):
    assert all(number % 2 == 0 for number in b), "the gate leaves even ones"
    for number in a:
        if number % 2 == 0 and not Path("mended").exists():
            raise OSError(f"cannot read {number}")
    return [1.0] * len(a)
"""
WORDS = [
    "rewards.even.fn=./mine.py:even",
    "rewards.gated.fn=./mine.py:gated",
    "rewards.gated.trial=false",  # otherwise the check refuses it before the run
    "rewards.gated.gate={by: even, at_least: 1}",
]


def test_the_command_fails_until_the_reward_is_fixed(train: Any, workplace: Path, capsys: Any) -> None:
    (workplace / "mine.py").write_text(REWARDS)
    code, folder = train(*WORDS)
    assert code == 1
    (command,) = kept_batches(folder)
    assert command in capsys.readouterr().err.replace("\n", "")
    _, *words = command.split()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "reward 'gated' failed on row" in said
    assert f'File "{workplace}/mine.py"' in said
    assert "stack/calling.py" not in said  # the traceback starts in the user's code

    assert main(["score", "runs/quickstart/none"]) == 2
    assert "is not a run folder" in capsys.readouterr().err

    (workplace / "mended").touch()
    assert main(words) == 0
    assert "gated" in capsys.readouterr().out


def test_a_run_that_continues_prints_the_command_at_its_end(train: Any, workplace: Path, capsys: Any) -> None:
    (workplace / "mine.py").write_text(REWARDS)
    code, folder = train(*WORDS, "rewards.gated.on_error=0.0", "guards.max_error_share=1")
    assert code == 0
    told = capsys.readouterr().out
    assert "gated failed on" in told
    (command,) = kept_batches(folder)
    assert command in told.replace("\n", "")
    # Without a file, the last completions of the run are scored, and failures count as in training.
    assert main(["score", "runs/quickstart/one"]) == 0
    assert "brevity" in capsys.readouterr().out


@pytest.mark.parametrize(
    "names", [("completions_99999", "completions_100000"), ("a_longer_name", "b"), ("other", "completions_00001")]
)
def test_of_a_folder_the_table_of_the_last_step_is_read(place: Path, names: tuple[str, str]) -> None:
    experiment = prepare(["+exp=quickstart"]).experiment
    for name in names:
        pq.write_table(pa.table({"prompt": ["p"], "completion": [name]}), f"{name}.parquet")
    (row,) = read_completions(place, limit=None, experiment=experiment)
    assert row["completion"] == names[1]
