"""The arguments of PPO that stand beside TRL's: taken out of them, checked, and unknown to other trainers."""

from __future__ import annotations

import pytest

from rlhf_cli.config.schema.trainer_sections import Kl, PpoArgs
from tests.support.ppo_words import PPO, QUICK, Judged, Refused


class TestArguments:
    def test_they_are_taken_out_of_trls(self, judged: Judged) -> None:
        trainer = judged(*PPO, "trainer.args.gamma=0.99", "trainer.args.whiten_advantages=false").trainer
        assert trainer.ppo == PpoArgs(gamma=0.99, gae_lambda=0.95, whiten_advantages=False)
        assert not set(PpoArgs.model_fields) & set(trainer.trl_args)
        assert trainer.trl_args["num_iterations"] == 4
        assert {**trainer.trl_args, **trainer.ppo.model_dump()} == trainer.args

    @pytest.mark.parametrize(
        ("typed", "got", "expected"),
        [
            ("gamma=0", "0", "greater than 0"),
            ("gamma=1.5", "1.5", "less than or equal to 1"),
            ("gamma=high", "'high'", "number"),
            ("gae_lambda=-0.1", "-0.1", "greater than or equal to 0"),
            ("gae_lambda=2", "2", "less than or equal to 1"),
            ("whiten_advantages=1", "1", "boolean"),
        ],
    )
    def test_values(self, refused: Refused, typed: str, got: str, expected: str) -> None:
        error = refused(*PPO, f"trainer.args.{typed}")
        key = f"trainer.args.{typed.partition('=')[0]}"
        assert error.what == f"wrong value for {key}"
        assert error.where == f"{key} (command line)"
        assert (error.got, error.expected) == (got, expected)

    @pytest.mark.parametrize(
        ("typo", "meant"),
        [("gama", "gamma"), ("gae_lamda", "gae_lambda"), ("whiten_advantage", "whiten_advantages")],
    )
    def test_a_typo_gets_the_nearest_of_both(self, refused: Refused, typo: str, meant: str) -> None:
        error = refused(*PPO, f"trainer.args.{typo}=1")
        assert error.what == f"unknown option {typo!r} for GRPOConfig"
        assert "or one of gamma, gae_lambda, whiten_advantages" in str(error.expected)
        assert error.hint == f"trainer.args.{meant}"
        assert refused(*PPO, "trainer.args.num_iteration=1").hint == "trainer.args.num_iterations"

    @pytest.mark.parametrize("trainer", ["grpo", "rloo"])
    def test_elsewhere_they_are_unknown(self, refused: Refused, trainer: str) -> None:
        error = refused(QUICK, f"trainer={trainer}", "trainer.args.gamma=1")
        assert error.what.startswith("unknown option 'gamma'")
        assert error.where == "trainer.args.gamma (command line)"
        assert "gamma belongs to trainer=ppo" in str(error.expected)
        assert error.hint == "trainer=ppo"

    def test_beta_has_a_home_of_ours_here_and_is_trls_elsewhere(self, refused: Refused, judged: Judged) -> None:
        error = refused(*PPO, "trainer.args.beta=0.1")
        assert (error.what, error.hint) == ("trainer.args.beta is set elsewhere", "kl.coef")
        assert judged(*PPO, "kl.coef=0.1").kl == Kl(coef=0.1)
        assert judged(QUICK, "trainer.args.beta=0.1").trainer.args["beta"] == 0.1
