"""The same runs under every strategy, by two CPU processes, and each once more from its first checkpoint.

As a script, `sharded_runs.py FOLDER...` is what every rank of a strategy runs: one start for all trainers, because what
a start imports takes longer than the runs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from rlhf_cli.launch.freeze import create_run
from rlhf_cli.launch.worker import run_rank
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.process import leave
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
from tests.support import small_reward_runs
from tests.support.as_many_processes import DEMONSTRATIONS, GENERATED, REWARDS, replay, run_ranks
from tests.support.random_reward_model import save_random_reward_model
from tests.support.small_runs import PPO_SMALL


def fsdp_on_cpu(patch: pytest.MonkeyPatch) -> None:
    """Let accelerate run FSDP on a CPU while `patch` is active."""
    init = AcceleratorState.__init__

    def told(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        is_new = not AcceleratorState._shared_state
        init(self, *args, fsdp_plugin=fsdp_plugin, **named)
        if is_new and fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    patch.setattr(AcceleratorState, "__init__", told)


TRAINERS = {
    "ppo": [*GENERATED, *PPO_SMALL, "trainer.args.num_iterations=2", "trainer.args.steps_per_generation=4"],
    "grpo": [*GENERATED, "truncation=exclude", "trainer.args.loss_type=grpo", "trainer.args.beta=0.1"],
    "rloo": [*GENERATED, "trainer=rloo", "truncation=exclude", "trainer.args.beta=0.1"],
    "lora": [*GENERATED, "+model.lora.r=4", "trainer.args.beta=0.1"],
    "judge": [*GENERATED, "~rewards.first", "+rewards.judge.model=./judge"],
    "reward": [*small_reward_runs.SMALL, *small_reward_runs.WORLD],
    "sft": [word.replace("exp=quickstart", "exp=toy_sft") for word in DEMONSTRATIONS],
    "dpo": [word.replace("exp=quickstart", "exp=toy_dpo") for word in DEMONSTRATIONS],
}
"""Name -> what to type. `lora` has TRL's GRPO learn an adapter, `judge` a reward model that scores."""
REPLAYED = ("grpo", "rloo", "judge")
"""Whose completions are given, about a third of them cut off; the others generate."""
STEPS = 4
COMMON = [
    *("launch.processes=2", "run.root=runs", f"trainer.args.max_steps={STEPS}"),
    *("trainer.args.per_device_train_batch_size=2", "trainer.args.gradient_accumulation_steps=2"),
    *("trainer.args.logging_steps=1", "trainer.args.save_steps=1", "trainer.args.save_total_limit=null"),
    *("trainer.args.learning_rate=0.001", "trainer.args.max_grad_norm=0.05", "trainer.args.adam_epsilon=1e-4"),
]
"""Every gradient is clipped, and accumulated over two micro-batches. Adam's usual epsilon would make steps as long as
the learning rate of gradients that are rounding alone."""
_BEGAN_AGAIN = "-again"


def words_of(name: str, strategy: str, *more: str) -> list[str]:
    own = ["critic.learning_rate=0.001"] if name == "ppo" else []
    return [*TRAINERS[name], *COMMON, *own, f"launch.strategy={strategy}", f"run.name={name}-{strategy}", *more]


def again(folder: RunFolder) -> RunFolder:
    return RunFolder(folder.path.with_name(folder.path.name + _BEGAN_AGAIN))


def run_under(strategy: str, *more: str) -> dict[str, RunFolder]:
    """Trainer -> its finished run in the current folder, which has to have mine.py and judge/ (`prepare_place`)."""
    made = {name: _created(words_of(name, strategy, *more)) for name in TRAINERS}
    run_ranks("tests.launch.sharded_runs", words_of("sft", strategy, *more), list(made.values()), timeout_s=1500)
    return made


def prepare_place(place: Path) -> None:
    (place / "mine.py").write_text(REWARDS)
    save_random_reward_model(place / "judge")


def _created(words: list[str]) -> RunFolder:
    """Freeze a run past the check of this machine, which refuses FSDP on a CPU."""
    prepared = prepare(words)
    return create_run(prepared.experiment, prepared.composed, files={})


def _run_here(folders: list[RunFolder]) -> None:
    """Train every run in this rank, then each from its first checkpoint; rank 0 writes what share it held."""
    import rlhf_cli.trainers.assemble.trainer

    assemble = rlhf_cli.trainers.assemble.trainer.assemble
    built: list[Any] = []

    def watched(experiment: Any, folder: RunFolder, **named: Any) -> Any:
        trainer = assemble(experiment, folder, **named)
        if folder.path.name.startswith(REPLAYED):
            replay(trainer)
        built.append(trainer)
        return trainer

    with pytest.MonkeyPatch.context() as patch:
        fsdp_on_cpu(patch)
        patch.setattr(rlhf_cli.trainers.assemble.trainer, "assemble", watched)
        for folder in folders:
            run_rank(folder, resume=False)
            if os.environ["RANK"] == "0":
                write_json(folder.path / "held.json", {"share": _share_held(built[-1].model)})
                _cut(folder)
            torch.distributed.barrier()
            run_rank(again(folder), resume=True)


def _cut(folder: RunFolder) -> None:
    """Copy a run as a kill after its first checkpoint leaves it."""
    later = [f"checkpoint-{step}" for step in range(2, STEPS + 1)]
    copy = again(folder)
    shutil.copytree(folder.path, copy.path, ignore=shutil.ignore_patterns("model", *later))
    shutil.rmtree(copy.path / "critic", ignore_errors=True)
    write_json(copy.status, {**read_json(copy.status), "state": "running"})


def _share_held(model: torch.nn.Module) -> float:
    """Return what share of the trained weights this rank has, its own shards or all of them."""
    from rlhf_cli.trainers.guard_mixin import own_shard

    trained = [one for one in model.parameters() if one.requires_grad]
    return sum(own_shard(one).numel() for one in trained) / sum(
        getattr(one, "ds_numel", one.numel()) for one in trained
    )


def logged(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Every optimizer step's numbers that are compared; timings and memory are not."""
    names = ("loss", "grad_norm", "learning_rate", "reward", "kl", "ppo/value_loss", "critic/grad_norm")
    for line in folder.metrics.read_text().splitlines():
        event = json.loads(line)
        if "loss" in event:
            yield {name: event[name] for name in ("step", *names) if event.get(name) is not None}


if __name__ == "__main__":
    _run_here([RunFolder(Path(folder)) for folder in sys.argv[1:]])
    leave(0)
