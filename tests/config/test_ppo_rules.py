"""Test the rules of PPO: settings that a critic refuses, the section `kl`, and arguments beside TRL's."""

from __future__ import annotations

import pytest

from rlhf_cli.config.schema.trainer_sections import Kl
from tests.support.planning import Judged, Refused, Write

QUICK = "exp=quickstart"
PPO = (QUICK, "trainer=ppo", "trainer.args.num_generations=1")
SHARED = (*PPO, "critic.share=lora", "model.lora.r=16")


pytestmark = pytest.mark.usefixtures("place")


ARGS = "trainer.args."
REFUSALS = {
    "trainer.trl=RLOOTrainer ~trainer.args.log_completions": ("trainer.baseline", "trainer.trl=GRPOTrainer, or "),
    "critic=null": ("critic", "trainer=ppo, or critic.init=policy"),
    "~kl": ("kl", "trainer=ppo, or kl.where=none"),
    f"{ARGS}loss_type=cispo": (f"{ARGS}loss_type", f"'~{ARGS}loss_type'"),
    f"{ARGS}scale_rewards=batch": (f"{ARGS}scale_rewards", f"'~{ARGS}scale_rewards'"),
    "aggregate=normalize_then_sum": ("aggregate", "aggregate=sum"),
    "aggregate=./mine.py:f": ("aggregate", "aggregate=sum, or trainer.dense=false"),
    "rewards.format.normalize=group": ("rewards.format.normalize", "rewards.format.normalize=running"),
    "launch.precision=fp16": ("launch.precision", "launch.precision=bf16"),
    "kl.coef=0": ("kl.coef", "kl.where=none"),
    f"{ARGS}use_bias_correction_kl=true": (f"{ARGS}use_bias_correction_kl", f"'~{ARGS}use_bias_correction_kl', or kl"),
    f"critic.share=lora {ARGS}gradient_checkpointing=false": ("critic.share", "+model.lora.r=16"),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_settings_that_ppo_cannot_use(refused: Refused, words: str) -> None:
    where, hint = REFUSALS[words]
    error = refused(*PPO, *words.split())
    assert str(error.where).partition(" ")[0] == where
    assert str(error.hint).startswith(hint)


@pytest.mark.parametrize("word", ["~trainer.args.gradient_checkpointing", "trainer.args.gradient_checkpointing=true"])
def test_a_critic_on_the_policys_body_refuses_checkpointing(refused: Refused, word: str) -> None:
    """TRL's default is on."""
    error = refused(*SHARED, word)
    assert str(error.where).startswith("trainer.args.gradient_checkpointing")
    assert error.hint == "trainer.args.gradient_checkpointing=false, or critic.share=none"


def test_trainer_grpo_on_an_experiment_for_ppo_removes_critic_and_kl(write: Write, judged: Judged) -> None:
    lines = "defaults:\n  - quickstart\n  - override /trainer: ppo\n  - _self_\n"
    write("conf/exp/mine.yaml", f"# @package _global_\n# mine\n{lines}")
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
        assert error.where == f"{key} (command line)"
        assert (error.got, error.expected) == (got, expected)

    def test_beta_is_kl_coef_with_a_critic_and_trls_without(self, refused: Refused, judged: Judged) -> None:
        error = refused(*PPO, "trainer.args.beta=0.1")
        assert (error.where, error.hint) == ("trainer.args.beta (command line)", "kl.coef")
        assert judged(*PPO, "kl.coef=0.1").kl == Kl(coef=0.1)
        assert judged(QUICK, "trainer.args.beta=0.1").trainer.args["beta"] == 0.1
