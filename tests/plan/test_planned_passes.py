"""How a run's rows will go through the model, planned from config.json and compared with the loaded model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rlhf_cli.models.packing.row_attention import why_not_packed
from rlhf_cli.plan.checks.model_checks import planned_passes
from rlhf_cli.tables.passes import DEFAULTS_IF_OMITTED, Passes, why_config_not_packed
from rlhf_cli.trainers.forward_pass import drops_in_training
from tests.support.planning import subject_of
from tests.support.small_runs import PPO_SMALL, SMALL

SHAPE: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
}
WINDOWS = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}
DROPS = "it drops at random in training, each row for itself"


def passes(*words: str) -> Passes | None:
    return planned_passes(subject_of(*SMALL, *words))


def store(folder: str, config: dict[str, Any], name: str = "config.json") -> None:
    Path(folder).mkdir(exist_ok=True)
    Path(folder, name).write_text(json.dumps(config))


def of(config: dict[str, Any], *words: str) -> Passes | None:
    """Of a policy with this config.json."""
    store("there", config)
    return passes("model.build=null", "model.path=there", *words)


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        *((family, {}) for family in DEFAULTS_IF_OMITTED),
        ("mistral", {"sliding_window": None}),
        ("qwen2", WINDOWS),
        ("qwen3", WINDOWS),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
        ("llama", {"attention_dropout": 0.1}),
    ],
)
def test_the_plan_says_what_the_model_will_say(family: str, changed: dict[str, Any]) -> None:
    """Both of one configuration: of its file, and of a model that transformers makes of it."""
    shape = {"n_embd": 8, "n_head": 2, "n_layer": 1} if family == "gpt2" else SHAPE
    config = CONFIG_MAPPING[family](**shape, **changed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    why = why_not_packed(model) or (DROPS if drops_in_training(model) else None)
    printed = of(json.loads(config.to_json_string()))
    assert printed == (Passes("packed") if why is None else Passes("trimmed", why))


@pytest.mark.parametrize("family", DEFAULTS_IF_OMITTED)
def test_what_a_config_json_leaves_out_is_what_transformers_takes(family: str) -> None:
    """The files of Llama 2 have no rope_theta, those of the first Mistral might have no window."""
    whole = json.loads(CONFIG_MAPPING[family]().to_json_string())
    found = why_config_not_packed({"model_type": family}, "sdpa")
    assert found == why_config_not_packed(whole, "sdpa")
    assert found == {
        "gpt2": "its positions are learned, not rotary",
        "mistral": "its attention has a sliding window of 4096 tokens",
    }.get(family)


def test_an_adapter_s_rows_go_as_its_base_takes_them() -> None:
    """Its own folder has no config.json; where it has one beside it (as a merged model), that is what is loaded."""
    for base, mode in {"mistral": "trimmed", "llama": "packed"}.items():
        store(base, {"model_type": base})
        store("adapter", {"base_model_name_or_path": base}, "adapter_config.json")
        found = passes("model.build=null", "model.path=adapter")
        assert (found and found.mode) == mode
    store("adapter", {"model_type": "gpt2"})
    found = passes("model.build=null", "model.path=adapter")
    assert found == Passes("trimmed", "its positions are learned, not rotary")


def test_dropout_counts_where_it_is_not_switched_off() -> None:
    """TRL's disable_dropout reaches layers, the adapter's among them, and no share that attention keeps as a number;
    ours, under PPO, reaches both.
    """
    lora, off = ("model.lora.r=2", "model.lora.lora_dropout=0.1"), "trainer.args.disable_dropout=true"
    attention = {"model_type": "llama", "attention_dropout": 0.1}
    dropping = Passes("trimmed", DROPS)
    assert (passes(*lora), passes(*lora, off)) == (dropping, Passes("packed"))
    assert (of(attention), of(attention, off)) == (dropping, dropping)
    assert of(attention, *PPO_SMALL) == passes(*PPO_SMALL, *lora) == Passes("packed")


def test_a_critic_of_another_architecture_is_looked_at() -> None:
    """One verdict for both, as in the run."""
    for name in ("gpt2", "llama", "mamba2"):
        store(name, {"model_type": name})
    found = {name: passes(*PPO_SMALL, f"critic.init={name}") for name in ("gpt2", "llama", "mamba2", "nobodys/model")}
    positions = Passes("trimmed", "the critic: its positions are learned, not rotary")
    assert found == {"gpt2": positions, "llama": Passes("packed"), "mamba2": None, "nobodys/model": None}


def test_what_is_asked_for_and_what_cannot_be_known() -> None:
    assert passes("trainer.passes=plain") == Passes("plain", "as asked")
    assert passes("trainer.args.torch_compile=true") == Passes("trimmed", "it is compiled for rows of one shape")
    assert of({"model_type": "some", "text_config": {"model_type": "llama"}}) == Passes(
        "trimmed", "it reads more than text"
    )
    assert of({"model_type": "mamba2"}) is None
    assert passes("model.build=null", "model.path=nobodys/model") is None


@pytest.mark.parametrize(
    ("stored", "words", "mode"),
    [
        ("another", "launch.device=cuda launch.precision=float32", "trimmed"),
        ("dtype", "launch.device=cuda launch.precision=float32", "packed"),
        ("torch_dtype", "launch.device=cuda launch.precision=float32", "packed"),
        ("another", "launch.device=cuda launch.precision=float32 trainer.passes=packed", "packed"),
        ("another", "launch.device=cuda launch.precision=float32 model.dtype=bfloat16", "packed"),
        ("another", "launch.device=cuda launch.precision=bf16", "packed"),
        ("another", "launch.device=cpu launch.precision=float32", "packed"),
    ],
)
def test_float32_on_a_gpu_is_not_packed_by_itself(stored: str, words: str, mode: str) -> None:
    """As the run decides it (tests/trainers/passes/test_chosen_passes.py). transformers 4 called the stored type
    torch_dtype, and most models on the hub still do.
    """
    found = of({"model_type": "llama", **SHAPE, stored: "bfloat16"}, *words.split())
    assert (found and found.mode) == mode
