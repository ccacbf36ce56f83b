"""A run that was stopped and went on is the run that never stopped: bit for bit, from every checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file

from rlhf_cli.cli import main
from rlhf_cli.runs.checkpoint_folders import checkpoints_in, problem_with, write_manifest
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.status import read_status
from rlhf_cli.trainers import exact_resume as resume_module
from rlhf_cli.trainers.ppo import critic as critic_module
from tests.support.small_runs import SMALL

WINDOWS = [
    *SMALL,
    "trainer.args.per_device_train_batch_size=4",
    "trainer.args.num_generations=4",
    "trainer.args.steps_per_generation=4",
    "trainer.args.num_iterations=2",
    "trainer.args.gradient_accumulation_steps=2",
    "trainer.args.max_steps=8",
    "trainer.args.save_steps=1",
    "trainer.args.save_total_limit=null",
    "data.args.num_rows=5",
]
"""Four prompts a window, eight micro-batches a window, two a step: an epoch, of four of five rows, is steps 1 to 4."""

UNEVEN = ["trainer.args.gradient_accumulation_steps=3", "trainer.args.max_steps=7"]
"""Steps of 3, 3 and 2 micro-batches an epoch: no window of four ends where a step does, but at the epoch's end."""

TIMES = ("time", "runtime", "per_second", "seconds")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model_cache: Path):
    """`whole(*overrides)` is a run that never stopped, made once a set of overrides."""
    made: dict[tuple[str, ...], RunFolder] = {}

    def run(*overrides: str) -> RunFolder:
        if overrides not in made:
            place = tmp_path_factory.mktemp("whole")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(place)
                patch.setenv("RLHF_CACHE", str(model_cache))
                assert main(["train", *WINDOWS, *overrides, "run.name=whole"]) == 0
            made[overrides] = RunFolder(place / "runs" / "quickstart" / "whole")
        return made[overrides]

    return run


def cut(run: RunFolder, step: int, copy: Path) -> RunFolder:
    """A copy of a run as it lay there when it was killed after the checkpoint of `step`."""
    folder = RunFolder(copy)
    shutil.copytree(run.path, folder.path, ignore=shutil.ignore_patterns("model"))
    for later, path in checkpoints_in(folder.checkpoints):
        if later > step:
            shutil.rmtree(path)
    folder.status.write_text(json.dumps({**json.loads(folder.status.read_text()), "state": "failed"}))
    return folder


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    (file,) = folder.model.glob("*model.safetensors")  # or an adapter's
    return load_file(file)


def is_same(one: RunFolder, other: RunFolder) -> bool:
    """Whether two finished runs have the same model, to the last bit."""
    theirs = weights(other)
    return all(torch.equal(tensor, theirs[name]) for name, tensor in weights(one).items())


def events(folder: RunFolder) -> list[dict[str, Any]]:
    """What was logged, without times; the last line is about one call and not about the run."""
    logged = [event for event in read_metrics(folder.metrics) if "train_loss" not in event]
    return [{name: value for name, value in event.items() if not any(t in name for t in TIMES)} for event in logged]


def table(folder: RunFolder, step: int) -> dict[str, list[Any]]:
    return pyarrow.parquet.read_table(folder.path / "completions" / f"completions_{step:05d}.parquet").to_pydict()


def goes_on_as(never_stopped: RunFolder, step: int, copy: Path) -> None:
    folder = cut(never_stopped, step, copy)
    assert main(["resume", str(folder.path)]) == 0
    # As text: NaN is not equal to itself.
    assert json.dumps(events(folder)) == json.dumps(events(never_stopped))
    assert is_same(folder, never_stopped)


@pytest.mark.parametrize("step", range(1, 8))
def test_grpo_from_every_step(whole, workplace: Path, step: int) -> None:
    goes_on_as(whole(), step, workplace / "cut")


@pytest.mark.parametrize("step", [3, 4, 6])
def test_rloo(whole, workplace: Path, step: int) -> None:
    goes_on_as(whole("trainer=rloo"), step, workplace / "cut")


@pytest.mark.parametrize("step", [1, 3, 5])
def test_where_no_step_ends_with_a_slice_of_the_rollout(whole, workplace: Path, step: int) -> None:
    goes_on_as(whole(*UNEVEN), step, workplace / "cut")


@pytest.mark.parametrize("step", [1, 5])
def test_between_two_logs(whole, workplace: Path, step: int) -> None:
    """The means that are logged are of all steps since the last log, those before the stop among them."""
    goes_on_as(whole("trainer.args.logging_steps=3"), step, workplace / "cut")


@pytest.mark.parametrize("step", [2, 5])
def test_with_a_reference_that_moves(whole, workplace: Path, step: int) -> None:
    moving = ("trainer.args.beta=0.5", "trainer.args.sync_ref_model=true", "trainer.args.ref_model_sync_steps=2")
    goes_on_as(whole(*moving), step, workplace / "cut")


def test_the_run_it_is_compared_with_learns_and_shuffles(whole) -> None:
    """Without this, equality would say nothing: every step moves weights, every epoch has an order of its own."""
    run = whole()
    assert all(event["grad_norm"] > 0 for event in events(run))
    tables = [
        pyarrow.parquet.read_table(run.path / "completions" / f"completions_0000{step}.parquet") for step in (4, 8)
    ]
    first, second = (list(dict.fromkeys(table.to_pydict()["prompt"])) for table in tables)
    assert first != second


def test_a_log_in_the_middle_of_a_window_keeps_the_table_of_completions(whole, workplace: Path) -> None:
    run = whole()
    folder = cut(run, 5, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    for step in (5, 6, 8):
        assert table(folder, step)["completion"] == table(run, step)["completion"]
        assert table(folder, step)["advantage"] == table(run, step)["advantage"]


@pytest.mark.parametrize(
    ("step", "lost"),
    [
        (2, "_restore"),
        (5, "_restore"),
        (4, "_skip_epochs"),
    ],  # after step 4 the buffer is used up: only the order counts
)
def test_negative_control_without_what_is_restored_the_model_is_another(
    whole, workplace: Path, monkeypatch: pytest.MonkeyPatch, step: int, lost: str
) -> None:
    monkeypatch.setattr(resume_module, lost, lambda *_: None)
    folder = cut(whole(), step, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    assert not is_same(folder, whole())


def test_a_checkpoint_without_its_rollouts_is_refused(whole, workplace: Path, capsys) -> None:
    folder = cut(whole(), 6, workplace / "cut")
    checkpoint = folder.checkpoints / "checkpoint-6"
    (checkpoint / "rollout-rank0.pt").unlink()
    write_manifest(checkpoint)  # as a version that knew manifests and no rollouts would leave it
    assert main(["resume", str(folder.path)]) == 2
    told = capsys.readouterr().err
    assert "has no rollout state" in told
    assert "rollout-rank0.pt" in told
    assert "model.path=" in told


def test_another_number_of_processes_is_refused(whole, workplace: Path, capsys) -> None:
    folder = cut(whole(), 6, workplace / "cut")
    checkpoint = folder.checkpoints / "checkpoint-6"
    state = torch.load(checkpoint / "rollout-rank0.pt", weights_only=True)
    torch.save({**state, "world_size": 2}, checkpoint / "rollout-rank0.pt")
    write_manifest(checkpoint)
    assert main(["resume", str(folder.path)]) == 2
    assert "another number of processes" in capsys.readouterr().err


def test_a_used_up_rollout_is_not_in_the_checkpoint(whole) -> None:
    folder = whole().checkpoints
    states = {
        step: torch.load(folder / f"checkpoint-{step}" / "rollout-rank0.pt", weights_only=True) for step in (3, 4)
    }
    assert len(states[3]["inputs"]) == 4
    assert states[4]["inputs"] is None
    assert (states[3]["step"], states[4]["step"]) == (6, 8)


def test_every_checkpoint_of_a_run_verifies_and_nothing_else_is_left(whole) -> None:
    folder = whole().checkpoints
    assert [path.name for path in sorted(folder.iterdir())] == [f"checkpoint-{step}" for step in range(1, 9)]
    assert [problem_with(path) for path in folder.iterdir()] == [None] * 8


class TestFaults:
    """What a kill, a full disk or a careless hand leaves: the newest whole checkpoint is used, the others named."""

    def resumed(self, whole, folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> str:
        capsys.readouterr()
        assert main(["resume", str(folder.path)]) == 0
        assert is_same(folder, whole())
        assert read_status(folder).state == "finished"
        assert not list(folder.checkpoints.glob("tmp-*"))
        return capsys.readouterr().out

    def test_killed_while_a_checkpoint_is_written(self, whole, workplace: Path, capsys) -> None:
        folder = cut(whole(), 6, workplace / "cut")
        place = folder.checkpoints / "tmp-7" / "checkpoint-7"
        shutil.copytree(folder.checkpoints / "checkpoint-6", place)
        (place / "optimizer.pt").write_bytes(b"half")
        told = self.resumed(whole, folder, capsys)
        assert "going on from checkpoint-6" in told
        assert "skipped" not in told

    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes and its manifest says"),
            (lambda file: file.write_bytes(b""), "has 0 bytes"),
            (lambda file: file.unlink(), "is missing"),
        ],
    )
    def test_a_damaged_file(self, whole, workplace: Path, capsys, damage, said: str) -> None:
        folder = cut(whole(), 7, workplace / "cut")
        damage(folder.checkpoints / "checkpoint-7" / "model.safetensors")
        told = self.resumed(whole, folder, capsys)
        assert "skipped checkpoint-7: model.safetensors" in told
        assert said in told
        assert "going on from checkpoint-6" in told
        assert read_status(folder).warnings >= 1
        assert "skipped checkpoint-7" in folder.log.read_text()
        assert problem_with(folder.checkpoints / "checkpoint-7") is None  # written anew

    def test_when_none_verifies_nothing_is_overwritten(self, whole, workplace: Path, capsys) -> None:
        folder = cut(whole(), 1, workplace / "cut")
        (folder.checkpoints / "checkpoint-1" / "manifest.json").unlink()  # as an older version wrote it
        before = folder.metrics.read_bytes()
        assert main(["resume", str(folder.path)]) == 2
        assert "checkpoint-1: no manifest.json in it" in capsys.readouterr().err
        assert folder.metrics.read_bytes() == before

    def test_an_error_while_saving_leaves_the_older_one(self, train, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers import Trainer

        save = Trainer._save_scaler

        def full(self: Any, output_dir: str) -> None:
            if self.state.global_step == 2:
                raise OSError(28, "No space left on device")
            save(self, output_dir)

        monkeypatch.setattr(Trainer, "_save_scaler", full)
        code, folder = train("trainer.args.save_steps=1")
        assert code == 1
        assert [path.name for path in folder.checkpoints.iterdir()] == ["checkpoint-1"]
        assert problem_with(folder.checkpoints / "checkpoint-1") is None
        assert "No space left" in read_status(folder).reason


PPO = (
    "trainer=ppo",
    "critic.learning_rate=1e-2",
    "critic.warmup_steps=3",
    "kl.controller={target: 0.01, horizon: 50}",
    "rewards.brevity.normalize=running",
    "trainer.args.lr_scheduler_type=cosine",
)
"""Everything that has a state: the critic, its optimizer and schedule, the coefficient, a reward's deviation."""


@pytest.mark.parametrize("step", range(1, 8))
def test_ppo_from_every_step(whole, workplace: Path, step: int) -> None:
    goes_on_as(whole(*PPO), step, workplace / "cut")
    own, theirs = (
        load_file(run.path / "critic" / "model.safetensors") for run in (RunFolder(workplace / "cut"), whole(*PPO))
    )
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in own.items())


@pytest.mark.parametrize("step", [2, 5])
def test_ppo_with_a_critic_on_the_policy_s_backbone(whole, workplace: Path, step: int) -> None:
    shared = (*PPO, "+model.lora.r=4", "critic.share=lora")
    goes_on_as(whole(*shared), step, workplace / "cut")


def test_negative_control_without_the_critic_s_state_ppo_goes_on_differently(
    whole, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(critic_module.Critic, "load_state", lambda self, folder: None)
    folder = cut(whole(*PPO), 4, workplace / "cut")  # the next rollout is judged by the critic as it is then
    assert main(["resume", str(folder.path)]) == 0
    assert not is_same(folder, whole(*PPO))


def test_what_ppo_keeps_moves(whole) -> None:
    """Without this, that it is restored would say nothing."""
    logged = events(whole(*PPO))
    assert len({event["kl/coef"] for event in logged if "kl/coef" in event}) > 1
    assert logged[0]["critic/grad_norm"] > 0
    assert len({event["critic/learning_rate"] for event in logged}) == len(logged)
    assert logged[0]["grad_norm"] == 0 < logged[4]["grad_norm"]  # the warm-up's end
