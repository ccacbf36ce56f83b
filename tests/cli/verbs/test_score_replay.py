"""A reward that failed in training fails again by one command, with its own traceback, until it is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_cli.cli import main
from rlhf_cli.runs.failure_capsules import capsules_of, replay_command

REWARDS = """
import asyncio
from pathlib import Path

def _fail(number, kind):
    if not Path("mended").exists():
        raise kind(f"cannot read {number}")

def even(b, **kwargs):
    return [float(number % 2 == 0) for number in b]

def plain(a, **kwargs):
    for number in a:
        if number % 3 == 0:
            _fail(number, KeyError)
    return [1.0] * len(a)

async def gated(a, b, trainer_state, **kwargs):
    assert trainer_state.max_steps == 3
    assert all(number % 2 == 0 for number in b), "the gate leaves even ones"
    await asyncio.sleep(0)
    for number in a:
        if number % 2 == 0:
            _fail(number, OSError)
    return [1.0] * len(a)
"""
WORDS = [
    "rewards.even.fn=./mine.py:even",
    "rewards.plain.fn=./mine.py:plain",
    "rewards.plain.on_error=exclude",
    "rewards.gated.fn=./mine.py:gated",
    "rewards.gated.on_error=0.0",
    "rewards.gated.gate={by: even, at_least: 1}",
    "guards.max_error_share=1",
]


def test_it_fails_again_and_passes_when_mended(train: Any, workplace: Path, capsys: Any) -> None:
    (workplace / "mine.py").write_text(REWARDS)
    code, folder = train(*WORDS)
    told = capsys.readouterr().out
    kept = {capsule.reward: (file, capsule) for file, capsule in capsules_of(folder).items()}
    assert code == 0
    assert set(kept) == {"plain", "gated"}
    for name, (file, capsule) in kept.items():
        command = replay_command(folder, file)
        assert f"{name} failed on" in told
        assert command in told.replace("\n", "") or name == "gated"  # the panel names the first one's command
        _, *words = command.split()
        assert main(words) == 1
        said = capsys.readouterr().err
        # The frames of the function itself: those of futures above it are others where an answer is there at once.
        mine = capsule.traceback[capsule.traceback.index(f'File "{workplace}/mine.py"') :]
        assert mine in said
        assert "stack/calling.py" not in said  # a user reads of their own code first, and of nobody else's
        assert f"reward '{name}' failed on row {capsule.row}" in said

    described = kept["plain"][0].with_suffix(".json")  # what lies beside the rows, and is named as easily
    assert main(["score", "runs/quickstart/one", "--completions", str(described)]) == 1
    assert "reward 'plain' failed on row" in capsys.readouterr().err

    file = str(kept["plain"][0])
    assert main(["score", "+exp=quickstart", "--completions", file]) == 2
    assert "a failure of the reward 'plain', which the experiment does not have" in capsys.readouterr().err
    assert main(["score", "runs/quickstart/none"]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    # Without a file: the run's own last completions, by all its rewards, whose failures count as in training.
    assert main(["score", "runs/quickstart/one"]) == 0
    assert "brevity" in capsys.readouterr().out

    (workplace / "mended").touch()
    for name, (file, _) in kept.items():
        assert main(["score", "runs/quickstart/one", "--completions", str(file)]) == 0
        passed = capsys.readouterr()
        assert f"rewards.{name} does not fail on these rows any more" in passed.err
        assert "brevity" not in passed.out
