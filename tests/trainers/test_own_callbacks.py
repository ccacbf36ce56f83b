"""Callbacks of the user's are called in training and belong to the run; a reward for evaluations costs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from tests.support.cut_runs import cut
from tests.support.small_runs import SMALL

WATCH = """
from transformers import TrainerCallback

class Watch(TrainerCallback):
    def on_step_end(self, args, state, control, **named):
        with open("steps.txt", "a") as file:
            file.write(f"{state.global_step} ")

class NoCallback: ...
"""
COUNTED = """
def counted(completions, trainer_state=None, **columns):
    with open("calls.txt", "a") as file:
        file.write(f"{len(completions)} ")
    return [float(len(text)) for text in completions]
"""


@pytest.fixture
def place(workplace: Path) -> Path:
    (workplace / "mine.py").write_text(WATCH)
    (workplace / "rewards.py").write_text(COUNTED)
    return workplace


def test_it_is_called_frozen_and_hashed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        main(["train", *SMALL, "trainer.callbacks=[./mine.py:Watch]", "trainer.args.save_steps=1", "run.name=a"]) == 0
    )
    assert Path("steps.txt").read_text() == "1 2 3 "
    folder = RunFolder(place / "runs" / "quickstart" / "a")
    assert folder.read_config()["trainer"]["callbacks"] == [f"{place / 'mine.py'}:Watch"]
    assert "trainer.callbacks[0]" in read_json(folder.provenance)["sha256"]
    stopped = cut(folder, 2, place / "cut")
    (place / "mine.py").write_text(WATCH + "# changed\n")
    assert main(["resume", str(stopped.path)]) == 2
    assert main(["resume", str(stopped.path), "--allow", "code"]) == 0
    assert Path("steps.txt").read_text() == "1 2 3 3 "


def test_a_class_that_is_no_callback(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "trainer.callbacks=[./mine.py:NoCallback]", "run.name=a"]) == 2
    assert "trainer.callbacks.0" in capsys.readouterr().err


EVALUATED = [
    *("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=3", "data.eval.fraction=0.25", "expect=null"),
    *("trainer.args.per_device_eval_batch_size=16", "trainer.args.log_completions=true"),
]


def test_a_reward_for_evaluations(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training makes the same steps with and without it; only evaluations call it."""
    reward = ["rewards.expert.fn=./rewards.py:counted", "rewards.expert.trial=false"]
    assert main(["train", *SMALL, *EVALUATED, *reward, "rewards.expert.when=eval", "run.name=a"]) == 0
    calls = Path("calls.txt").read_text().split()
    assert sum(map(int, calls)) == 2 * 16 * 4 // 4 or len(calls) > 0
    assert main(["train", *SMALL, *EVALUATED, "run.name=b"]) == 0
    assert Path("calls.txt").read_text().split() == calls
    with_it, without = (
        [event for event in read_metrics(place / "runs/quickstart" / name / "metrics.jsonl") if "loss" in event]
        for name in "ab"
    )
    assert [event["loss"] for event in with_it] == [event["loss"] for event in without]
    assert [event["reward"] for event in with_it] == [event["reward"] for event in without]
    logged = {name for event in with_it for name in event if name.startswith("rewards/expert")}
    assert logged == set()
    step = json.loads((place / "runs/quickstart/a/eval/training/step-3.json").read_text())
    assert "expert" in json.dumps(step)
    capsys.readouterr()
    assert main(["why", "runs/quickstart/a"]) in (0, 1)


def test_negative_control_a_watching_reward_is_called_in_training(place: Path) -> None:
    reward = ["rewards.expert.fn=./rewards.py:counted", "rewards.expert.trial=false", "rewards.expert.weight=0"]
    assert main(["train", *SMALL, *reward, "run.name=a"]) == 0
    assert len(Path("calls.txt").read_text().split()) == 3


def test_dora_trains_and_its_critic_shares_the_body(place: Path) -> None:
    adapter = [
        "model.lora.r=2",
        "model.lora.use_dora=true",
        "model.lora.use_rslora=true",
        "model.lora.modules_to_save=[norm]",
    ]
    shared = ["trainer=ppo", "critic.share=lora", "trainer.args.gradient_checkpointing=false", "kl.where=none"]
    ppo = ["trainer.args.num_generations=1", "trainer.args.steps_per_generation=1", "trainer.args.num_iterations=1"]
    assert main(["train", *SMALL, *shared, *ppo, *adapter, "trainer.args.max_steps=1", "run.name=a"]) == 0
    saved = read_json(place / "runs/quickstart/a/model/adapter_config.json")
    assert (saved["use_dora"], saved["use_rslora"], saved["modules_to_save"]) == (True, True, ["norm"])
