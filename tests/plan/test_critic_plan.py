"""Models that a critic may start from, read from their files; the lines of the start panel about PPO."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_cli.errors import ModelError
from tests.support import planning
from tests.support.model_copies import EMPTY_WEIGHTS, tokenizer_json
from tests.support.planning import Write

PPO = ("exp=quickstart", "trainer=ppo", "trainer.args.num_generations=1", "launch=cpu")
CRITIC = {"architectures": ["LlamaForTokenClassification"], "id2label": {"0": "LABEL_0"}}
REWARD_MODEL = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
POLICY = {"architectures": ["LlamaForCausalLM"]}
TOKENS = {"a": 0, "b": 1}
SIZES = {"model_type": "llama", "hidden_size": 64, "vocab_size": 258}  # those of the tiny model


planned = functools.partial(planning.planned, *PPO)


def refused(*words: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        planned(*words)
    assert str(caught.value.where).startswith("critic.init (")
    return caught.value


@pytest.fixture
def make(write: Write) -> Callable[..., str]:
    """`make("there", CRITIC, hidden_size=32)`: a model folder; `tokens` are those of its tokenizer.json."""

    def call(
        name: str, config: dict[str, Any], *, tokens: dict[str, int] | list[str] | None = None, **more: Any
    ) -> str:
        write(f"{name}/config.json", json.dumps(config | SIZES | more))
        write(f"{name}/tokenizer_config.json", "{}")
        write(f"{name}/model.safetensors", EMPTY_WEIGHTS)
        if tokens is not None:
            write(f"{name}/tokenizer.json", tokenizer_json(tokens, {"<end>": 100}))
        return name

    return call


Make = Callable[..., str]


@pytest.mark.parametrize(
    "config", [CRITIC, REWARD_MODEL, POLICY, CRITIC | {"id2label": None, "num_labels": 1}], ids=str
)
def test_what_a_critic_may_be(make: Make, config: dict[str, Any]) -> None:
    config = {key: value for key, value in config.items() if value is not None}
    assert planned(f"critic.init={make('there', config)}")


@pytest.mark.parametrize(
    "config", [{"architectures": ["BertModel"]}, REWARD_MODEL | {"id2label": {"0": "a", "1": "b", "2": "c"}}], ids=str
)
def test_other_models_are_refused(make: Make, config: dict[str, Any]) -> None:
    error = refused(f"critic.init={make('there', config)}")
    assert error.hint == "critic.init=policy"
    assert str(error.got).endswith(config["architectures"][0])


class TestAPolicyOfOnesOwn:
    """model.path=mine, whose tokenizer knows a, b and <end>."""

    WORDS = ("model=local", "model.path=mine", "critic.init=there")

    def test_the_same_tokens(self, make: Make) -> None:
        make("mine", POLICY, tokens=TOKENS)
        make("there", CRITIC, tokens=TOKENS)
        assert planned(*self.WORDS)

    def test_an_embedding_may_be_smaller_than_the_policys_but_has_every_token(self, make: Make) -> None:
        """<end> is token 100."""
        make("mine", POLICY, tokens=TOKENS)
        make("there", CRITIC, tokens=TOKENS, vocab_size=101)
        assert planned(*self.WORDS)
        make("there", CRITIC, tokens=TOKENS, vocab_size=100)
        assert refused(*self.WORDS).got == "vocab_size 100; the policy has 101 tokens"

    @pytest.mark.parametrize(("ours", "theirs"), [({"a": 0, "b": 1}, {"a": 1, "b": 0}), (["a", "b"], ["b", "a"])])
    def test_other_tokens(self, make: Make, ours: Any, theirs: Any) -> None:
        make("mine", POLICY, tokens=ours)
        make("there", CRITIC, tokens=theirs)
        error = refused(*self.WORDS)
        assert error.hint == "critic.init=policy"
        assert "'a'" in str(error.got)
