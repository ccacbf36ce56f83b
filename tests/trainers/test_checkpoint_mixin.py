"""What a trainer saves beside its weights and takes up again, where transformers' methods are stand-ins."""

from __future__ import annotations

import errno
import os
from collections import defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from trl.trainer.utils import RepeatSampler

from rlhf_cli.errors import ConfigError, RunError
from rlhf_cli.runs import checkpoint_folders
from rlhf_cli.runs.checkpoint_folders import bytes_below
from rlhf_cli.runs.reward_records import trained_on_conversations, trained_with_eos
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers import checkpoint_mixin
from rlhf_cli.trainers.checkpoint_mixin import CheckpointMixin, _use_base_rates, load_rollouts, save_rollouts
from rlhf_cli.trainers.extensions import Extensions
from tests.support.one_rank import write_checkpoint


class Trl:
    """Stands for TRL's trainer: it notes its calls."""

    def __init__(self, folder: Path, **args: object) -> None:
        given = {"output_dir": str(folder), "should_save": True, "save_total_limit": 2, "save_only_model": False}
        self.args = SimpleNamespace(**given | args)
        self.state = SimpleNamespace(global_step=7, max_steps=9, best_model_checkpoint=None, log_history=[])
        self.control, self.calls, self.extensions = SimpleNamespace(), list[Any](), Extensions()
        device, nothing = torch.device("cpu"), lambda: None
        self.accelerator = SimpleNamespace(wait_for_everyone=nothing, process_index=0, num_processes=1, device=device)
        self._metrics = {"train": defaultdict(list)}
        self._tr_loss, self._globalstep_last_logged = torch.tensor(2.0), 5
        self.is_deepspeed_enabled = self.is_fsdp_enabled = False

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        assert Path(checkpoint_folder).is_dir()
        self.calls.append(("push", *Path(checkpoint_folder).parts[-2:]))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        place = self._get_output_dir(trial)  # type: ignore[attr-defined]
        folder = Path(place, f"checkpoint-{self.state.global_step}")
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text("{}")
        if self.args.pushes:
            self._push_from_checkpoint(str(folder))

    def _save(self, output_dir: str, state_dict: Any) -> None:
        if self.args.should_save:  # called on every rank, but only the writer creates the folder
            Path(output_dir).mkdir()

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.args.output_dir)

    def _determine_best_metric(self, metrics: Any, trial: Any) -> bool:
        self.calls.append((metrics, trial))
        return True

    def _load_best_model(self) -> None:
        self.calls.append(self.state.best_model_checkpoint)

    def _load_rng_state(self, *given: object) -> None:
        self.calls.append(given)

    _run_epoch = _load_optimizer_and_scheduler = _load_rng_state


class Saved(CheckpointMixin, Trl):  # type: ignore[misc]
    """A trainer that only saves and resumes."""


@pytest.mark.parametrize("pushes", [True, False])
def test_a_checkpoint_is_uploaded_when_it_has_its_name(tmp_path: Path, pushes: bool) -> None:
    trainer: Any = Saved(tmp_path, pushes=pushes)
    trainer.state.best_global_step = None
    for step in (7, 8):
        trainer.state.global_step, trainer.args.pushes = step, pushes and step == 7
        trainer._save_checkpoint(None, None)
    assert trainer.calls == ([("push", "checkpoints", "checkpoint-7")] if pushes else [])


FULL = OSError(errno.ENOSPC, "no space")


@pytest.mark.parametrize("error", [ValueError("of a library"), FULL], ids=["fails", "full"])
@pytest.mark.parametrize("written", [None, 0, 9000])
@pytest.mark.parametrize("has_older", [True, False])
def test_what_fails_leaves_no_part_and_a_full_disk_says_how_much_it_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, written: int | None, has_older: bool
) -> None:
    """`written` bytes, or before a folder was there; a checkpoint needs what the older one has, or more."""
    asked, sizes = list[Any](), [0]

    def fail(self: Any, *_: Any) -> None:
        if written is not None:
            (place := Path(self._get_output_dir(None))).mkdir(parents=True)
            (place / "model").write_bytes(b"x" * written)
            sizes.append(bytes_below(place))
        raise error

    def no_room(place: Path, **given: Any) -> RunError:
        asked.append((place, given))
        return RunError("full", where=str(place))

    monkeypatch.setattr(Trl, "_save_checkpoint", fail)
    monkeypatch.setattr(checkpoint_folders, "no_room", no_room)
    trainer, folder = Saved(tmp_path), RunFolder(tmp_path)
    older = write_checkpoint(folder, 5) if has_older else None
    with pytest.raises(RunError if error is FULL else ValueError):
        trainer._save_checkpoint(None, None)
    assert list(folder.checkpoints.glob("*")) == ([older] if older else [])
    needed = None if older is None else max(bytes_below(older), *sizes)
    given = {"needed": needed, "kept": older, "error": error}
    assert asked == ([(folder.checkpoints / "checkpoint-7", given)] if error is FULL else [])
    assert trainer._staging is None


@pytest.mark.parametrize(("is_writer", "found"), [(True, True), (False, None)])
def test_the_rank_that_writes_a_model_says_beside_it_how_its_texts_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writer: bool, found: bool | None
) -> None:
    monkeypatch.setattr(checkpoint_mixin, "hide_in_arguments", lambda args, file: hidden.append(file))
    trainer, hidden = Saved(tmp_path, should_save=is_writer), list[Path]()
    trainer.extensions = Extensions(ends_with_eos=True, conversations=False)
    trainer._save(str(tmp_path / "model"))
    assert (tmp_path / "model").is_dir() == is_writer
    assert trained_with_eos(tmp_path / "model") is found
    assert trained_on_conversations(tmp_path / "model") is (False if is_writer else None)
    assert hidden == [tmp_path / "model" / "training_args.bin"] * is_writer


@pytest.mark.parametrize(("limit", "left"), [(2, [3, 7]), (1, [3, 7]), (None, [3, 5, 7, 9]), (0, [3, 5, 7, 9])])
def test_the_best_and_the_newest_stay_and_a_later_one_that_does_not_verify_goes(
    tmp_path: Path, limit: int | None, left: list[int]
) -> None:
    """As after going back from step 9, which was cut off, to 5. The best was damaged since, and 5 copied."""
    folder = RunFolder(tmp_path)
    for step in (3, 5, 7, 9):
        state = write_checkpoint(folder, step) / "trainer_state.json"
        state.write_text(state.read_text() + " " * (step in (3, 9)))
    os.utime(folder.checkpoints / "checkpoint-5", (2e9, 2e9))
    trainer: Any = Saved(tmp_path, save_total_limit=limit)
    trainer.state.best_model_checkpoint = str(folder.checkpoints / "checkpoint-3")
    trainer._prune(folder.checkpoints)
    assert sorted(int(path.name[11:]) for path in folder.checkpoints.iterdir()) == left


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_best_of_a_run_that_was_moved_is_loaded_from_its_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    trainer: Any = Saved(tmp_path)
    monkeypatch.setattr(trainer, "_load_renamed", trainer.calls.append)
    trainer.state.best_global_step, trainer.state.best_model_checkpoint = 3, "old/checkpoints/checkpoint-3"
    best = tmp_path / "checkpoints/checkpoint-3"
    if is_kept:
        best.mkdir(parents=True)
    trainer._load_best_model()
    assert trainer.calls == [str(best) if is_kept else "old/checkpoints/checkpoint-3"] * 2


METRICS = {"eval_loss": 1.0, "eval_reward": None}


@pytest.mark.parametrize(
    ("wanted", "rewards", "is_asked"),
    [
        (None, True, True),
        *(("loss", rewards, True) for rewards in (True, False)),
        ("eval_loss", True, True),
        ("reward", True, False),  # not this time
        ("reward", False, True),
        ("earlier", True, False),
        ("earlier", False, True),
        ("pass@4/right", True, False),  # wait for a row that is scored
        ("eval_hard_maj@4/right", True, False),
    ],
)
def test_a_metric_that_is_missing_this_time_makes_no_best(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wanted: str | None, rewards: bool, is_asked: bool
) -> None:
    trainer: Any = Saved(tmp_path, metric_for_best_model=wanted)
    trainer.state.log_history = [{"loss": 1.0}, {"eval_earlier": 0.5}]
    trainer.extensions = SimpleNamespace(rewards=object() if rewards else None)
    assert trainer._determine_best_metric(METRICS, "trial") is is_asked
    assert trainer.calls == ([(METRICS, "trial")] if is_asked else [])
    assert len(caplog.records) == (not is_asked)


@pytest.mark.parametrize(("metric", "stepped"), [(None, []), (0.5, [0.5])])
def test_a_schedule_that_follows_evaluations_waits_for_its_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: float | None, stepped: list[float]
) -> None:
    trainer: Any = Saved(tmp_path)
    steps = list[object]()
    trainer.lr_scheduler = SimpleNamespace(step=steps.append)
    monkeypatch.setattr(Trl, "_evaluate", lambda self, *_: self.lr_scheduler.step(metric), raising=False)
    trainer._evaluate("trial", None)
    assert steps == stepped


@pytest.mark.parametrize(("wanted", "hint"), [("los", "loss"), ("something else", None)])
def test_a_metric_that_no_evaluation_logs_is_refused(tmp_path: Path, wanted: str, hint: str | None) -> None:
    trainer: Any = Saved(tmp_path, metric_for_best_model=wanted)
    trainer.state.log_history = [{"loss": 1.0}]
    with pytest.raises(ConfigError) as caught:
        trainer._determine_best_metric(METRICS, None)
    key = "trainer.args.metric_for_best_model"
    assert (caught.value.where, caught.value.hint) == (key, hint and f"{key}=eval_{hint}")


class Counting(TrainerCallback, ExportableState):
    """A callback with a state; a trainer may have several."""

    count = 0


@pytest.mark.parametrize("missing", [[], ["optimizer.pt"]])
@pytest.mark.parametrize(("may_lose", "shuffles"), [(True, True), (False, True), (True, False)])
def test_what_was_typed_counts_and_what_is_missing_is_refused_unless_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[str], may_lose: bool, shuffles: bool
) -> None:
    monkeypatch.setattr(checkpoint_folders, "_STATE", {name: (name,) for name in missing})
    (tmp_path / checkpoint_folders.MANIFEST).touch()
    trainer: Any = Saved(tmp_path, eval_on_start=True)
    trainer.extensions, trainer.is_world_process_zero = Extensions(may_lose_state=may_lose), lambda: True
    trainer.optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=4.0, weight_decay=0.5)
    trainer.lr_scheduler = SimpleNamespace(scheduler=LambdaLR(trainer.optimizer, lambda step: 0.5))  # accelerate's
    of_callbacks = [{"attributes": {"count": 3}}, {"attributes": {"count": 4}}]
    trainer.state.stateful_callbacks, trainer.state.epoch = {"Counting": of_callbacks, "Other": {"attributes": {}}}, 2.5
    trainer.state.compute_steps = lambda args, max_steps: trainer.calls.append(("steps", args, max_steps))
    trainer.callback_handler = SimpleNamespace(callbacks=[Counting(), TrainerCallback(), Counting()])
    trainer._train_sampler = RepeatSampler(range(9), mini_repeat_count=1, shuffle=shuffles, seed=3)
    (group,) = trainer.optimizer.param_groups

    def restored(self: Any, checkpoint: str) -> None:
        trainer.calls.append((checkpoint,))
        group.update(lr=9.0, initial_lr=9.0, weight_decay=0.9)

    monkeypatch.setattr(Trl, "_load_optimizer_and_scheduler", restored)
    if missing and not may_lose:
        with pytest.raises(RunError):
            trainer._load_optimizer_and_scheduler(str(tmp_path))
        return
    trainer._load_optimizer_and_scheduler(str(tmp_path))
    assert trainer.calls == [("steps", trainer.args, 9), *([] if missing else [(str(tmp_path),)])]
    assert (group["lr"], group["weight_decay"], trainer._from_weights_alone) == (2.0, 0.5, bool(missing))
    assert not trainer.args.eval_on_start  # the run has started before
    assert [getattr(one, "count", None) for one in trainer.callback_handler.callbacks] == [3, None, 4]
    whole = RepeatSampler(range(9), mini_repeat_count=1, shuffle=shuffles, seed=3)
    assert list(trainer._train_sampler) == [list(whole) for _ in range(3)][2]


def test_what_was_not_logged_yet_is_taken_up_once_before_the_first_step(tmp_path: Path) -> None:
    """Of losses of 3 since the log of step 5; the mean of this call's own steps is without them."""
    trainer: Any = Saved(tmp_path)
    trainer._pending_loss, trainer._tr_loss, trainer._total_loss_scalar = (torch.tensor(3.0), 5), torch.tensor(1.0), 0.5
    for _ in range(2):
        trainer._load_rng_state("checkpoint-7")
        assert (trainer._tr_loss.item(), trainer._total_loss_scalar, trainer._globalstep_last_logged) == (4.0, -2.5, 5)
    trainer._from_weights_alone = True
    trainer._load_rng_state("checkpoint-7")
    trainer._load_optimizer_and_scheduler(None)
    assert trainer.calls == [("checkpoint-7",)] * 2 + [(None,)]


@pytest.mark.parametrize(("step", "trains"), [(8, True), (9, False), (10, False)])
def test_an_epoch_after_the_last_step_is_skipped(tmp_path: Path, step: int, trains: bool) -> None:
    trainer: Any = Saved(tmp_path)
    trainer.state.global_step = step
    trainer._run_epoch("epoch")
    assert trainer.calls == ([("epoch",)] if trains else [])
    assert vars(trainer.control) == ({} if trains else {"should_training_stop": True})


def test_a_schedule_goes_on_from_the_rate_that_was_typed_or_refuses_it() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    halving = LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    halving.step()
    _use_base_rates(halving, optimizer, [6.0])
    (group,) = optimizer.param_groups
    assert (group["initial_lr"], group["lr"], halving.base_lrs, halving.get_last_lr()) == (6.0, 3.0, [6.0], [3.0])
    _use_base_rates(object(), optimizer, [])
    cosine = CosineAnnealingLR(optimizer, 9)
    _use_base_rates(cosine, optimizer, [6.0])
    with pytest.raises(RunError) as caught:
        _use_base_rates(cosine, optimizer, [5.0])
    assert (caught.value.where, caught.value.got) == ("trainer.args.learning_rate", "CosineAnnealingLR")


def rolling(step: int = 0, *, moves: bool = True, **more: Any) -> Any:
    """A trainer whose rounds are four steps; its reference follows the policy if it `moves`."""
    trainer = SimpleNamespace(
        args=SimpleNamespace(steps_per_generation=2, sync_ref_model=moves, should_save=True),
        accelerator=SimpleNamespace(num_processes=2, process_index=1, device=torch.device("cpu", 0)),
        ref_model=torch.nn.Linear(1, 1),
        is_deepspeed_enabled=False,
        is_fsdp_enabled=False,
        num_iterations=2,
        **{"_step": step, "_buffered_inputs": None, "_tr_loss": torch.tensor(2.0), "_globalstep_last_logged": 5},
        _metrics={"train": defaultdict(list)},
        _logs={"prompt": deque(), "rewards": defaultdict(deque)},
    )
    vars(trainer).update(more)
    return trainer


@pytest.mark.parametrize(("step", "is_kept"), [(3, True), (4, False), (5, True), (8, False)])
def test_a_round_is_taken_up_in_its_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, is_kept: bool
) -> None:
    batches = [{"ids": torch.ones(2)}]
    first, second = rolling(step, _buffered_inputs=batches), rolling()
    first._metrics["train"]["kl"].append(0.5)
    first._logs["prompt"].append("http://user:word@host")  # of a data set, and no secret
    first._logs["rewards"]["right"].append(1.0)
    save_rollouts(first, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["reference.pt", "rollout-rank1.pt"]
    assert load_rollouts(second, tmp_path, may_be_missing=True) == (torch.tensor(2.0), 5)
    assert (second._step, second._buffered_inputs is not None) == (step, is_kept)
    assert (second._metrics, second._logs) == (first._metrics, first._logs)
    assert torch.equal(second.ref_model.weight, first.ref_model.weight)
    first._logs["prompt"].append(tmp_path)  # no file of plain values holds it: the table is left out
    save_rollouts(first, tmp_path)
    load_rollouts(third := rolling(), tmp_path, may_be_missing=True)
    assert (third._step, list(third._logs["prompt"])) == (step, [])
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # what torch does for a call that does not say
    for name in ("reference.pt", "rollout-rank1.pt"):  # only plain values are read
        torch.save({"world_size": tmp_path}, tmp_path / name)
        with pytest.raises(RunError) as caught:
            load_rollouts(second, tmp_path, may_be_missing=True)
        assert caught.value.where == str(tmp_path / name)


@pytest.mark.parametrize(
    "more",
    [{"moves": False}, {"is_deepspeed_enabled": True}, {"is_fsdp_enabled": True}, {"should_save": False}],
    ids=str,
)
def test_a_reference_that_stays_or_is_in_parts_is_not_saved(tmp_path: Path, more: dict[str, Any]) -> None:
    trainer = rolling(**more)
    trainer.args.should_save = more.get("should_save", True)
    save_rollouts(trainer, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["rollout-rank1.pt"]
    if more == {"moves": False}:
        assert load_rollouts(trainer, tmp_path, may_be_missing=False) is not None
        assert load_rollouts(trainer, tmp_path / "other", may_be_missing=True) is None
        return
    with pytest.raises(RunError) as caught:
        load_rollouts(trainer, tmp_path, may_be_missing=True)
    assert caught.value.where == str(tmp_path / "reference.pt")


@pytest.mark.parametrize("moves", [True, False])
def test_a_trainer_of_rows_keeps_what_was_not_logged(tmp_path: Path, moves: bool) -> None:
    """A checkpoint without that file is complete, unless its reference moves."""
    first, second = rolling(moves=moves), rolling(moves=moves)
    for one in (first, second):
        del one.num_iterations, one._logs, one._step, one._buffered_inputs
    first._metrics["train"]["entropy"].append(0.5)
    save_rollouts(first, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["reference.pt"] * moves + ["unlogged-rank1.pt"]
    assert load_rollouts(second, tmp_path, may_be_missing=False) == (torch.tensor(2.0), 5)
    assert second._metrics == first._metrics
    if not moves:
        assert load_rollouts(second, tmp_path / "other", may_be_missing=False) is None
        return
    with pytest.raises(RunError):
        load_rollouts(second, tmp_path / "other", may_be_missing=False)
    assert load_rollouts(second, tmp_path / "other", may_be_missing=True) is None
