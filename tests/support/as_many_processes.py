"""The same runs by one process and by two, every kind of trainer: completions replayed, the same rows of data.

As a script, `as_many_processes.py FOLDER...` is what both processes run: one start for all runs.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf_cli.launch.freeze import create_run
from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.launch.worker import run_rank
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder
from tests.support import small_reward_runs
from tests.support.small_runs import PPO_SMALL, SMALL

REWARDS = """
def first(completion_ids, **kwargs):
    return [ids[0] % 5 / 4 for ids in completion_ids]

def each(completion_ids, **kwargs) -> list[list[float | None]]:
    return [[None if token % 3 == 0 else token % 7 - 3.0 for token in ids] for ids in completion_ids]
"""
GENERATED = [
    *(*SMALL, "~rewards", "+rewards.first.fn=./mine.py:first"),
    *("trainer.args.num_generations=2", "trainer.args.num_iterations=2", "trainer.args.max_steps=4"),
]
DESCENT = ["trainer.args.optim=sgd", "trainer.args.learning_rate=0.1", "trainer.args.save_strategy=no"]
"""Adam would make steps as long as the learning rate of gradients that are rounding alone."""
DEMONSTRATIONS = [word for word in SMALL if "num_generations" not in word and "completion_length" not in word]
WORDS = {
    "ppo": [*GENERATED, *PPO_SMALL, "trainer.args.num_iterations=2", "trainer.args.steps_per_generation=1"],
    "dealt": [*GENERATED, *PPO_SMALL, "trainer.args.num_iterations=2", "trainer.args.max_steps=8"],
    "shuffled": [*GENERATED, *PPO_SMALL, "trainer.args.num_iterations=2", "trainer.args.max_steps=8"],
    "dense": [*GENERATED, "trainer.dense=true", "+rewards.each.fn=./mine.py:each"],
    "rloo": [*GENERATED, "trainer=rloo", "truncation=exclude", "trainer.args.beta=0.1"],
    "row": [*GENERATED, "truncation=exclude", "trainer.args.loss_type=grpo", "trainer.args.beta=0.1"],
    "reward": [*small_reward_runs.SMALL, *small_reward_runs.WORLD],
    "sft": [*(word.replace("exp=quickstart", "exp=toy_sft") for word in DEMONSTRATIONS)],
}


OF_PPO = ("ppo", "dealt", "shuffled")
"""The last two split a round into two minibatches: with the same rows in each, and as TRL's shuffle has them."""


def words_of(name: str, processes: int) -> list[str]:
    own = ["critic.learning_rate=0.1"] if name in OF_PPO else []
    size = f"trainer.args.per_device_train_batch_size={8 // processes}"
    run = [f"run.name={name}-{processes}", f"launch.processes={processes}", "run.root=runs"]
    return [*WORDS[name], *DESCENT, *own, size, *run]


PARTS = [*((name, "model") for name in WORDS if name != "shuffled"), ("ppo", "critic"), ("dealt", "critic")]
"""What is the same: a trainer's policy or model, and PPO's critic."""


def run_both(place: Path) -> dict[int, dict[str, RunFolder]]:
    """Number of processes -> trainer -> its finished run, below `place`, which is the current folder.

    Both processes are started once, for all trainers.
    """
    (place / "mine.py").write_text(REWARDS)
    made = {count: {name: frozen(words_of(name, count)) for name in WORDS} for count in (1, 2)}
    run_all(list(made[1].values()))
    run_ranks("tests.support.as_many_processes", words_of("ppo", 2), list(made[2].values()), timeout_s=550)
    return made


def run_ranks(module: str, words: list[str], folders: list[RunFolder], *, timeout_s: float) -> None:
    """Start `python -m MODULE FOLDER...` as the two ranks of a run with these words, and wait for their end."""
    argv = [sys.executable, "-m", module, *(str(folder.path) for folder in folders)]
    plan = plan_launch(prepare(words).experiment, folders[0].path).at_ports(*free_ports(1))
    files = [Path(f"{folders[0].path.name}-rank{rank}.txt") for rank in plan.ranks]
    ranks = []
    for rank, file in zip(plan.ranks, files, strict=True):
        environment = {**os.environ, **plan.shared, **plan.own_env(rank), "PYTHONPATH": str(Path(__file__).parents[2])}
        with file.open("w") as said:
            ranks.append(subprocess.Popen(argv, env=environment, stdout=said, stderr=said))
    try:
        codes = [rank.wait(timeout=timeout_s) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert codes == [0, 0], files[0].read_text()[-9000:]


def weights(folder: RunFolder, part: str) -> dict[str, torch.Tensor]:
    (file,) = (folder.path / part).glob("*.safetensors")
    return load_file(file)


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


EOS = 1
DEALT = "dealt"
"""A run whose name begins so has the same rows in each minibatch, however many processes share them."""


def frozen(words: list[str]) -> RunFolder:
    """The folder of a run that has been prepared and not begun."""
    prepared = prepare(words)
    plan = preflight(prepared.experiment, prepared.composed)
    return create_run(prepared.experiment, prepared.composed, files=plan.files)


def run_all(folders: list[RunFolder]) -> None:
    """Train every frozen run to its end in this process; a policy says what its prompt and place in the group say."""
    import rlhf_cli.trainers.assemble.trainer

    assemble = rlhf_cli.trainers.assemble.trainer.assemble

    def replaying(*args: Any, **named: Any) -> Any:
        trainer = assemble(*args, **named)
        if trainer.extensions.rewards is not None:
            replay(trainer)
        return trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rlhf_cli.trainers.assemble.trainer, "assemble", replaying)
        for folder in folders:
            with pytest.MonkeyPatch.context() as dealing:
                if folder.path.name.startswith(DEALT):
                    dealing.setattr("trl.trainer.grpo_trainer.shuffle_sequence_dict", _dealt)
                run_rank(folder, resume=False)


def _dealt(rows: dict[str, Any]) -> dict[str, Any]:
    """In place of TRL's shuffle, which is of each process's own rows: two processes keep their order, and one deals its
    two halves out as the two have them, a quarter of each to each of two minibatches.
    """
    if os.environ.get("WORLD_SIZE") == "2":
        return rows
    count = len(rows["completion_ids"])
    first, second, third, fourth = torch.arange(count).split(count // 4)
    order = torch.cat([first, third, second, fourth])
    return {
        name: value[order] if isinstance(value, torch.Tensor) and value.dim() else value for name, value in rows.items()
    }


def replay(trainer: Any) -> None:
    def generate(prompt_ids: list[list[int]], *args: Any, **named: Any) -> Any:
        ids = [
            _completion(prompt, row % trainer.num_generations, trainer.max_completion_length)
            for row, prompt in enumerate(prompt_ids)
        ]
        return ids if type(trainer).__name__ == "RLOOTrainer" else (ids, None)

    trainer._generate_single_turn = generate


def _completion(prompt: list[int], place: int, limit: int) -> list[int]:
    """Return one to `limit` tokens, about a third of them cut off."""
    draw = random.Random(f"{prompt} {place}")
    ids = [draw.randrange(40, 200) for _ in range(draw.randint(1, limit))]
    return ids if len(ids) == limit else [*ids, EOS]


if __name__ == "__main__":
    run_all([RunFolder(Path(folder)) for folder in sys.argv[1:]])
