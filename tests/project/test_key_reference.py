"""Every key, metric and argument of a trainer is explained; values and defaults are the schema's, TRL's and ours."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import ValidationError

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.project.function_source import NO_DEFAULT
from rlhf_cli.project.key_reference import about, all_keys, all_metrics, key_reference, keys_below, trainer_reference
from rlhf_cli.tables.metrics import OF_A_CRITIC, OF_A_REWARD


def test_every_key_is_explained() -> None:
    """A section keeps its keys where several of them may stand under names instead (data.eval)."""
    keys = list(all_keys())
    assert len(keys) > 180
    assert {"data.eval.path", "data.eval.NAME.path"} <= {one.key for one in keys}
    assert [one.key for one in keys if not one.text] == []


@pytest.mark.parametrize(
    ("key", "kind", "default", "values"),
    [
        ("rewards.brevity.weight", "number | section", 1.0, ()),
        ("rewards.brevity.normalize", "none | batch | group | running", "none", ("none", "batch", "group", "running")),
        ("rewards.brevity.eager", "true | false", False, ("true", "false")),
        ("rewards.brevity.clip", "[number, number] | null", None, ()),
        ("rewards.brevity.gate.by", "text", NO_DEFAULT, ()),
        ("trainer.class", "text | null", None, ()),
        ("launch.hang_timeout_s", "number | off", 1800.0, ("off",)),
        ("launch.vllm.args", "{name: any}", {}, ()),
    ],
)
def test_a_key(key: str, kind: str, default: object, values: tuple[str, ...]) -> None:
    found = key_reference(key)
    assert found is not None
    assert (found.type, found.default, found.values) == (kind, default, values)


def test_the_values_are_those_that_pydantic_accepts() -> None:
    for section, prefix, base in ((Launch, "launch", {}), (Reward, "rewards.NAME", {"model": "m"})):
        for one in keys_below(prefix):
            name = one.key.rpartition(".")[2]
            for value in one.values if name not in ("isolate", "per") else ():  # need a function
                section.model_validate({**base, name: {"true": True, "false": False}.get(value, value)})
            if one.values:
                with pytest.raises(ValidationError):
                    section.model_validate({**base, name: "no such word"})


def test_every_metric_of_ours_is_in_the_document() -> None:
    """The tables of metrics are compared with runs elsewhere; NAME stands for any reward."""
    names = {one.name for one in all_metrics()}
    assert {*(f"rewards/NAME/{name}" for name in OF_A_REWARD), *OF_A_CRITIC} <= names


@pytest.mark.parametrize("option", groups()["trainer"])
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
