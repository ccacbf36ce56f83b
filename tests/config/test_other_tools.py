"""What is said to the keys of other tools, and when a value is not taken over with a key."""

from __future__ import annotations

import pytest

from rlhf_cli.config.suggestions import names_here
from tests.support.planning import Refused


def test_the_page_pairs_names_only_where_both_sides_have_as_many() -> None:
    page = names_here()
    assert page["actor_rollout_ref.rollout.top_p"] == "trainer.args.top_p"
    assert page["algo.kl.horizon"] == "kl.controller.horizon"
    assert page["data.truncation"] == page["data.filter_overlong_prompts"] == "data.overlong_prompts"
    assert page["actor_rollout_ref.actor.use_kl_loss"] == "trainer.args.beta; under PPO kl.where=loss, kl.coef"
    assert page["actor_rollout_ref.actor.use_dynamic_bsz"] == "trainer.passes, packed by itself"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("zero_stage=3", "launch.strategy=zero3"),
        ("zero_stage=2", "launch.strategy=zero2"),
        ("deepspeed=ds_z3_config.json", "launch.strategy=zero3"),
        ("load_in_4bit=false", "'~load_in_4bit'"),
        ("trainer.args.load_in_8bit=false", "'~trainer.args.load_in_8bit'"),
        ("use_lora=false", "'~use_lora'"),
        ("data.truncation=error", "data.overlong_prompts"),
        ("learning_rate=fast", "trainer.args.learning_rate=VALUE"),
        ("trainer.args.learning_rte=fast", "trainer.args.learning_rate=VALUE"),
        ("model_type=LlamaForCausalLM", None),  # the section `model` holds no value
        ("trainer.val_before_train=true", "trainer.args.eval_on_start"),
        ("trainer.critic_warmup=10", None),  # it is said in words
        ("data.train_batch_size=1024", None),
        ("data.filter_overlong_prompts=true", "data.overlong_prompts=drop"),
        ("quantization_bit=4", "model.quantize"),
    ],
)
def test_what_is_suggested_fits_the_typed_value(refused: Refused, typed: str, hint: str | None) -> None:
    assert refused("exp=quickstart", typed).hint == hint


def test_every_value_of_a_section_of_another_tool_is_answered(refused: Refused) -> None:
    typed = [f"actor_rollout_ref.{key}" for key in ("rollout.n=5", "actor.use_kl_loss=true", "actor.strange=1")]
    error = refused("exp=quickstart", *typed)
    assert (error.where, error.hint) == ("actor_rollout_ref (command line)", None)
    assert str(error.advice).splitlines() == [
        "actor_rollout_ref.rollout.n: trainer.args.num_generations",
        "actor_rollout_ref.actor.use_kl_loss: trainer.args.beta; under PPO kl.where=loss, kl.coef",
    ]
    axolotl = refused("exp=quickstart", "trl={beta: 0.1, use_vllm: true}")
    assert str(axolotl.advice).splitlines() == ["trl.beta: trainer.args.beta", "trl.use_vllm: launch.rollout=vllm"]
    ours = refused("exp=quickstart", "traner={name: x, args: {max_steps: 3}}")
    assert ours.hint == "trainer"
