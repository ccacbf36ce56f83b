"""The key that was meant, by its whole path: each is what its typed form was made from."""

from __future__ import annotations

import pytest

from rlhf_cli.config.compose import compose
from rlhf_cli.config.suggestions import meant_key
from rlhf_cli.text.json_values import JsonTree

pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture(params=["grpo", "ppo"])
def tree(request: pytest.FixtureRequest) -> JsonTree:
    return compose(["exp=quickstart", f"trainer={request.param}"]).tree


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rewards.brevty.wieght", "rewards.brevity.weight"),
        ("trainr.agrs.learning_rte", "trainer.args.learning_rate"),
        ("lauch.slurm.partiton", "launch.slurm.partition"),
        ("trainer.learning_rate", "trainer.args.learning_rate"),
        ("lora.r", "model.lora.r"),
        ("full", "rewards.brevity.args.full"),
        ("rewards.weight.brevity", "rewards.brevity.weight"),
        ("lr", "trainer.args.learning_rate"),
        ("model.lora_rank", "model.lora.r"),
        ("group_size", "trainer.args.num_generations"),
        # another tool's word that is also the end of a key of ours, in a section that nobody means by it
        ("steps", "trainer.args.max_steps"),
        ("batch_size", "trainer.args.per_device_train_batch_size"),
    ],
)
def test_what_was_meant(tree: JsonTree, typed: str, meant: str) -> None:
    assert meant_key(typed, tree) == meant


@pytest.mark.parametrize("typed", ["xyzzy", "rewards.zebra.weight", "trainer.args.banana", "a.b.c.d.e", "r"])
def test_what_is_like_nothing(tree: JsonTree, typed: str) -> None:
    assert meant_key(typed, tree) is None


@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_the_trainer_says_what_a_name_of_once_means(trainer: str) -> None:
    tree = compose(["exp=quickstart", f"trainer={trainer}"]).tree
    assert meant_key("kl_coef", tree) == {"grpo": "trainer.args.beta", "ppo": "kl.coef"}[trainer]
    assert meant_key("gae_lamda", tree) == {"grpo": None, "ppo": "trainer.args.gae_lambda"}[trainer]


def test_what_is_set_elsewhere_is_not_suggested(tree: JsonTree) -> None:
    """trainer.args.seed is refused: the key of its own is."""
    assert meant_key("trainer.args.sed", tree) != "trainer.args.seed"
    assert meant_key("run.seed", tree) == "seed"
