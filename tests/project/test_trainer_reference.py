"""The arguments of a trainer: TRL's help and defaults, our values, and arguments with other keys."""

from __future__ import annotations

import dataclasses

import pytest

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.project.key_reference import about, trainer_reference

TRAINERS = list(groups()["trainer"])


@pytest.mark.parametrize("option", TRAINERS)
def test_every_argument_is_explained(option: str) -> None:
    arguments = trainer_reference(option).arguments
    assert len(arguments) > 100
    assert [one.name for one in arguments if not one.text] == []


@pytest.mark.parametrize("option", ["grpo", "dpo"])
def test_names_and_defaults_are_those_of_the_dataclass(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with the imported TRL."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    import trl

    config = getattr(trl, f"{option.upper()}Config")
    fields = {field.name: field for field in dataclasses.fields(config) if field.init}
    said = {one.name: one for one in trainer_reference(option).arguments}
    assert set(said) == set(fields)
    made = {name: field.default_factory() for name, field in fields.items() if callable(field.default_factory)}
    plain = (bool, int, float, str, type(None))
    expected = {name: field.default for name, field in fields.items() if type(field.default) in plain} | made
    assert len(expected) > 130
    assert {name: said[name].default for name in expected} == expected
    assert option != "grpo" or said["beta"].text.startswith("KL coefficient.")


def test_values_of_the_conf_files() -> None:
    ppo = {one.name: one for one in trainer_reference("ppo").arguments}
    assert (ppo["num_generations"].default, ppo["num_generations"].ours) == (8, 1)
    assert ppo["gamma"].config_class == "PpoArgs"
    assert ppo["beta"].home == "kl.coef"
    grpo = {one.name: one for one in trainer_reference("grpo").arguments}
    assert (grpo["beta"].home, grpo["beta"].ours) == (None, None)
    assert "gamma" not in grpo


def test_a_name_of_other_tools_finds_todays_argument_first() -> None:
    """`lr` is part of lr_scheduler_type, too, but alone it means learning_rate."""
    arguments = trainer_reference("grpo").arguments
    found = [argument.name for argument in about(arguments, ["lr"])]
    assert found[0] == "learning_rate"
    assert "lr_scheduler_type" in found
    assert about(arguments, ["scheduler"])[0].name != "learning_rate"
