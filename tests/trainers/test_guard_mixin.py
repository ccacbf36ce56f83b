"""What is NaN or infinite never reaches an optimizer step or a checkpoint; what the guards check, and when."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf_cli.cli import main
from rlhf_cli.errors import GuardStopped
from rlhf_cli.rewards.stack.reward_metrics import ComponentStatistics, DeadRound
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.trainers import guard_mixin
from rlhf_cli.trainers.extensions import Extensions
from rlhf_cli.trainers.guard_mixin import EvaluationBrokenOff, GuardMixin, own_shard
from tests.support.small_runs import PPO_SMALL, SMALL


class Trl:
    """Stands for TRL's trainer: it notes what is asked of it, and `breaks` once."""

    breaks: BaseException | None = None

    def __init__(self) -> None:
        self.args, self.state, self.calls = (
            SimpleNamespace(output_dir="run"),
            SimpleNamespace(global_step=6),
            list[Any](),
        )
        reduce = lambda own, reduction: own + self.others if reduction == "sum" else None  # noqa: E731
        self.accelerator = SimpleNamespace(device="cpu", scaler=None, reduce=reduce)
        self.control, self.others = SimpleNamespace(should_training_stop=False), torch.zeros(3)
        self.model, self.extensions = torch.nn.Linear(2, 1), Extensions()

    def compute_loss(self, model: Any, inputs: Any, factor: float) -> torch.Tensor:
        return torch.tensor(inputs["number"] * factor)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return self.compute_loss(model, inputs, factor=0.5)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return {"advantages": inputs}

    def _maybe_log_save_evaluate(self, *given: object) -> None:
        self.calls.append((*given, dict(vars(self.control))))
        if self.breaks is not None:
            error, self.breaks = self.breaks, None
            raise error

    def _notes(self, *given: object) -> None:
        self.calls.append(given)

    save_model = _load_rng_state = _notes

    def _run_epoch(self, **named: object) -> None:
        self.calls.append((named,))


class Guarded(GuardMixin, Trl):  # type: ignore[misc]
    """A trainer with the guards alone."""


# What is written of the batch: every row by itself, as text and as numbers that JSON knows.


def test_a_step_is_checked_with_the_batches_and_losses_of_its_window() -> None:
    checked: list[list[float]] = []
    trainer: Any = Guarded()
    trainer.refuse_non_finite = lambda losses, trained: checked.append([loss.item() for loss in losses])
    for number, is_last in enumerate([False, True, False, False, True]):
        trainer.accelerator.sync_gradients = is_last
        assert trainer.training_step(trainer.model, {"number": number}).item() == number / 2
    trainer.model.eval()
    trainer.compute_loss(trainer.model, {"number": 9}, factor=1.0)  # of an evaluation
    assert checked == [[0.0, 0.5], [1.0, 1.5, 2.0]]
    assert [(batch["number"], loss.item()) for batch, loss in trainer._window] == [(2, 1.0), (3, 1.5), (4, 2.0)]


def test_rows_of_a_micro_batch_are_told_apart() -> None:
    """Ids by their mask, or without those that a loss ignores; numbers of a row or a token; nothing else."""
    batch = {
        "kl_coef": torch.tensor(0.1),
        "texts": ["a", "b"],
        "prompt_ids": torch.tensor([[0, 5, 6], [7, 8, 9]]),
        "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
        "input_ids": torch.tensor([[1, 2], [3, 4]]),
        "attention_mask": torch.tensor([[1, 0], [1, 1]]),
        "completion_ids": torch.tensor([[4, -100], [4, 5]]),
        "token_type_ids": torch.rand(2, 2),
        "returns": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "states": torch.rand(2, 2),
        "margin": torch.tensor([0.5, torch.inf]),
        "KL_margin": torch.tensor([7.0]),
    }
    first = {"prompt": [5, 6], "input": [1], "completion": [4], "returns": [1.0, 2.0], "margin": 0.5, "KL_margin": 7.0}
    second = {"prompt": [7, 8, 9], "input": [3, 4], "completion": [4, 5], "returns": [3.0, 4.0], "margin": math.inf}
    assert guard_mixin._rows(batch, list) == [first, second]
    assert guard_mixin._rows([batch], list) == guard_mixin._rows({}, list) == []


def test_rows_of_a_round_have_each_reward_and_their_advantage() -> None:
    logs = {"prompt": ["p", "q"], "completion": ["c", "d"], "rewards": {"r": [1.0, 2.0]}, "advantages": [0.5, -0.5]}
    assert guard_mixin._round(logs) == [
        {"prompt": "p", "completion": "c", "rewards/r": 1.0, "advantage": 0.5},
        {"prompt": "q", "completion": "d", "rewards/r": 2.0, "advantage": -0.5},
    ]
    assert guard_mixin._round({}) == []


def test_what_json_does_not_know_becomes_text() -> None:
    given = {"row": [math.nan, -math.inf, 1.5, (True, None, 2)], 3: Path("x")}
    assert guard_mixin._plain(given) == {"row": ["nan", "-inf", 1.5, [True, None, 2]], "3": "x"}


def test_how_many_tensors_are_bad_is_counted_among_those_that_there_are() -> None:
    sound, bad = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    bad.grad = torch.tensor([1.0, torch.nan])
    losses = [torch.tensor(1.0), torch.tensor(torch.inf)]
    loss, gradient, weight = guard_mixin._described(guard_mixin._FOUND, losses, [("sound", sound), ("bad", bad)])
    assert loss.endswith(": 1, inf")
    assert "1 of 1 tensors, bad " in gradient
    assert weight.endswith("0 of 2 tensors")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_weight_in_a_rank_s_shard_is_found(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """ZeRO-3 keeps a parameter empty and the shard beside it; FSDP 2's tensor gives its own part."""
    for shard, is_sound in ((torch.tensor([1.0, value]), False), (torch.tensor([1.0, 2.0]), True)):
        parameter: Any = torch.nn.Parameter(torch.empty(0))
        parameter.ds_tensor = shard
        assert bool(guard_mixin._norm([parameter], torch.inf).isfinite()) is is_sound
        monkeypatch.setattr(guard_mixin, "DTensor", SimpleNamespace)
        assert own_shard(SimpleNamespace(to_local=lambda shard=shard: shard)) is shard  # type: ignore[arg-type]
        monkeypatch.undo()


# Which numbers are looked at: of all ranks, and of what is trained.


def found_by(trainer: Any, losses: tuple[float, ...] = (1.0,), **named: bool) -> list[str]:
    """What `stop` is called with."""
    stopped: list[list[str]] = []
    trainer.stop = lambda found, details: stopped.append(found)
    trainer.refuse_non_finite([torch.tensor(loss) for loss in losses], trainer._trained(), **named)
    return stopped[0] if stopped else []


def test_numbers_of_any_rank_are_looked_at_where_they_are_trained() -> None:
    trainer = Guarded()
    weight, bias = trainer.model.parameters()
    weight.grad = torch.tensor([[1e30, 1.0]])  # a norm of squares takes it for infinite
    assert found_by(trainer) == []
    weight.grad[0, 1] = torch.nan
    assert found_by(trainer, (1.0, math.inf)) == ["the loss", "the gradient"]
    assert found_by(trainer, with_gradient=False) == []
    trainer.accelerator.scaler = object()  # under fp16 the scaler skips such a step
    assert found_by(trainer) == []
    with torch.no_grad():
        bias[0] = torch.inf
    assert found_by(trainer) == ["a weight"]
    trainer.model.requires_grad_(False)
    assert found_by(trainer) == []
    trainer.others[1] = 1.0
    assert found_by(trainer) == ["the gradient"]


def test_a_bad_weight_is_not_saved_and_a_bad_gradient_no_reason_not_to() -> None:
    trainer: Any = Guarded()
    trainer.model.weight.grad = torch.full((1, 2), torch.nan)
    trainer.save_model("here")
    assert trainer.calls == [("here", False)]
    trainer.stop = lambda found, details: (_ for _ in ()).throw(GuardStopped(*found))
    with torch.no_grad():
        trainer.model.weight[0, 0] = torch.nan
    with pytest.raises(GuardStopped, match="a weight"):
        trainer.save_model("there")
    assert trainer.calls == [("here", False)]


def dead(step: int, left_out: float = 0.0) -> DeadRound:
    flat = ComponentStatistics("flat", (), 1.0, low=0.7, high=0.7, open_fraction=1.0, errors=0, size=0.7, spread=0.0)
    return DeadRound(step, (flat,), left_out)


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_as_many_rounds_without_a_signal_as_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut_off: bool
) -> None:
    """A round with a signal begins the count anew, and an evaluation is none. Tables of completions can be scored."""
    monkeypatch.chdir(tmp_path)
    Path("run/completions").mkdir(parents=True)
    share = 1.0 if is_cut_off else 0.0
    trainer: Any = Guarded()
    trainer.extensions = SimpleNamespace(rewards=SimpleNamespace(no_signal=2))
    rounds = [dead(3), None, dead(5, share), dead(6, share)]
    trainer.dead_round = lambda advantages: rounds.pop(0)
    for _ in range(3):
        assert trainer._generate_and_score_completions([0.0]) == {"advantages": [0.0]}
    trainer.model.eval()
    trainer._generate_and_score_completions([0.0])
    trainer.model.train()
    with pytest.raises(GuardStopped) as caught:
        trainer._generate_and_score_completions([0.0])
    error = caught.value
    assert str(error.where).startswith("steps 5 to 6;")
    assert (error.got, bool(error.expected)) == ("flat: 0.7 on every row, weight 1", True)
    assert error.hint == ("" if is_cut_off else "rlhf score run, or ") + "guards.no_signal=off"
    assert (error.advice is not None) is is_cut_off
    for rewards in (None, SimpleNamespace(no_signal=None)):
        trainer.extensions = SimpleNamespace(rewards=rewards)
        assert trainer._generate_and_score_completions([0.0]) == {"advantages": [0.0]}  # `dead_round` is not asked


def test_an_evaluation_that_is_broken_off_saves_and_stops() -> None:
    trainer: Any = Guarded()
    trainer.control = SimpleNamespace(should_evaluate=True, should_save=False, should_training_stop=False)
    trainer._maybe_log_save_evaluate("loss")
    trainer.breaks = EvaluationBrokenOff()
    before = {"should_evaluate": True, "should_save": False, "should_training_stop": False}
    after = dict.fromkeys(("should_save", "should_training_stop"), True) | {"should_evaluate": False}
    trainer._maybe_log_save_evaluate("loss")
    assert trainer.calls == [("loss", before), ("loss", before), ("loss", after)]
    assert trainer._owes_evaluation


@pytest.mark.parametrize("ends", [False, True])
def test_what_is_owed_is_made_up_before_the_first_step_and_may_end_the_run(ends: bool) -> None:
    trainer: Any = Guarded()
    given = {"model": 1, "trial": 2, "epoch": 3, "ignore_keys_for_eval": 4, "start_time": 5}
    given["resume_from_checkpoint"] = "checkpoint-6"  # type: ignore[assignment]
    trainer._owes_evaluation, trainer.control.should_training_stop = True, ends
    trainer._run_epoch(**given)
    only_evaluates = {"should_evaluate": True, "should_log": False, "should_save": False, "should_training_stop": ends}
    made_up = (torch.zeros(()), None, 1, 2, 3, 4, 5, only_evaluates)
    assert trainer.calls == [("checkpoint-6",), made_up, *([] if ends else [(given,)])]
    trainer.calls.clear()
    trainer._run_epoch(**given)  # the next epoch
    assert trainer.calls == [(given,)]


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


@pytest.mark.whole
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


@pytest.mark.whole
def test_a_bad_gradient_of_the_critic(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, folder, trainer = run("ppo", bad_gradient(lambda trainer: trainer.critic.parameters(), -torch.inf))
    said = capsys.readouterr().err
    assert_stopped_at_three(code, folder, "the gradient is", said)
    assert "critic." in said
    saved = load_file(folder.checkpoints / "checkpoint-2" / "critic" / "model.safetensors")
    state = trainer.critic.model.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in saved.items())


@pytest.mark.whole
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
