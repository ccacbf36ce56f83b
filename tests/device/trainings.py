"""Train with every trainer on the pretended device: `python -m tests.device.trainings`.

It is a process of its own, because torch keeps a device until the process ends, and a single one, because importing TRL
takes longer than a run. It works in the current folder and writes `seen.json` there: for each run its exit code, its
violations and the waits of its host.
"""

from __future__ import annotations

import contextlib
import json
import pkgutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from tests.device.pretended_device import SEEN
from tests.device.run_module import trained_on
from tests.support.cut_runs import cut, events, is_same
from tests.support.run_fixtures import without_panels
from tests.support.small_reward_runs import SMALL as REWARD
from tests.support.small_reward_runs import WORLD as PAIRS
from tests.support.small_runs import PPO_SMALL, SMALL

STEPS = 2
_HELD_OUT = ["data.eval={fraction: 0.2}", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2"]
_PACKED = "trainer.passes=packed"
_LORA = ["model.lora.r=2", "critic.share=lora", "truncation=bootstrap", "truncation.mode=add"]
_CALCULATOR = ["+exp=toy_calculator", "track=none", "expect=[]", "trainer.args.per_device_train_batch_size=8"]
_CALCULATOR += ["trainer.args.num_generations=4", "guards.no_signal=off"]
TRAININGS = {
    "grpo": [*SMALL, _PACKED, "trainer.args.save_steps=1"],
    "grpo of longer answers": [*SMALL, _PACKED, "trainer.args.max_completion_length=12"],
    "grpo with one reward": [*SMALL, _PACKED, "~rewards.format", "~rewards.brevity"],
    "grpo as TRL does it": [*SMALL, "trainer.passes=plain", "trainer.args.beta=0.1"],
    "grpo with generation of its own": [*SMALL, "trainer.generation=plain", "truncation=exclude"],
    "grpo with a learnt reward": [*SMALL, "rewards.learnt.model=judge", *_HELD_OUT],
    "grpo with groups that differ": [*SMALL, _PACKED, "sampling.keep_groups={by: format, tries: 3}"],
    "grpo with tools": [*_CALCULATOR, _PACKED],
    "ppo with tools": [*_CALCULATOR, *PPO_SMALL, _PACKED],
    "rloo": [*SMALL, "trainer=rloo"],
    "ppo": [*SMALL, *PPO_SMALL, "trainer.passes=trimmed", "trainer.args.save_steps=1"],
    "ppo with a critic of LoRA": [*SMALL, *PPO_SMALL, *_LORA, _PACKED],
    "dpo": [*REWARD, "trainer=dpo", *PAIRS],
    "sft": [*REWARD, "trainer=sft", "data=toy_demonstrations", "data.args.num_rows=40"],
    "reward": [*REWARD, *PAIRS, *_HELD_OUT],
}
"""Name -> what is typed. `passes=auto` would trim: the device has no kernel for all packed rows."""
RESUMED, EVALUATED, COMPARED = ("grpo", "ppo"), ("grpo", "reward", "grpo with tools"), ("grpo", "ppo")


def in_a_pass(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Plant a mask that was left on the CPU."""
    return lambda self, model, ids, mask, *others: stock(self, model, ids, mask.cpu(), *others)


def read_by_numpy(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Plant `.numpy()` of the advantages."""
    return lambda self, advantages: (advantages.numpy(), stock(self, advantages))[1]


def drawn_on_the_cpu(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Plant a generator of the CPU for the tokens."""
    return lambda scores, *_: torch.multinomial(scores, 1, generator=torch.Generator()).squeeze(1)


PLANTED = {
    "a mask of the CPU": ("rlhf_cli.trainers.pass_mixin.PassMixin._scored", in_a_pass),
    "numpy": ("rlhf_cli.trainers.reward_mixin.RewardMixin.dead_round", read_by_numpy),
    "a generator of the CPU": ("rlhf_cli.models.live_generation.draw", drawn_on_the_cpu),
}
"""Name -> what is replaced, and by what."""


def typed(name: str, run: str | None = None) -> list[str]:
    """Return the words of a training; `run` is the name of its folder, which follows from its own if there is none."""
    own = [f"trainer.args.max_steps={STEPS}", "trainer.args.dataloader_pin_memory=false", "launch.device=auto"]
    return ["train", *TRAININGS[name], *own, f"run.name={(run or name).replace(' ', '-')}"]


def seen_in(words: list[str], *, plant: str | None = None) -> dict[str, Any]:
    """Return what a command did on the device: exit code, violations, waits as [operation, package, place, number]."""
    SEEN.violations.clear()
    SEEN.waits.clear()
    with contextlib.ExitStack() as stack:
        if plant is not None:
            target, defect = PLANTED[plant]
            stack.enter_context(patch(target, defect(pkgutil.resolve_name(target))))
        try:
            code: object = main(words)
        except Exception:
            code = traceback.format_exc()
    waits = [[*place, number] for place, number in sorted(SEEN.waits.items())]
    return {"code": code, "violations": list(SEEN.violations), "waits": waits}


def run_folder(run: str) -> RunFolder:
    """Return the folder of a run by its name."""
    (folder,) = Path("runs").glob(f"*/{run.replace(' ', '-')}")
    return RunFolder(folder)


def ends_as(one: RunFolder, other: RunFolder) -> bool:
    """Return whether two runs logged the same numbers and ended with the same model."""
    return is_same(one, other) and json.dumps(events(one)) == json.dumps(events(other))


def farthest(one: Path, other: Path) -> float:
    """Return by how much a weight of two model folders differs at most."""
    theirs = load_file(other / "model.safetensors")
    return max(
        (tensor - theirs[name]).abs().max().item() for name, tensor in load_file(one / "model.safetensors").items()
    )


def resumed(name: str) -> dict[str, Any]:
    """Return what the rest of a run did that was cut after its first step, and whether it ended as the whole one."""
    whole = run_folder(name)
    rest = cut(whole, 1, Path(f"cut-{name}").absolute())
    return {**seen_in(["resume", str(rest.path)]), "is_same": ends_as(rest, whole)}


def on_the_device() -> dict[str, dict[str, Any]]:
    """Return each command's name and its record on the device."""
    with trained_on():
        seen = {name: seen_in(typed(name)) for name in TRAININGS}
        seen |= {f"resume {name}": resumed(name) for name in RESUMED}
        for name in EVALUATED:
            seen[f"eval {name}"] = seen_in(["eval", str(run_folder(name).path), "--rows", "4"])
        for defect in PLANTED:
            seen[defect] = seen_in(typed("rloo", defect), plant=defect)
    return seen


def on_the_cpu(name: str) -> dict[str, Any]:
    """Return how far a run ends from the one on the device, and how far that one's last step went."""
    code = main(typed(name, f"{name} on the CPU"))
    device = run_folder(name)
    off = farthest(run_folder(f"{name} on the CPU").model, device.model)
    return {"code": code, "off": off, "step": farthest(device.checkpoints / "checkpoint-1", device.model)}


def everything() -> dict[str, Any]:
    """Return what was seen on the device, and how far GRPO and PPO were from a CPU."""
    from tests.support.random_reward_model import save_random_reward_model  # the tests read this file without it

    save_random_reward_model(Path("judge"))
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("RLHF_CACHE", str(Path.cwd() / "cache"))
        without_panels(patches)
        seen = on_the_device()
        return seen | {f"{name} on the CPU": on_the_cpu(name) for name in COMPARED}


if __name__ == "__main__":
    Path("seen.json").write_text(json.dumps(everything(), indent=1))
