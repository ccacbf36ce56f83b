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

# What is NaN or infinite never reaches an optimizer step or a checkpoint, whichever trainer runs.


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


def bad_loss(trainer: Any) -> None:
    """The loss is infinite by a constant, which has no gradient."""
    compute = trainer.compute_loss

    def compute_loss(*args: Any, **named: Any) -> Any:
        return compute(*args, **named) + (torch.inf if trainer.state.global_step >= AT_STEP else 0.0)

    trainer.compute_loss = compute_loss


class AfterStep(TrainerCallback):
    """Make one weight NaN after `step` steps: the embedding of a byte that no text contains."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == self.step:
            with torch.no_grad():
                model.get_input_embeddings().weight[255, 0] = torch.nan


def numbers_saved(folder: RunFolder) -> list[torch.Tensor]:
    files = list(folder.path.rglob("*.safetensors"))
    return [tensor for file in files for tensor in load_file(file).values()]


def dump(folder: RunFolder) -> dict[str, Any]:
    (file,) = (folder.path / "non_finite").iterdir()
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def assert_stopped_at_three(code: int, folder: RunFolder, what: str, said: str) -> None:
    status = read_status(folder)
    assert (code, status.state, status.step, status.last_checkpoint) == (1, "failed", 2, "checkpoint-2")
    assert f"{what} not finite: stopped before optimizer step 3" in said
    assert f"{what} not finite" in str(status.reason)
    assert "rlhf resume runs/" in said
    assert "checkpoint-2, the last good checkpoint" in said
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["checkpoint-1", "checkpoint-2"]
    assert all(tensor.isfinite().all() for tensor in numbers_saved(folder))
    assert not folder.model.exists()
    assert "Traceback" not in said


@pytest.mark.parametrize("name", list(TRAINERS))
@pytest.mark.fault(37)
def test_a_bad_gradient_is_not_stepped_on(run: Run, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, folder, trainer = run(name, bad_gradient(lambda trainer: trainer.model.parameters(), torch.nan))
    assert_stopped_at_three(code, folder, "the gradient is", capsys.readouterr().err)
    saved = load_file(folder.checkpoints / "checkpoint-2" / "model.safetensors")
    state = trainer.model.state_dict()
    assert saved
    assert all(torch.equal(state[key], tensor) for key, tensor in saved.items())
    rows = dump(folder)["micro_batches"][0]["rows"]
    assert len(rows) == (16 if name == "toy_reward" else 8)  # of a pair both answers
    if name in ("grpo", "ppo"):
        assert {"prompt", "completion", "advantages"} <= rows[0].keys()
        of_round = dump(folder)["round"][0]
        assert {"prompt", "completion", "rewards/correct", "rewards/brevity", "advantage"} <= of_round.keys()
        assert "=" in rows[0]["prompt"]
    else:
        assert any(isinstance(value, str) and "=" in value for value in rows[0].values())


def test_a_bad_gradient_of_the_critic(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, folder, trainer = run("ppo", bad_gradient(lambda trainer: trainer.critic.parameters(), -torch.inf))
    said = capsys.readouterr().err
    assert_stopped_at_three(code, folder, "the gradient is", said)
    assert "critic." in said
    saved = load_file(folder.checkpoints / "checkpoint-2" / "critic" / "model.safetensors")
    state = trainer.critic.model.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in saved.items())


def test_a_bad_loss_with_a_bad_gradient(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def plant(trainer: Any) -> None:
        bad_loss(trainer)
        bad_gradient(lambda trainer: trainer.model.parameters(), torch.nan)(trainer)

    code, folder, _ = run("toy_sft", plant)
    assert_stopped_at_three(code, folder, "the loss and the gradient are", capsys.readouterr().err)


@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.fault(37)
def test_a_bad_weight_is_not_saved(run: Run, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    """After the third step it would be in a checkpoint; after the last one in what the run leaves."""
    code, folder, _ = run("toy_sft", lambda trainer: trainer.add_callback(AfterStep(step)))
    assert code == 1
    assert "a weight is not finite" in capsys.readouterr().err
    assert read_status(folder).state == "failed"
    assert len(list(folder.checkpoints.iterdir())) == step - 1
    assert all(tensor.isfinite().all() for tensor in numbers_saved(folder))
    assert not folder.model.exists()


@pytest.mark.fault(37)
def test_negative_control_a_large_finite_gradient_is_stepped_on(run: Run) -> None:
    """Its square is beyond float32: a norm of squares would take it for infinite."""
    code, folder, _ = run("toy_sft", bad_gradient(lambda trainer: trainer.model.parameters(), 1e30))
    assert (code, read_status(folder).state) == (0, "finished")
    assert not (folder.path / "non_finite").exists()


ONLY = ["~rewards.correct", "~rewards.format", "~rewards.brevity"]
CONSTANT = "def constant(completions, **_): return [0.7] * len(completions)\n"


@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
@pytest.mark.fault(33)
def test_five_rounds(train: Any, workplace: Path, trainer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """PPO's rounds are of two optimizer steps: the fifth begins with the ninth."""
    (workplace / "mine.py").write_text(CONSTANT)
    words = PPO_SMALL if trainer == "ppo" else []
    code, folder = train(*words, *ONLY, "+rewards.flat.fn=./mine.py:constant", "trainer.args.max_steps=20")
    assert (code, read_status(folder).state) == (1, "failed")
    said = capsys.readouterr().err
    assert "no signal in 5 rounds in a row: no reward differed" in said
    assert f"steps 1 to {9 if trainer == 'ppo' else 5};" in said
    assert "flat: 0.7 on every row, weight 1" in said
    assert "Traceback" not in said
    assert f"try:      rlhf score {folder.shown}, or guards.no_signal=off" in said
    assert main(["score", folder.shown]) == 0
    assert read_status(folder).step == (8 if trainer == "ppo" else 4)  # of the fifth round no step is taken


def test_a_policy_without_probabilities(train: Any, before_training: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights are NaN when it is first asked: torch alone says `probability tensor contains either inf, nan`."""

    def spoil(trainer: Any) -> None:
        with torch.no_grad():
            trainer.model.get_input_embeddings().weight.fill_(torch.nan)

    before_training(spoil)
    code, folder = train()
    said = capsys.readouterr().err
    assert (code, read_status(folder).state) == (1, "failed")
    assert "the policy's answer is not finite: stopped before optimizer step 1" in said
    assert "there is no checkpoint of this run yet" in said
