"""Test the rules of `launch`: strategies, Slurm and the rollout engine refuse with what works instead."""

from __future__ import annotations

import pytest

from rlhf_cli.config.rules.launch_rules import seconds
from rlhf_cli.tables.strategies import STRATEGIES
from tests.support.planning import Judged, Refused

pytestmark = pytest.mark.usefixtures("place")

ASK_FOR = {
    "critic.share=lora": ("exp=toy_ppo", "critic.share=lora", "model.lora.r=8"),
    "critic.warmup_steps": ("exp=toy_ppo", "critic.warmup_steps=2"),
    "model.quantize": ("exp=quickstart", "model=local", "model.path=a/b", "model.quantize=4bit", "model.lora.r=8"),
    "sync_ref_model": ("exp=quickstart", "trainer.args.sync_ref_model=true", "trainer.args.beta=0.1"),
    "rollout=continuous": ("exp=quickstart", "launch.rollout=continuous"),
    "offload": ("exp=quickstart", "launch.offload=true"),
    "teacher": ("trainer=distillation", "model=tiny", "data=toy_sums", "teacher.path=a/b"),
}
"""Feature -> the words of an experiment with this feature only."""

CASES = [(name, feature) for name in STRATEGIES for feature in ASK_FOR]


@pytest.mark.parametrize(("name", "feature"), CASES)
def test_a_feature_is_refused_exactly_as_the_table_says(
    judged: Judged, refused: Refused, name: str, feature: str
) -> None:
    words = (*ASK_FOR[feature], f"launch.strategy={name}")
    conflict = STRATEGIES[name].conflicts.get(feature)  # type: ignore[call-overload]
    if conflict is None:
        judged(*words)
        return
    error = refused(*words)
    assert error.hint == conflict[1]
    assert conflict[0] in str(error.expected)


class TestRollout:
    @pytest.mark.parametrize(
        ("word", "hint"),
        [
            ("launch.rollout=vllm", "launch.rollout=hf"),
            ("launch.rollout_gpus=1", "launch.rollout_gpus=0"),
            ("launch.vllm.args.max_num_seqs=4", "~launch.vllm.args"),
        ],
    )
    def test_a_trainer_that_does_not_generate(self, refused: Refused, word: str, hint: str) -> None:
        error = refused("exp=toy_dpo", word)
        assert str(error.where).startswith(word.partition("=")[0].removesuffix(".max_num_seqs"))
        assert error.hint == hint

    def test_no_server(self, refused: Refused, judged: Judged) -> None:
        error = refused("exp=quickstart", "launch.rollout=vllm_server")
        assert error.where == "launch.rollout (command line)"
        assert judged("exp=quickstart", "launch.rollout=vllm_server", "launch.rollout_gpus=1").launch.rollout_gpus == 1

    def test_two_servers(self, refused: Refused) -> None:
        url = "trainer.args.vllm_server_base_url=http://host:8000"
        error = refused("exp=quickstart", "launch.rollout=vllm_server", "launch.rollout_gpus=1", url)
        assert str(error.where).startswith("trainer.args.vllm_server_base_url")

    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("dtype", "launch.precision"),
            ("max_model_len", "trainer.args.vllm_max_model_length"),
            ("tensor_parallel_size", "launch.rollout_gpus"),
            ("no_trust_remote_code", "model.trust_remote_code"),
            ("logprobs_mode", "TRL's client"),
        ],
    )
    def test_options_that_a_run_sets_itself(self, refused: Refused, name: str, key: str) -> None:
        words = ("exp=quickstart", "launch.rollout=vllm_server", "launch.rollout_gpus=1")
        error = refused(*words, f"+launch.vllm.args.{name}=1")
        assert key in str(error.expected)
        assert str(error.where).startswith(f"launch.vllm.args.{name}")


@pytest.mark.parametrize(
    ("text", "meant"),
    [  # the six forms of sbatch's manual
        ("90", 90 * 60),
        ("1:30", 90),
        ("4:00:00", 4 * 3600),
        ("2-12", 60 * 3600),
        ("2-12:30", 60 * 3600 + 30 * 60),
        ("4h", None),
        ("", None),
        ("-1", None),
    ],
)
def test_times_are_read_as_sbatch_does(text: str, meant: int | None) -> None:
    assert seconds(text) == meant


@pytest.mark.parametrize(
    ("word", "key", "says"),
    [
        ("launch.slurm.time=4h", "launch.slurm.time", "launch.slurm.time=4:00:00"),
        ("launch.slurm.time=14400", "launch.slurm.time", "in quotes"),
        ("launch.slurm.time=2:00", "launch.slurm.time", "launch.grace_s=120"),
        ("launch.slurm.extra.time=1", "launch.slurm.extra.time", "constraint"),
        ("launch.slurm.partiton=x", "launch.slurm.partiton", "launch.slurm.partition"),
    ],
)
def test_slurm_settings_that_are_refused(refused: Refused, word: str, key: str, says: str) -> None:
    error = refused("+exp=quickstart", "launch=slurm", word)
    assert str(error.where).startswith(key)
    assert says in str(error)
