"""What does not work with a strategy, and who generates: refused by name, with what does work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.config.rules.launch_rules import features
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.tables.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("place")
Refused = Callable[..., ConfigError]
Judged = Callable[..., Experiment]

ASK_FOR = {
    "critic.share=lora": ("exp=toy_ppo", "critic.share=lora", "model.lora.r=8"),
    "critic.warmup_steps": ("exp=toy_ppo", "critic.warmup_steps=2"),
    "model.quantize": ("exp=quickstart", "model=local", "model.path=a/b", "model.quantize=4bit", "model.lora.r=8"),
    "sync_ref_model": ("exp=quickstart", "trainer.args.sync_ref_model=true", "trainer.args.beta=0.1"),
    "rollout=continuous": ("exp=quickstart", "launch.rollout=continuous"),
    "offload": ("exp=quickstart", "launch.offload=true"),
}
"""Feature -> the words of an experiment that has it, and none of the others."""

CASES = [(name, feature) for name in STRATEGIES for feature in ASK_FOR]


@pytest.mark.parametrize(("name", "feature"), CASES)
def test_refused_by_the_table_and_by_nothing_else(judged: Judged, refused: Refused, name: str, feature: str) -> None:
    words = (*ASK_FOR[feature], f"launch.strategy={name}")
    conflict = next((one for one in STRATEGIES[name].conflicts if one.feature == feature), None)
    if conflict is None:
        assert feature in features(judged(*words))
        return
    error = refused(*words)
    assert error.what == f"{feature} does not work with launch.strategy={name}"
    assert (error.hint, error.expected) == (conflict.instead, f"something else: {conflict.why}")


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_every_strategy_has(judged: Judged, name: str) -> None:
    """A critic apart from the policy, and a reward model that scores: every process has the whole of either."""
    judged("exp=toy_ppo", "rewards.judge.model=a/b", f"launch.strategy={name}")


class TestRollout:
    def test_a_trainer_that_does_not_generate(self, refused: Refused) -> None:
        error = refused("exp=toy_dpo", "launch.rollout=vllm")
        assert (error.what, error.hint) == ("trainer=dpo generates nothing", "launch.rollout=hf")

    def test_long_prompts_of_a_trainer_that_reads_none(self, refused: Refused) -> None:
        error = refused("exp=toy_dpo", "data.overlong_prompts=drop")
        assert error.what.startswith("trainer=dpo generates nothing that needs room after a prompt")

    def test_gpus_for_no_server(self, refused: Refused) -> None:
        error = refused("exp=quickstart", "launch.rollout=vllm", "launch.rollout_gpus=1")
        assert error.what == "launch.rollout_gpus is for a vLLM server"

    def test_no_server(self, refused: Refused, judged: Judged) -> None:
        error = refused("exp=quickstart", "launch.rollout=vllm_server")
        assert error.what == "there is no vLLM server to generate"
        assert judged("exp=quickstart", "launch.rollout=vllm_server", "launch.rollout_gpus=1").launch.rollout_gpus == 1

    def test_two_servers(self, refused: Refused) -> None:
        url = "trainer.args.vllm_server_base_url=http://host:8000"
        error = refused("exp=quickstart", "launch.rollout=vllm_server", "launch.rollout_gpus=1", url)
        assert error.what == "there would be two vLLM servers"


@pytest.mark.parametrize("choice", ["auto", "cpu", "ddp", "fsdp2", "zero2", "zero3"])
def test_the_choices(judged: Judged, choice: str) -> None:
    expected = choice if choice in STRATEGIES else "ddp"
    assert judged("exp=quickstart", f"launch={choice}").launch.strategy == expected
