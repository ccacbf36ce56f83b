"""Checkpoints of any trainer: pruned and named in their final folder, whole also where the disk is full."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.runs.checkpoint_folders import bytes_below, problem_with
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.text.redaction import remember
from rlhf_cli.trainers.assemble.trainer import extended_class
from rlhf_cli.trainers.checkpoint_mixin import CheckpointMixin, hide_in_arguments
from rlhf_cli.trainers.extensions import Extensions

pytestmark = pytest.mark.whole

CPU: dict[str, Any] = {"use_cpu": True, "bf16": False, "disable_tqdm": True}


@pytest.fixture
def sft(tmp_path: Path):
    """`sft(**args)` is an SFTTrainer with our seams, ready to make three steps with a checkpoint and a test each."""
    tokenizer = byte_tokenizer(128)
    rows = Dataset.from_list([{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(8)])

    def make(**args: Any) -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **tokens, **sizes))
        given = {"output_dir": str(tmp_path / "run"), "max_steps": 3, "save_steps": 1, "report_to": "none", **CPU}
        given |= {"per_device_train_batch_size": 4, "learning_rate": 1e-2, "gradient_checkpointing": False, **args}
        return extended_class(trl.SFTTrainer, Extensions())(
            model=model, args=trl.SFTConfig(**given), train_dataset=rows, eval_dataset=rows, processing_class=tokenizer
        )

    return make


BEST = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "metric_for_best_model": "loss"}


def names(trainer: Any) -> list[str]:
    return sorted(path.name for path in Path(trainer.args.output_dir, "checkpoints").iterdir())


@pytest.mark.parametrize(("greater_is_better", "best"), [(True, 1), (False, 3)])
@pytest.mark.fault(15)
def test_the_best_one_is_kept_named_and_loaded(sft, greater_is_better: bool, best: int) -> None:
    """The loss falls at every step: the greatest is that of the first, the least that of the last."""
    trainer = sft(**BEST, greater_is_better=greater_is_better, save_total_limit=2)
    trainer.train()
    losses = [event["eval_loss"] for event in trainer.state.log_history if "eval_loss" in event]
    assert losses == sorted(losses, reverse=True)
    folder = Path(trainer.args.output_dir, "checkpoints")
    assert trainer.state.best_model_checkpoint == str(folder / f"checkpoint-{best}")
    written = json.loads((folder / "checkpoint-3" / "trainer_state.json").read_text())
    assert written["best_model_checkpoint"] == str(folder / f"checkpoint-{best}")
    assert names(trainer) == [f"checkpoint-{step}" for step in ((1, 3) if best == 1 else (2, 3))]
    saved = load_file(folder / f"checkpoint-{best}" / "model.safetensors")
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in saved.items())
    assert [problem_with(path) for path in folder.iterdir()] == [None, None]


def test_ranks_wait_before_any_writes_before_the_folder_gets_its_name_and_before_any_goes_on(sft) -> None:
    trainer, seen = sft(max_steps=1), list[list[str]]()
    folder = Path(trainer.args.output_dir, "checkpoints")
    (folder / "tmp-9").mkdir(parents=True)  # of a save that was cut off

    def note() -> None:
        if sys._getframe(1).f_code is CheckpointMixin._save_checkpoint.__code__:
            seen.append(names(trainer))

    trainer.accelerator.wait_for_everyone = note
    trainer.train()
    assert seen == [[], ["tmp-1"], ["checkpoint-1"]]


def test_a_secret_is_hidden_in_the_file_of_the_arguments_and_not_in_themselves(tmp_path: Path) -> None:
    remember("open sesame")
    file = tmp_path / "training_args.bin"
    given: dict[str, Any] = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    args = trl.SFTConfig(**given, run_name="says open sesame", report_to=["open sesame"])
    hide_in_arguments(args, file)
    written = torch.load(file, weights_only=False)
    assert (written.run_name, written.report_to, written.output_dir) == ("says ***", ["***"], str(tmp_path))
    assert args.run_name == "says open sesame"
    file.unlink()
    hide_in_arguments(trl.SFTConfig(**given), file)
    assert not file.exists()  # what transformers wrote stays


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`small_disk(kilobytes)`: a file system of its own that has no room for more."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a file system can be mounted by root alone: {done.stderr.strip()}")
        return place

    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


@pytest.mark.parametrize(("kilobytes", "kept"), [(390, ["checkpoint-1"]), (160, [])])
@pytest.mark.fault(4)
def test_the_older_one_is_whole_and_nothing_else_is_left(
    train, small_disk, capsys, monkeypatch, kilobytes: int, kept: list[str]
) -> None:
    import rlhf_cli.plan.checks.machine_checks

    # Another program filled the disk.
    monkeypatch.setattr(rlhf_cli.plan.checks.machine_checks, "space_problems", lambda *_: ())
    place = small_disk(kilobytes)
    code, _ = train(f"run.root={place}/runs", "trainer.args.save_steps=1")
    folder, told = RunFolder(place / "runs" / "quickstart" / "one"), capsys.readouterr().err
    assert (code, "Traceback" in told) == (2, False)
    assert str(folder.checkpoints / f"checkpoint-{len(kept) + 1}") in told
    assert [path.name for path in folder.checkpoints.iterdir()] == kept
    assert all(problem_with(path) is None for path in folder.checkpoints.iterdir())
    if kept:
        free, needed = re.search(r"(\d+) bytes", told), re.search(r"at least (\d+) bytes", told)
        assert free is not None
        assert needed is not None
        assert int(free[1]) < int(needed[1])
        assert int(needed[1]) >= bytes_below(folder.checkpoints / kept[0]) > 100_000
        assert "checkpoint-1 is complete" in told
    assert "the disk is full" in (read_status(folder).reason or "")
