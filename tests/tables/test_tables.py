"""The tables against what they speak of: functions of ours, files of conf/, and TRL's own source."""

from __future__ import annotations

import inspect
import re

import trl

from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.numerics import ppo_losses
from rlhf_cli.rewards.stack.truncation import EFFECTS
from rlhf_cli.tables.modes import KL_FORMS, TRUNCATION_POLICIES
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES
from rlhf_cli.tables.trl_values import REWARD_ARGUMENTS


def test_a_truncation_policy_has_a_row_an_effect_and_a_file() -> None:
    files = {file.stem for file in (shipped_dir() / "truncation").glob("*.yaml")}
    assert set(TRUNCATION_POLICIES) == set(EFFECTS) == files


def test_what_a_policy_does_is_what_its_row_says() -> None:
    for name, row in TRUNCATION_POLICIES.items():
        assert EFFECTS[name].goes_on == row.needs_critic
        assert (EFFECTS[name].added is not None) == ("penalty" in row.reads)


def test_estimators_are_functions() -> None:
    named = [form.estimator for form in KL_FORMS.values() if form.estimator is not None]
    assert named == ["k1", "k3"]
    assert all(callable(getattr(ppo_losses, name)) for name in named)
    assert not any(form.in_reward and form.in_loss for form in KL_FORMS.values())  # it would count twice


def test_the_arguments_of_a_reward_are_those_that_trl_gives() -> None:
    source = inspect.getsource(trl.GRPOTrainer._calculate_rewards)
    given = set(re.findall(r'reward_kwargs\["(\w+)"\] = ', source)) | set(re.findall(r"(\w+)=\w+,? ?", source))
    assert set(REWARD_ARGUMENTS) <= given


def test_normalisers_are_those_of_trl() -> None:
    """TRL branches on the loss once more where it divides; the table names what stands in each branch."""
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    normalisation = source[source.index('if self.loss_type in ["grpo", "sapo"]:') :]
    branch = r'if self\.loss_type (?:in|==) (\[[^\]]*\]|"\w+"):\n(.*?)(?=\n        el)'
    branches = re.findall(branch, normalisation, re.DOTALL)[:5]
    assert sorted(re.findall(r"\w+", " ".join(names for names, _ in branches))) == sorted(POLICY_LOSSES)
    divided_by = {
        "max_length": "self.max_completion_length",
        "window": 'inputs["num_items_in_batch"]',
        "micro-batch": "mask.sum().clamp",
        "row": "mask.sum(-1)",
        "rows": "mask).sum(-1).mean()",
    }
    for names, body in branches:
        for name in re.findall(r"\w+", names):
            assert divided_by[POLICY_LOSSES[name].normaliser] in body, name
