"""Numbers that are not finite never reach an optimizer step or a checkpoint; sharded parameters are read correctly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.whole

TINY = [*SMALL[1:4], "launch=cpu", "track=none", "data.args.num_rows=60", "trainer.args.per_device_train_batch_size=8"]
EVERY_STEP = ["trainer.args.max_steps=4", "trainer.args.save_steps=1", "trainer.args.save_total_limit=null"]
TRAINERS = {
    "grpo": SMALL,
    "ppo": [*SMALL, *PPO_SMALL],
    **{f"toy_{name}": [f"+exp=toy_{name}", *TINY] for name in ("sft", "reward")},
}
AT_STEP = 2
"""Steps that were taken when the fault is planted."""
Plant = Callable[[Any], None]
Run = Callable[[str, Plant], tuple[int, RunFolder, Any]]


@pytest.fixture
def run(workplace: Path, before_training: Callable[[Plant], None]) -> Run:
    """`run("grpo", plant)`: (exit code, run folder, the trainer), where plant(trainer) made it faulty."""

    def start(name: str, plant: Plant) -> tuple[int, RunFolder, Any]:
        trainers: list[Any] = []
        before_training(trainers.append)
        before_training(plant)
        code = main(["train", *TRAINERS[name], *EVERY_STEP, "run.name=one"])
        (folder,) = (workplace / "runs").glob("*/one")
        return code, RunFolder(folder), trainers[0]

    return start


def bad_gradient(parameters: Callable[[Any], Any], value: float) -> Plant:
    """One entry of one gradient is `value` from the third step on; losses and weights stay as they are."""

    def plant(trainer: Any) -> None:
        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            if trainer.state.global_step >= AT_STEP:
                gradient = gradient.clone()
                gradient.view(-1)[0] = value
            return gradient

        next(one for one in parameters(trainer) if one.requires_grad).register_hook(spoil)

    return plant


class AfterStep(TrainerCallback):
    """Make one weight NaN after `step` steps: the embedding of a byte that no text contains."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == self.step:
            with torch.no_grad():
                model.get_input_embeddings().weight[255, 0] = torch.nan


def assert_sound(folder: RunFolder) -> None:
    files = list(folder.path.rglob("*.safetensors"))
    assert all(tensor.isfinite().all() for file in files for tensor in load_file(file).values())
    assert not folder.model.exists()


OF_THE_POLICY = bad_gradient(lambda trainer: trainer.model.parameters(), torch.nan)
OF_THE_CRITIC = bad_gradient(lambda trainer: trainer.critic.parameters(), -torch.inf)


@pytest.mark.parametrize(("name", "plant"), [*((name, OF_THE_POLICY) for name in TRAINERS), ("ppo", OF_THE_CRITIC)])
@pytest.mark.fault(37)
def test_a_bad_gradient_is_not_stepped_on(run: Run, name: str, plant: Plant, capsys: Any) -> None:
    code, folder, trainer = run(name, plant)
    said, status = capsys.readouterr().err, read_status(folder)
    assert (code, status.state, status.step, status.last_checkpoint) == (1, "failed", 2, "checkpoint-2")
    assert "the gradient is not finite: stopped before optimizer step 3" in said
    assert "the gradient is not finite" in str(status.reason)
    assert ("critic." in said) is (plant is OF_THE_CRITIC)
    assert "rlhf resume runs/" in said
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["checkpoint-1", "checkpoint-2"]
    assert_sound(folder)
    saved = {"": trainer.model} | ({"critic": trainer.critic.model} if name == "ppo" else {})
    for place, model in saved.items():
        weights = load_file(folder.checkpoints / "checkpoint-2" / place / "model.safetensors")
        assert weights
        assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in weights.items())
    (file,) = (folder.path / "non_finite").iterdir()
    written: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rows = written["micro_batches"][0]["rows"]
    assert len(rows) == (16 if name == "toy_reward" else 8)  # of a pair both answers
    assert any(isinstance(value, str) and "=" in value for value in rows[0].values())
    if name in ("grpo", "ppo"):
        assert {"prompt", "completion", "advantages"} <= rows[0].keys()
        of_round = {"prompt", "completion", "rewards/correct", "rewards/brevity", "advantage"}
        assert of_round <= written["round"][0].keys()


@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.fault(37)
def test_a_bad_weight_is_not_saved(run: Run, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    """After the third step it would be in a checkpoint; after the last one in what the run leaves."""
    code, folder, _ = run("toy_sft", lambda trainer: trainer.add_callback(AfterStep(step)))
    assert code == 1
    assert "a weight is not finite" in capsys.readouterr().err
    assert read_status(folder).state == "failed"
    assert len(list(folder.checkpoints.iterdir())) == step - 1
    assert_sound(folder)


@pytest.mark.fault(37)
def test_negative_control_a_large_finite_gradient_is_stepped_on(run: Run) -> None:
    """Its square is beyond float32: a norm of squares would take it for infinite."""
    code, folder, _ = run("toy_sft", bad_gradient(lambda trainer: trainer.model.parameters(), 1e30))
    assert (code, read_status(folder).state) == (0, "finished")
    assert not (folder.path / "non_finite").exists()


CONSTANT = "def constant(completions, **_): return [0.7] * len(completions)\n"


@pytest.mark.fault(33)
def test_five_rounds_without_a_signal(train: Any, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "mine.py").write_text(CONSTANT)
    only = ["~rewards.correct", "~rewards.format", "~rewards.brevity", "+rewards.flat.fn=./mine.py:constant"]
    code, folder = train(*only, "trainer.args.max_steps=20")
    said = capsys.readouterr().err
    assert "steps 1 to 5;" in said
    assert "flat: 0.7 on every row, weight 1" in said
    assert "Traceback" not in said
    assert f"try:      rlhf score {folder.shown}, or guards.no_signal=off" in said
    assert main(["score", folder.shown]) == 0
    status = read_status(folder)
    assert (code, status.state, status.step) == (1, "failed", 4)  # of the fifth round no step is taken


def test_a_policy_without_probabilities(train: Any, before_training: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights are NaN when it is first asked: torch alone says `probability tensor contains either inf, nan`."""

    def spoil(trainer: Any) -> None:
        with torch.no_grad():
            trainer.model.get_input_embeddings().weight.fill_(torch.nan)

    before_training(spoil)
    code, folder = train()
    assert (code, read_status(folder).state) == (1, "failed")
    assert "the policy's answer is not finite: stopped before optimizer step 1" in capsys.readouterr().err
