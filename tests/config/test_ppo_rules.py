"""Rules about PPO: what a critic goes with, where the KL may be, and its arguments beside those of TRL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import Kl
from rlhf_cli.errors import ConfigError

Judged = Callable[..., Experiment]
Refused = Callable[..., ConfigError]
QUICK = "exp=quickstart"
PPO = (QUICK, "trainer=ppo", "trainer.args.num_generations=1")
SHARED = (*PPO, "critic.share=lora", "model.lora.r=16")


pytestmark = pytest.mark.usefixtures("place")


Write = Callable[[str, str], Path]


REFUSALS: list[tuple[list[str], str, str, str]] = [
    (
        ["trainer.trl=RLOOTrainer", "~trainer.args.log_completions"],
        "there is no PPO on RLOOTrainer",
        "baseline",
        "=GRPOTrainer",
    ),
    (["critic=null"], "needs a section `critic`", "critic", "trainer=ppo, or critic.init=policy"),
    (["~kl"], "needs a section `kl`", "kl", "kl.where=none"),
    (["trainer.args.loss_type=cispo"], "loss_type=cispo is not PPO's", "trainer.args.loss_type", "loss_type'"),
    (["trainer.args.scale_rewards=batch"], "scale_rewards means nothing", "trainer.args.scale_rewards", "'~trainer"),
    (["aggregate=normalize_then_sum"], "normalize_then_sum means nothing", "aggregate", "aggregate=sum"),
    (["aggregate=./mine.py:f"], "sums the rewards token by token", "aggregate", "trainer.dense=false"),
    (
        ["rewards.format.normalize=group"],
        "a group of one has no deviation",
        "rewards.format.normalize",
        "rewards.format.normalize=running",
    ),
    (["launch.precision=fp16"], "PPO does not run in fp16", "launch.precision", "launch.precision=bf16"),
    (["kl.coef=0"], "a KL penalty of 0", "kl.coef", "kl.where=none"),
    (
        ["trainer.args.use_bias_correction_kl=true"],
        "corrects a KL in the loss",
        "trainer.args.use_bias_correction_kl",
        "kl.where=loss",
    ),
    (
        ["critic.share=lora", "trainer.args.gradient_checkpointing=false"],
        "wants a policy that is an adapter",
        "critic.share",
        "+model.lora.r=16",
    ),
]


@pytest.mark.parametrize(("words", "what", "where", "hint"), REFUSALS, ids=[" ".join(words) for words, *_ in REFUSALS])
def test_refusals(refused: Refused, words: list[str], what: str, where: str, hint: str) -> None:
    error = refused(*PPO, *words)
    assert what in error.what
    assert where in str(error.where).partition(" ")[0]
    assert hint in str(error.hint)


@pytest.mark.parametrize("word", ["~trainer.args.gradient_checkpointing", "trainer.args.gradient_checkpointing=true"])
def test_a_critic_on_the_policys_body_and_checkpointing(refused: Refused, word: str) -> None:
    """TRL's default is on."""
    error = refused(*SHARED, word)
    assert error.what == "gradient checkpointing and a critic on the policy's body conflict"
    assert str(error.where).startswith("trainer.args.gradient_checkpointing")
    assert error.hint == "trainer.args.gradient_checkpointing=false, or critic.share=none"


class TestTheGroupInItsPlace:
    """trainer=grpo on an experiment made for PPO: what PPO's own file brought goes with it."""

    MINE = "# @package _global_\n# mine\ndefaults:\n  - quickstart\n  - override /trainer: ppo\n  - _self_\n"

    def test_an_experiment_that_says_nothing_of_the_critic(self, write: Write, judged: Judged) -> None:
        write("conf/exp/mine.yaml", self.MINE)
        assert judged("exp=mine").trainer.baseline == "critic"
        experiment = judged("exp=mine", "trainer=grpo")
        assert (experiment.trainer.baseline, experiment.trainer.dense) == ("group", False)
        assert (experiment.critic, experiment.kl) == (None, None)


class TestArguments:
    @pytest.mark.parametrize(
        ("typed", "got", "expected"),
        [
            ("gamma=0", "0", "greater than 0"),
            ("gamma=1.5", "1.5", "less than or equal to 1"),
            ("whiten_advantages=1", "1", "boolean"),
        ],
    )
    def test_values(self, refused: Refused, typed: str, got: str, expected: str) -> None:
        error = refused(*PPO, f"trainer.args.{typed}")
        key = f"trainer.args.{typed.partition('=')[0]}"
        assert error.what == f"wrong value for {key}"
        assert error.where == f"{key} (command line)"
        assert (error.got, error.expected) == (got, expected)

    def test_beta_has_a_home_of_ours_here_and_is_trls_elsewhere(self, refused: Refused, judged: Judged) -> None:
        error = refused(*PPO, "trainer.args.beta=0.1")
        assert (error.what, error.hint) == ("trainer.args.beta is set elsewhere", "kl.coef")
        assert judged(*PPO, "kl.coef=0.1").kl == Kl(coef=0.1)
        assert judged(QUICK, "trainer.args.beta=0.1").trainer.args["beta"] == 0.1
