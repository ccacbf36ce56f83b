"""Rules of trainers: the settings of PPO, fields of `model.lora`, truncation, classes of the user's and TRL's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import peft
import pytest

from rlhf_cli.config.expand import is_dense, truncation_warnings
from rlhf_cli.config.json_schema import configuration_schema
from rlhf_cli.config.rules.trainer_rules import _UNTRIED, own_fields
from rlhf_cli.config.schema.model_and_data import Lora
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.config.schema.trainer_sections import Kl
from rlhf_cli.config.trl_args import lora_fields
from tests.support.planning import Judged, Refused, Write

QUICK = "exp=quickstart"  # max_completion_length 16
PPO = (QUICK, "trainer=ppo", "trainer.args.num_generations=1")


ARGS = "trainer.args."
ADAPTER = f"critic.share=lora model.lora.r=16 {ARGS}gradient_checkpointing=false"
LORA = "critic.share=lora model.lora.r=16"
SAVED = f"{ARGS}gradient_checkpointing=false, or critic.share=none"
REFUSALS = {
    "trainer.trl=RLOOTrainer ~trainer.args.log_completions": ("trainer.baseline", "trainer.trl=GRPOTrainer, or "),
    "critic=null": ("critic", "trainer=ppo, or critic.init=policy"),
    "~kl": ("kl", "trainer=ppo, or kl.where=none"),
    f"{ARGS}beta=0.1": (f"{ARGS}beta", "kl.coef"),
    f"{ARGS}loss_type=cispo": (f"{ARGS}loss_type", f"'~{ARGS}loss_type'"),
    f"{ARGS}scale_rewards=batch": (f"{ARGS}scale_rewards", f"'~{ARGS}scale_rewards'"),
    "aggregate=normalize_then_sum": ("aggregate", "aggregate=sum"),
    "aggregate=./mine.py:f": ("aggregate", "aggregate=sum, or trainer.dense=false"),
    "rewards.format.normalize=group": ("rewards.format.normalize", "rewards.format.normalize=running"),
    "launch.precision=fp16": ("launch.precision", "launch.precision=bf16"),
    "kl.coef=0": ("kl.coef", "kl.where=none"),
    f"{ARGS}use_bias_correction_kl=true": (f"{ARGS}use_bias_correction_kl", f"'~{ARGS}use_bias_correction_kl', or kl"),
    f"critic.share=lora {ARGS}gradient_checkpointing=false": ("critic.share", "+model.lora.r=16"),
    f"{LORA} ~{ARGS}gradient_checkpointing": (f"{ARGS}gradient_checkpointing", SAVED),  # TRL's default is on
    f"{LORA} {ARGS}gradient_checkpointing=true": (f"{ARGS}gradient_checkpointing", SAVED),
    f"{ARGS}importance_sampling_level=sequence": (f"{ARGS}importance_sampling_level", f"'~{ARGS}importance_"),
    f"{ARGS}off_policy_mask_threshold=0.5": (f"{ARGS}off_policy_mask_threshold", f"'~{ARGS}off_policy_"),
    f"{ADAPTER} critic.init=a/b": ("critic.init", "critic.init=policy, or critic.share=none"),
    f"{ADAPTER} {ARGS}ddp_find_unused_parameters=true": (f"{ARGS}ddp_find_unused_parameters", f"'~{ARGS}ddp_find_"),
    "model=local model.path=a/b model.quantize=4bit": ("model.quantize", "model.lora.r=16, or model.quantize=null"),
    "trainer=rloo truncation=bootstrap": ("truncation.policy", "trainer=ppo, or truncation=eos_penalty"),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_settings_that_ppo_cannot_use(refused: Refused, words: str) -> None:
    where, hint = REFUSALS[words]
    error = refused(*PPO, *words.split())
    assert str(error.where).partition(" ")[0] == where
    assert str(error.hint).startswith(hint)


def test_trainer_grpo_on_an_experiment_for_ppo_removes_critic_and_kl(write: Write, judged: Judged) -> None:
    write("conf/exp/mine.yaml", "# @package _global_\ndefaults: [quickstart, {override /trainer: ppo}, _self_]\n")
    assert judged("exp=mine").trainer.baseline == "critic"
    grpo = judged("exp=mine", "trainer=grpo")
    assert (grpo.trainer.baseline, grpo.trainer.dense, grpo.critic, grpo.kl) == ("group", False, None, None)
    # and each of both takes its own coefficient
    assert judged(*PPO, "kl.coef=0.1").kl == Kl(coef=0.1)
    assert judged(QUICK, "trainer.args.beta=0.1").trainer.args["beta"] == 0.1


def test_values_of_ppos_arguments(refused: Refused) -> None:
    for typed, got, expected in (
        ("gamma=0", "0", "above 0"),
        ("gamma=1.5", "1.5", "at most 1"),
        ("whiten_advantages=1", "1", "true or false"),
    ):
        error = refused(*PPO, f"{ARGS}{typed}")
        key = f"{ARGS}{typed.partition('=')[0]} (command line)"
        assert (error.where, error.got, error.expected) == (key, got, expected)


@pytest.mark.parametrize(
    ("line", "hint"),
    [("save_strategy: no", "save_strategy=no"), ("eval_strategy: off", "eval_strategy=no"), ("optim: 3", None)],
)
def test_a_word_that_yaml_reads_as_another_type(write: Write, refused: Refused, line: str, hint: str | None) -> None:
    write("conf/exp/mine.yaml", f"# @package _global_\ndefaults: [quickstart]\ntrainer: {{args: {{{line}}}}}\n")
    error = refused("exp=mine")
    assert error.where == f"trainer.args.{line.partition(':')[0]} (conf/exp/mine.yaml:3)"
    assert error.hint == (hint and f"trainer.args.{hint}")


KL = "trainer.args.beta=0.1"
INIT = "model.lora.init_lora_weights"
LISTED = "model.lora.target_modules=[q_proj]"


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
        *("use_dora=true", "modules_to_save=[norm]", "target_parameters=[a.b]", "bias=all", "rank_pattern={q_proj: 4}"),
        *("init_lora_weights=gaussian", "init_lora_weights=false", "init_lora_weights=pissa_niter_16"),
    ],
)
def test_fields_of_lora_that_are_accepted_and_frozen(judged: Judged, word: str) -> None:
    lora = judged(QUICK, f"model.lora.{word}", "model.lora.r=4").model.lora
    assert lora is not None
    name = word.partition("=")[0]
    assert peft.LoraConfig(**lora.model_dump()).r == 4
    assert name in lora.model_dump()
    assert name in str(configuration_schema()["$defs"])


@pytest.mark.parametrize(
    ("word", "more", "hint"),
    [
        ("use_dra=true", (), "model.lora.use_dora"),
        ("use_dora=3", (), "'~model.lora.use_dora'"),
        ("rank=8", (), "model.lora.r"),
        ("alpha=8", (), "model.lora.lora_alpha"),
        ("layer_replication=[[0,1]]", (), "'~model.lora.layer_replication'"),
        ("layers_to_transform=[0]", (), "model.lora.target_modules=[q_proj,v_proj]"),
        ("layers_pattern=layers", (LISTED,), "model.lora.layers_to_transform=[0]"),
        ("init_lora_weights=eva", (), f"'~{INIT}'"),
        *((f"init_lora_weights={name}", (KL,), f"'~{INIT}'") for name in ("pissa", "olora", "false")),
        ("init_lora_weights=olora", ("trainer=ppo",), f"'~{INIT}', or kl.where=none"),
    ],
)
def test_fields_of_lora_that_are_refused(refused: Refused, word: str, more: tuple[str, ...], hint: str) -> None:
    error = refused(QUICK, "model.lora.r=4", f"model.lora.{word}", *more)
    assert (error.where, error.hint) == (f"model.lora.{word.partition('=')[0]} (command line)", hint)


def test_an_initialisation_that_adds_nothing_at_first_goes_with_a_reference(judged: Judged, refused: Refused) -> None:
    for name in ("gaussian", "orthogonal", "mica", "true"):
        assert judged(QUICK, "model.lora.r=4", f"{INIT}={name}", KL)
    assert refused("exp=toy_dpo", "model.lora.r=4", f"{INIT}=pissa").where == f"{INIT} (command line)"


@pytest.mark.parametrize(
    ("policy", "key", "expected"),
    [
        ("none", "penalty", "eos_penalty or soft_overlong, which read it"),
        ("soft_overlong", "mode", "eos_penalty or bootstrap, which read it"),
        ("eos_penalty", "cache", "soft_overlong, which reads it"),
    ],
)
def test_a_key_that_the_policy_does_not_read(refused: Refused, policy: str, key: str, expected: str) -> None:
    """Even where it is given its default: who wrote it thinks that it does something."""
    value = {"penalty": "2", "mode": "replace", "cache": "4"}[key]
    error = refused(QUICK, f"truncation={policy}", f"truncation.{key}={value}")
    assert error.where == f"truncation.{key} (command line)"
    assert (error.got, error.expected) == (f"truncation.policy={policy}", expected)
    assert str(error.hint).startswith(f"truncation={policy}, or truncation=")


def test_the_ramp_is_shorter_than_a_completion(refused: Refused, judged: Judged) -> None:
    soft = (QUICK, "truncation=soft_overlong")
    assert judged(*soft, "truncation.cache=15").truncation.cache == 15
    error = refused(*soft, "truncation.cache=16")
    assert (error.where, error.expected) == ("truncation.cache (command line)", "below 16")
    assert refused(*soft, "truncation.cache=0").where == "truncation.cache (command line)"
    default = (*soft, "~trainer.args.max_completion_length")
    assert judged(*default, "truncation.cache=511")  # TRL's limit is 512
    assert refused(*default, "truncation.cache=512").expected == "below 512"


BOOTSTRAP = ("exp=quickstart", "trainer=ppo", "truncation=bootstrap", "~rewards")
PLAIN = "+rewards.plain.fn=./mine.py:plain"
DENSE = "+rewards.dense.fn=./mine.py:tokens"
SOURCE = """
import trl
from collections.abc import Sequence
from trl import GRPOTrainer, RLOOTrainer as Leave
from elsewhere import Unknown


class Base(GRPOTrainer): pass
class Mine(Base): pass
class Rloo(trl.RLOOTrainer): pass
class Odd(Unknown): pass
try: import nothing
except ImportError:
    class Inner(Base): pass
    class InnerRloo(Rloo): pass
Alias = Mine
def plain(completions, **kwargs) -> list[float | None]: ...
def unsaid(completions, **kwargs): ...
def tokens(completions, **kwargs) -> list[list[float | None]]: ...
def spans(completions, **kwargs) -> Sequence[list[Span] | float | None]: ...
def quoted(completions, **kwargs) -> "list[list[float]]": ...
def prose(completions, **kwargs) -> "a list of scores": ...
async def later(completions, **kwargs) -> list[list[tuple[int, int, float]] | None]: ...
raise RuntimeError("nobody imports this file to look at it")
"""


@pytest.fixture(autouse=True)
def mine(place: Path) -> Path:
    (place / "mine.py").write_text(SOURCE)
    return place / "mine.py"


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ((DENSE,), "add"),
        ((DENSE, PLAIN), "replace"),
        ((DENSE, PLAIN, "rewards.plain.weight=0"), "add"),
        ((DENSE, PLAIN, "rewards.plain.weight={start: 0, end: 1, steps: 5}"), "replace"),
        (("+rewards.judge.model=org/judge",), "replace"),
        ((PLAIN, "truncation.mode=add"), "add"),
        ((DENSE, "truncation.mode=replace"), "replace"),
    ],
)
def test_bootstraps_mode_follows_from_the_rewards(judged: Judged, words: tuple[str, ...], mode: str) -> None:
    assert judged(*BOOTSTRAP, *words).truncation.mode == mode


@pytest.mark.parametrize(
    ("expected", "names"),
    [(False, ("plain", "unsaid", "prose", "nothere")), (True, ("tokens", "spans", "quoted", "later"))],
)
def test_an_annotation_marks_a_dense_function(expected: bool, names: tuple[str, ...]) -> None:
    for name in names:
        assert is_dense(Reward(fn=f"./mine.py:{name}")) is expected, name
        assert is_dense(Reward(fn=f"./mine.py:{name}", spread="even"))
    assert not is_dense(Reward(fn="./no_file.py:tokens"))


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ((PLAIN, "truncation.mode=add"), "truncation.mode=replace"),
        ((DENSE, "truncation.mode=replace"), "truncation.mode=add"),
        ((PLAIN,), None),
    ],
)
def test_a_mode_that_does_not_fit_the_rewards_gives_a_warning(judged: Judged, words, advice: str | None) -> None:
    warnings = list(truncation_warnings(judged(*BOOTSTRAP, *words)))
    assert [f"; {advice} (" in warning for warning in warnings] == [True] * (advice is not None)


@pytest.mark.parametrize("name", [*map("./mine.py:{}".format, ("Base", "Mine", "Odd", "Inner", "Alias")), "mine:Mine"])
def test_classes_that_are_accepted(judged: Judged, name: str) -> None:
    experiment = judged(QUICK, f"trainer.class={name}")
    assert experiment.trainer.own_class == experiment.model_dump(mode="json")["trainer"]["class"] == name


@pytest.mark.parametrize(
    ("name", "got", "hint"),
    [
        ("./mine.py:Min", "./mine.py:Min", "trainer.class=./mine.py:Mine"),
        ("./mine.py:Rloo", "trainer.trl=GRPOTrainer", "trainer.trl=RLOOTrainer"),
        ("./mine.py:InnerRloo", "trainer.trl=GRPOTrainer", "trainer.trl=RLOOTrainer"),
        ("./nowhere.py:Mine", "./nowhere.py", None),
        ("./mine.py", "./mine.py", None),
        # other classes of TRL's
        ("trl.experimental.gkd:GKDTrainer", "trainer.trl=GRPOTrainer", "trainer.trl=GKDTrainer"),
        ("trl.experimental.bema_for_ref_model:DPOTrainer", "trainer.trl=GRPOTrainer", "trainer.trl=DPOTrainer"),
        ("trl:DistillationTrainer", "trainer.trl=GRPOTrainer", "trainer.trl=DistillationTrainer"),
        ("trl.experimental.async_grpo:AsyncGRPOTrainer", "AsyncGRPOTrainer", "'~trainer.class'"),
        ("trl:OnlineDPOTrainer", "OnlineDPOTrainer", "'~trainer.class'"),  # it is in trl.experimental
        ("trl:GRPOTrainr", "trl:GRPOTrainr", None),
    ],
)
def test_classes_that_are_refused(refused: Refused, name: str, got: str, hint: str | None) -> None:
    error = refused(QUICK, f"trainer.class={name}")
    assert (error.where, error.got, error.hint) == ("trainer.class (command line)", got, hint)


@pytest.mark.parametrize(
    ("trl", "named"),
    [
        *(("GRPOTrainer", "trl:GRPOTrainer"), ("GRPOTrainer", "trl.trainer.grpo_trainer:GRPOTrainer")),
        *(("GRPOTrainer", "./mine.py:GRPOTrainer"), ("GMPOTrainer", "trl.experimental.gmpo:GMPOTrainer")),
        ("RLOOTrainer", "./mine.py:Rloo"),
    ],
)
def test_a_class_of_trls_by_any_of_its_names(judged: Judged, trl: str, named: str) -> None:
    """TRL exports lazily, and its aliases are subclasses in other packages."""
    assert judged(QUICK, f"trainer.trl={trl}", f"trainer.class={named}").trainer.own_class == named


def test_a_class_that_inherits_from_one_that_does_not_run_or_is_not_python(refused: Refused, mine: Path) -> None:
    for text, got in (
        ("from trl.experimental.online_dpo import OnlineDPOTrainer as Other\nclass Mine(Other): pass\n", "Mine"),
        ("class Mine(:\n", "invalid syntax"),
    ):
        mine.write_text(text)
        error = refused(QUICK, "trainer.class=./mine.py:Mine")
        assert (error.where, got in str(error.got)) == ("trainer.class (command line)", True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *(("", "mine"), ("class Watch: ...\n", "mine"), ("class Watch(:\n", "mine")),
        ("class Watch(X):\n    def __init__(self, step): ...\n", "mine"),
        ("class Watch(TrainerCallback): ...\n", "nowhere"),
    ],
)
def test_callbacks_that_cannot_be_called(refused: Refused, judged: Judged, mine: Path, text: str, named: str) -> None:
    mine.write_text(text)
    error = refused(QUICK, f"trainer.callbacks=[./{named}.py:Watch]")
    assert error.where == "trainer.callbacks.0 (command line)"
    mine.write_text("from transformers import TrainerCallback\nclass Watch(TrainerCallback): ...\n")
    words = "trainer.callbacks=[./mine.py:Watch,trl:RichProgressCallback]"
    assert len(judged(QUICK, words).trainer.callbacks) == 2
