"""Plant one regression at a time in the training process, and print which expectations notice it.

    python -m scripts.regressions --folder planted                # all: the table of docs/how-to/expectations.md
    python -m scripts.regressions --folder planted kl_sign        # some

Each changes one thing in this package, TRL or torch, and trains in its own process: this script with --in NAME.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlhf_cli.analysis.verification import MISSED, VerifiedRun, verify
from rlhf_cli.cli import main as rlhf
from rlhf_cli.display.run_tables import missed_line
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED

BY_NAME: dict[str, Plant] = {}

_TO_ITS_END = "guards.no_signal=off"
"""A guard would end the run before its expectations are judged."""


@dataclass(frozen=True)
class Plant:
    """A regression: its description, the experiment that trains with it, more `words` to type, and the function
    `plant`.
    """

    name: str
    what: str
    exp: str
    plant: Callable[[], None]
    words: tuple[str, ...] = ()


def planted(what: str, exp: str, *words: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants a regression, under its name."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        BY_NAME[function.__name__] = Plant(function.__name__, what, exp, function, words)
        return function

    return register


@planted("advantages have the other sign", "quickstart", _TO_ITS_END)
def advantage_sign() -> None:
    from trl import GRPOTrainer

    original = GRPOTrainer._generate_and_score_completions

    def flipped(self: Any, inputs: Any) -> Any:
        output = original(self, inputs)
        output["advantages"] = -output["advantages"]
        return output

    GRPOTrainer._generate_and_score_completions = flipped


@planted("a reward is logged and has no weight", "quickstart", _TO_ITS_END)
def reward_ignored() -> None:
    from rlhf_cli.rewards.stack.reward_stack import RewardStack

    original = RewardStack.weights
    RewardStack.weights = lambda self, *args: [0.0, *original(self, *args)[1:]]  # type: ignore[method-assign]


@planted("prompts are padded on the right", "quickstart")
def padding_side() -> None:
    import trl.trainer.grpo_trainer as module

    original = module.pad

    def on_the_right(tensors: Any, *args: Any, **named: Any) -> Any:
        return original(tensors, *args, **{**named, "padding_side": "right"})

    module.pad = on_the_right


@planted("a gate is open where it should be closed", "toy_gates")
def gate_inverted() -> None:
    from rlhf_cli.rewards.stack.component import ScoreGate

    original = ScoreGate.is_open
    ScoreGate.is_open = lambda self, raw: not original(self, raw)  # type: ignore[method-assign]


@planted("dense rewards are summed to one number a row", "toy_speakers")
def dense_ignored() -> None:
    from rlhf_cli.trainers.reward_mixin import RewardMixin

    RewardMixin.is_dense = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


@planted("the critic is not trained", "toy_ppo")
def critic_not_trained() -> None:
    from rlhf_cli.trainers.ppo.critic import TrainedCritic

    def step(self: Any) -> tuple[float, float]:
        self._optimizer.zero_grad()
        return 0.0, 0.0  # learning rate, norm of the gradient

    TrainedCritic.step = step  # type: ignore[method-assign]


@planted("the KL penalty is a bonus", "toy_ppo")
def kl_sign() -> None:
    from rlhf_cli.trainers.ppo.critic import KlPenalty

    original = KlPenalty.coef_in_reward.fget  # type: ignore[attr-defined]
    KlPenalty.coef_in_reward = property(lambda self: -original(self))  # type: ignore[assignment,method-assign]


@planted("bootstrap's value is added to the score instead of replacing it", "toy_ppo", "truncation=bootstrap")
def truncation_counts_twice() -> None:
    import rlhf_cli.trainers.ppo.ppo_mixin as module

    module.without_last = lambda scores, lengths, is_given_way: scores  # type: ignore[attr-defined]


@planted("chosen and rejected change places in the loss", "toy_dpo")
def dpo_sign() -> None:
    import trl.trainer.dpo_trainer as module

    functional: Any = module.F
    module.F = SimpleNamespace(**{**vars(functional), "logsigmoid": lambda value: functional.logsigmoid(-value)})


@planted("chosen and rejected change places in the loss", "toy_reward")
def reward_model_sign() -> None:
    import torch.nn.functional as functional

    original = functional.logsigmoid
    functional.logsigmoid = lambda value: original(-value)


@planted("labels are shifted by one token too many", "toy_sft")
def labels_shifted() -> None:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    original = DataCollatorForLanguageModeling.torch_call

    def shifted(self: Any, examples: Any) -> Any:
        output = original(self, examples)
        output["labels"] = output["labels"].roll(-1, dims=1)
        return output

    DataCollatorForLanguageModeling.torch_call = shifted


def run_planted(plant: Plant, root: Path) -> VerifiedRun:
    """Train the plant's experiment unless that is done already, and return its expectations."""
    run = RunFolder((root / plant.exp / plant.name).resolve())
    if not run.config.is_file():
        words = [f"+exp={plant.exp}", *plant.words, f"run.root={root}", f"run.name={plant.name}", "track=none"]
        command = [sys.executable, "-m", "scripts.regressions", "--in", plant.name, "train", *words]
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{plant.name}.log").open("w") as log:
            subprocess.run(command, stdout=log, stderr=log, check=False)
    return verify(run)


def main(argv: list[str]) -> int:
    """Run the regressions and print the table; return 0 if nine of ten were noticed: missed, or not even finished."""
    if argv[:1] == ["--in"]:
        BY_NAME[argv[1]].plant()
        return rlhf(argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BY_NAME, []])
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(argv)
    plants = [BY_NAME[name] for name in options.names or BY_NAME]
    print("| planted | in | told | by what |\n|---|---|---|---|", flush=True)
    num_told = 0
    for plant in plants:
        verified = run_planted(plant, options.folder)
        how = [missed_line(outcome) for outcome in verified.outcomes if outcome.state == MISSED]
        if verified.status.state != FINISHED:
            how.append(f"the run {verified.status.state} at step {verified.status.step}")
        num_told += bool(how)
        words = " ".join((plant.exp, *plant.words))
        print(f"| {plant.what} | `{words}` | {'yes' if how else '**no**'} | {'; '.join(how)} |", flush=True)
    print(f"\n{num_told} of {len(plants)} were noticed")
    return 0 if num_told >= 0.9 * len(plants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
