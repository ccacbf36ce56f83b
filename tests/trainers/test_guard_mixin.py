"""What the guards check and when, what they write and raise, without a run; test_finite_steps.py trains."""

from __future__ import annotations

import contextlib
import json
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.errors import GuardStopped
from rlhf_cli.rewards.stack.reward_metrics import DeadRound
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.redaction import forgetting, remember
from rlhf_cli.trainers import guard_mixin
from rlhf_cli.trainers.extensions import Extensions
from rlhf_cli.trainers.guard_mixin import EvaluationBrokenOff, GuardMixin, _norm, _plain, _round, _rows, own_shard
from tests.support.one_rank import write_checkpoint


class Trl:
    """Stands for TRL's trainer on one of two ranks: it notes its calls, and `breaks` once."""

    breaks: BaseException | None = None

    def __init__(self, folder: Path = Path("run"), **args: object) -> None:
        given = {"output_dir": str(folder), "learning_rate": 0.03, "max_grad_norm": 0.7, "should_save": True}
        self.args = SimpleNamespace(**given, eval_strategy="steps", **args)
        self.model, self.state, self.calls = torch.nn.Linear(2, 1), SimpleNamespace(global_step=6), list[Any]()
        self.processing_class = SimpleNamespace(decode=list)
        self.accelerator = SimpleNamespace(process_index=0, device="cpu", scaler=None, reduce=self._reduce)
        self.control = SimpleNamespace(should_training_stop=False)
        self.others = torch.zeros(3)
        self.extensions = Extensions()

    def _reduce(self, own: torch.Tensor, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        return own + self.others

    def _does(self, *given: object) -> Any:
        self.calls.append(given)
        if self.breaks is not None:
            error, self.breaks = self.breaks, None
            raise error
        return given

    def compute_loss(self, model: Any, inputs: Any, factor: float) -> torch.Tensor:
        return torch.tensor(inputs["number"] * factor)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return self.compute_loss(model, inputs, factor=0.5)

    def save_model(self, *given: object) -> None:
        self._does(*given)

    def _generate_single_turn(self, *given: object) -> Any:
        return self._does(*given)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return {"advantages": inputs}

    def _maybe_log_save_evaluate(self, *given: object) -> None:
        self._does(*given, dict(vars(self.control)))

    def _load_rng_state(self, *given: object) -> None:
        self._does(*given)

    def _run_epoch(self, **named: object) -> None:
        self._does(named)

    def evaluation_loop(self) -> Any:
        self.model.eval()
        self._logs["prompt"].append("of the evaluation")
        self._metrics["eval"]["kl"].append(1.0)
        return self._does()


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
    """Ids by their mask, or without those that a loss ignores; numbers of a row or a token; no other columns."""
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
    assert _rows(batch, list) == [first, second]
    assert _rows([batch], list) == _rows({}, list) == _round({}) == []


def test_what_json_does_not_know_becomes_text() -> None:
    given = {"row": [math.nan, -math.inf, 1.5, (True, None, 2)], 3: Path("x")}
    assert _plain(given) == {"row": ["nan", "-inf", 1.5, [True, None, 2]], "3": "x"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_weight_in_a_rank_s_shard_is_found(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """ZeRO-3 keeps a parameter empty and the shard beside it; FSDP 2's tensor gives its own part."""
    for shard, is_sound in ((torch.tensor([1.0, value]), False), (torch.tensor([1.0, 2.0]), True)):
        parameter: Any = torch.nn.Parameter(torch.empty(0))
        parameter.ds_tensor = shard
        assert bool(_norm([parameter], torch.inf).isfinite()) is is_sound
        monkeypatch.setattr(guard_mixin, "DTensor", SimpleNamespace)
        assert own_shard(SimpleNamespace(to_local=lambda shard=shard: shard)) is shard  # type: ignore[arg-type]
        monkeypatch.undo()


# Which numbers are looked at: of all ranks, and of what is trained.


def test_how_many_tensors_are_bad_is_counted_among_those_that_there_are() -> None:
    trainer: Any = Guarded()
    sound, bad = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    bad.grad = torch.tensor([1.0, torch.nan])
    losses, said = [torch.tensor(1.0), torch.tensor(torch.inf)], list[str]()
    trainer.stop = lambda found, details: said.extend(details)
    trainer.others[2] = 1.0  # a weight of the other rank
    trainer.refuse_non_finite(losses, [("sound", sound), ("bad", bad)])
    loss, gradient, weight = said
    assert loss.endswith(": 1, inf")
    assert "1 of 1 tensors, bad " in gradient
    assert weight.endswith("0 of 2 tensors")


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


@pytest.mark.parametrize(("process", "alone"), [(0, False), (1, False), (1, True)])
def test_the_batch_is_written_and_all_ranks_are_told_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: int, alone: bool
) -> None:
    """Rank 0 knows the way and tells the others; a rank that stops alone waits for no other."""
    monkeypatch.chdir(tmp_path)
    sent: list[bool] = []

    def broadcast(values: list[str | None]) -> None:
        sent.append(values == [None])
        values[0] = values[0] or "of rank 0"

    monkeypatch.setattr(guard_mixin, "broadcast_object_list", broadcast)
    trainer: Any = Guarded()
    trainer.accelerator.process_index = process
    texts = ["known-value", "http://user:word@host"]  # a secret, and a text of the data in the shape of one
    trainer._window = (({"margin": torch.tensor([math.nan, 2.0])}, torch.tensor(0.5)),)
    trainer._logs = {"prompt": texts, "completion": ["ç", "d"], "advantages": [1.0, -1.0], "rewards": {"r": [3.0, 2.0]}}
    with forgetting():
        remember("known-value")
        for found in (["the loss", "a weight"], ["a weight"]):  # the folder may be there already
            with pytest.raises(GuardStopped) as caught:
                trainer.stop(found, ["one", "two"], cause=KeyError("k"), **({"alone": True} if alone else {}))
            assert caught.value.what.startswith(f"{' and '.join(found)} {'are' if found[1:] else 'is'} not finite")
    file = Path(f"run/non_finite/step-7-rank-{process}.json")
    assert (str(caught.value.where), caught.value.got) == (f"{file} has the batch", "one\ntwo")
    assert isinstance(caught.value.__cause__, KeyError)
    assert sent == ([] if alone else [process == 1] * 2)
    assert caught.value.advice == (
        "of rank 0"
        if process == 1 and not alone
        else "a lower trainer.args.learning_rate (it was 0.03) or trainer.args.max_grad_norm (0.7); "
        "there is no checkpoint of this run yet"
    )
    assert "ç" in (written := file.read_text(encoding="utf-8"))  # as a reader knows it
    assert json.loads(written) == {
        "step": 7,
        "found": ["one", "two"],
        "micro_batches": [{"loss": 0.5, "rows": [{"margin": "nan"}, {"margin": 2.0}]}],
        "round": [
            {"prompt": "***", "completion": "ç", "rewards/r": 3.0, "advantage": 1.0},
            {"prompt": "http://user:word@host", "completion": "d", "rewards/r": 2.0, "advantage": -1.0},
        ],
    }


def test_the_way_out_goes_by_the_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for step in (4, 9):
        write_checkpoint(RunFolder(tmp_path / "my run"), step)
    trainer: Any = Guarded()
    trainer.args.max_grad_norm = 0.0  # none
    resume, again = trainer._way_out(tmp_path / "my run").splitlines()
    assert resume.startswith("rlhf resume 'my run' ")
    assert "checkpoint-9" in resume
    assert again.endswith("rlhf train ... model.path='my run/checkpoints/checkpoint-9'")
    assert "max_grad_norm" not in again
    trainer.state.global_step = 0  # before the first step, the loader brought the weights
    assert trainer._way_out(tmp_path / "my run", ["the loss", "a weight"]).startswith("the model was loaded with such")
    assert trainer._way_out(tmp_path / "none", ["the loss"]).startswith("a lower")


@pytest.mark.parametrize(
    ("said", "stops"),
    [
        ("probability tensor contains either `inf`, `nan` or element < 0", True),
        ("CUDA error: device-side assert triggered", True),
        ("out of memory", False),
    ],
)
def test_a_policy_without_probabilities_stops_its_own_rank(said: str, stops: bool) -> None:
    trainer: Any = Guarded()
    assert trainer._generate_single_turn("ids") == ("ids",)
    trainer.breaks, asked = (error := RuntimeError(said)), list[Any]()
    trainer.stop = lambda found, details, **named: asked.append(named)
    with contextlib.nullcontext() if stops else pytest.raises(RuntimeError, match=said):
        trainer._generate_single_turn("ids")
    assert asked == ([{"cause": error, "alone": True}] if stops else [])


# Rounds without a signal end the run after this many in a row.


def dead(step: int, *, is_cut_off: bool = False) -> DeadRound:
    return DeadRound(step, "why", ["flat: 0.7 on every row, weight 1"], is_cut_off)


def watching(folder: Path, *rounds: DeadRound | None, **args: object) -> Any:
    trainer: Any = Guarded(folder, **args)
    trainer.extensions = SimpleNamespace(rewards=SimpleNamespace(no_signal=2))
    trainer.dead_round = lambda advantages, left=list(rounds): left.pop(0)
    return trainer


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_as_many_rounds_without_a_signal_as_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut_off: bool
) -> None:
    """A round with a signal begins the count anew, and an evaluation is none. Tables of completions can be scored."""
    monkeypatch.chdir(tmp_path)
    Path("run/completions").mkdir(parents=True)
    trainer = watching(Path("run"), dead(3), None, dead(5), dead(6, is_cut_off=is_cut_off))
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


@pytest.mark.parametrize(("owes", "strategy"), [(True, "steps"), (True, "no"), (False, "steps")])
def test_a_checkpoint_has_the_rounds_and_the_evaluation_that_is_owed(tmp_path: Path, owes: bool, strategy: str) -> None:
    """Also one of an earlier version, which stored other facts of a round."""
    first, second = watching(tmp_path, dead(3)), watching(tmp_path, dead(4))
    first._generate_and_score_completions([0.0])
    first._owes_evaluation, first._total_train_tokens = owes, 12
    first.args.should_save = False
    first.save_state(tmp_path)
    assert list(tmp_path.iterdir()) == []
    first.args.should_save = True
    first.save_state(tmp_path)
    file = tmp_path / "rounds_without_signal.json"
    file.write_text(json.dumps([{"step": one["step"], "components": []} for one in json.loads(file.read_text())]))
    second.args.eval_strategy, second._total_train_tokens = strategy, 0
    second.load_state(tmp_path)
    assert second._owes_evaluation is (owes and strategy != "no")
    assert second._total_train_tokens == 12
    with pytest.raises(GuardStopped) as caught:
        second._generate_and_score_completions([0.0])
    assert str(caught.value.where).startswith("steps 3 to 4;")
    (other := tmp_path / "other").mkdir()
    watching(tmp_path).save_state(other)
    assert [file.name for file in other.iterdir()] == ["trained_tokens.json"]


# An evaluation that is broken off is made up by the run that goes on.


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


def test_what_trl_gathered_in_an_evaluation_that_was_broken_off_is_dropped() -> None:
    trainer: Any = Guarded()
    trainer._logs, trainer._metrics = {"prompt": ["of the training"]}, {"eval": defaultdict(list)}
    assert trainer.evaluation_loop() == ()
    assert trainer._logs == {"prompt": ["of the training", "of the evaluation"]}
    trainer.breaks = EvaluationBrokenOff()
    with pytest.raises(EvaluationBrokenOff):
        trainer.evaluation_loop()
    assert trainer._logs == {"prompt": ["of the training", "of the evaluation"]}
    assert trainer._metrics["eval"] == {}
    assert trainer.model.training
