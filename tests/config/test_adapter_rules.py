"""`model.lora` takes peft's own fields, read from its source, and refuses those that change the model below."""

from __future__ import annotations

import dataclasses

import peft
import pytest

from rlhf_cli.config.json_schema import configuration_schema
from rlhf_cli.config.rules.adapter_rules import _UNTRIED, own_fields
from rlhf_cli.config.schema.model_and_data import Lora
from rlhf_cli.config.trl_args import lora_fields
from tests.support.planning import Judged, Refused

QUICK = "exp=quickstart"
KL = "trainer.args.beta=0.1"
INIT = "model.lora.init_lora_weights"


def test_the_fields_are_those_of_peft() -> None:
    inherited = {field.name for field in dataclasses.fields(peft.PeftConfig)}
    real = {field.name: field for field in dataclasses.fields(peft.LoraConfig) if field.name not in inherited}
    read = lora_fields()
    assert read.keys() == real.keys()
    plain = {name for name, field in real.items() if isinstance(field.default, bool | int | float | str)}
    assert {name: read[name].default for name in plain} == {name: real[name].default for name in plain}
    assert {*Lora.model_fields, *own_fields(), *_UNTRIED} == real.keys()


@pytest.mark.parametrize(
    "word",
    [
        *("use_dora=true", "use_rslora=true", "modules_to_save=[norm]", "target_parameters=[a.b]", "bias=all"),
        *("rank_pattern={q_proj: 4}", "init_lora_weights=gaussian", "init_lora_weights=false"),
        *("init_lora_weights=pissa", "init_lora_weights=pissa_niter_16", "exclude_modules=lm_head"),
    ],
)
def test_accepted_and_frozen(judged: Judged, word: str) -> None:
    lora = judged(QUICK, f"model.lora.{word}", "model.lora.r=4").model.lora
    assert lora is not None
    name = word.partition("=")[0]
    assert peft.LoraConfig(**lora.model_dump()).r == 4
    assert name in lora.model_dump()
    assert name in str(configuration_schema()["$defs"])


@pytest.mark.parametrize(
    ("words", "where", "hint"),
    [
        (["model.lora.use_dra=true"], "use_dra", "model.lora.use_dora"),
        (["model.lora.use_dora=3"], "use_dora", "~model.lora.use_dora"),
        (["model.lora.bias=some"], "bias", "~model.lora.bias"),
        (["model.lora.layer_replication=[[0,1]]"], "layer_replication", "'~model.lora.layer_replication'"),
        ([f"{INIT}=eva"], "init_lora_weights", f"~{INIT}"),
        *(([f"{INIT}={name}", KL], "init_lora_weights", f"~{INIT}") for name in ("pissa", "olora", "false")),
        ([f"{INIT}=olora", "trainer=ppo"], "init_lora_weights", f"~{INIT}, or kl.where=none"),
    ],
)
def test_refused(refused: Refused, words: list[str], where: str, hint: str) -> None:
    error = refused(QUICK, "model.lora.r=4", *words)
    assert (error.where, error.hint) == (f"model.lora.{where} (command line)", hint)


def test_an_initialisation_that_adds_nothing_at_first_goes_with_a_kl(judged: Judged) -> None:
    for name in ("gaussian", "orthogonal", "mica", "true"):
        assert judged(QUICK, "model.lora.r=4", f"{INIT}={name}", KL)


def test_preferences_compare_with_a_reference_as_well(refused: Refused) -> None:
    assert refused("exp=toy_dpo", "model.lora.r=4", f"{INIT}=pissa").where == f"{INIT} (command line)"
