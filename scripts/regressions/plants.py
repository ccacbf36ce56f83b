"""The regressions: each changes one thing of this package, of TRL or of torch in the process that trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

BY_NAME: dict[str, Plant] = {}

_TO_ITS_END = "guards.no_signal=off"
"""Without it a guard ends the run before anything is expected of it."""


@dataclass(frozen=True)
class Plant:
    """A regression: `what` is wrong, which experiment trains with it, with what `words` beside; `plant` does it."""

    name: str
    what: str
    exp: str
    plant: Callable[[], None]
    words: tuple[str, ...] = ()


def planted(what: str, exp: str, *words: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants a regression, under its own name."""

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
    _reweigh(lambda weights: [0.0, *weights[1:]])


@planted("weights go to other rewards", "quickstart")
def weights_swapped() -> None:
    _reweigh(lambda weights: weights[::-1])


@planted("the learning rate is a hundredth", "quickstart")
def learning_rate_hundredth() -> None:
    from transformers import Trainer

    original = Trainer.create_optimizer

    def slow(self: Any, *args: Any, **named: Any) -> Any:
        optimizer = original(self, *args, **named)
        for group in optimizer.param_groups:
            group["lr"] *= 0.01
        return optimizer

    Trainer.create_optimizer = slow


@planted("prompts are padded on the right", "quickstart")
def padding_side() -> None:
    import trl.trainer.grpo_trainer as module

    original = module.pad

    def on_the_right(tensors: Any, *args: Any, **named: Any) -> Any:
        return original(tensors, *args, **{**named, "padding_side": "right"})

    module.pad = on_the_right


@planted("a gate is open where it should be closed", "toy_gates")
def gate_inverted() -> None:
    from rlhf_cli.rewards.stack.gates import ScoreGate

    original = ScoreGate.is_open
    ScoreGate.is_open = lambda self, raw: not original(self, raw)  # type: ignore[method-assign]


@planted("dense rewards are summed to one number a row", "toy_speakers")
def dense_ignored() -> None:
    from rlhf_cli.trainers.reward_mixin import RewardMixin

    RewardMixin.is_dense = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


@planted("the critic is not trained", "toy_ppo")
def critic_not_trained() -> None:
    from rlhf_cli.trainers.ppo.critic import TrainedCritic

    def step(self: Any) -> float:
        self._optimizer.zero_grad()
        return 0.0

    TrainedCritic.step = step  # type: ignore[method-assign]


@planted("the KL penalty is a bonus", "toy_ppo")
def kl_sign() -> None:
    from rlhf_cli.trainers.ppo.rollout import KlPenalty

    original = KlPenalty.coef_in_reward.fget  # type: ignore[attr-defined]
    KlPenalty.coef_in_reward = property(lambda self: -original(self))  # type: ignore[assignment,method-assign]


@planted("bootstrap's value stands beside the score, and not in its place", "toy_ppo", "truncation=bootstrap")
def truncation_counts_twice() -> None:
    import rlhf_cli.trainers.ppo.ppo_mixin as module

    module.without_last = lambda scores, lengths, is_given_way: scores


@planted("chosen and rejected change places in the loss", "toy_dpo")
def dpo_sign() -> None:
    import trl.trainer.dpo_trainer as module

    _negated(module, "logsigmoid")


@planted("good and bad change places in the loss", "toy_kto")
def kto_sign() -> None:
    import trl.trainer.kto_trainer as module

    _negated(module, "sigmoid")


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


def _reweigh(change: Callable[[list[float]], list[float]]) -> None:
    from rlhf_cli.rewards.stack.reward_stack import RewardStack

    original = RewardStack.weights
    RewardStack.weights = lambda self, *args: change(original(self, *args))  # type: ignore[method-assign]


def _negated(module: Any, name: str) -> None:
    """Give a module of TRL's a torch.nn.functional of its own, in which one function takes the other sign."""
    functional = module.F
    original = getattr(functional, name)
    module.F = SimpleNamespace(**{**vars(functional), name: lambda value: original(-value)})
