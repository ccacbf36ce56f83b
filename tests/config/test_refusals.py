"""Test each kind of mistake in a configuration: its error has the place, the nearest correction, and no secret."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from rlhf_cli.cli import main
from rlhf_cli.config.suggestions import meant_value, names_here
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.errors import ConfigError, Problems
from rlhf_cli.plan.prepare import prepare
from tests.support.planning import Judged, Refused, Write

pytestmark = pytest.mark.usefixtures("place")

MINE = """\
# @package _global_
# mine
defaults:
  - /reward@rewards.short: brevity
  - _self_
"""  # five lines: what a test adds begins at line 6


def mine(write: Write, text: str) -> None:
    write("conf/exp/mine.yaml", MINE + text)


@pytest.mark.parametrize(
    ("text", "key", "line", "hint"),
    [
        ("sed: 3\n", "sed", 6, "seed"),
        ("rewards:\n  short:\n    wieght: 0.5\n", "rewards.short.wieght", 8, "rewards.short.weight"),
        ("data:\n  eval:\n    fractoin: 0.1\n", "data.eval.fractoin", 8, "data.eval.fraction"),
        ("trainer:\n  args:\n    learning_rat: 1.0e-5\n", "trainer.args.learning_rat", 8, "trainer.args.learning_rate"),
        ("trainer:\nargs:\n  learning_rate: 1.0e-5\n", "args", 7, "trainer.args"),
        ("trainer:\n  args:\n    learning_rate:1.0e-5\n", "trainer.args", 7, "learning_rate: 1.0e-5"),
        ("data:\n  prompt: {question}\n", "data.prompt", 7, 'prompt: "{question}"'),
        ("rewards:\n  short:\n", "rewards.short", 7, "'~rewards.short'"),
        ('rewards:\n  short:\n    weight: "0.1"\n', "rewards.short.weight", 8, "rewards.short.weight=0.1"),
        ("rewards:\n  brévité: {fn: a:b}\n", "rewards.brévité", 7, "rewards.brevite"),
        ("output_dir: out\n", "output_dir", 6, RESERVED_ARGS["output_dir"]),
        ("trainer.args.max_steps: 3\n", "trainer.args.max_steps", 6, "trainer: {args: {max_steps: VALUE}}"),
        ("trainer:\n  args.max_steps: 3\n", "trainer.args.max_steps", 7, "args: {max_steps: VALUE}"),
        ("track: null\n", "track", 6, "- override /track: none"),
        ("data: {_target_: os.system}\n", "data._target_", 6, None),
    ],
)
@pytest.mark.fault(39)
def test_a_typo_in_a_file(write: Write, text: str, key: str, line: int, hint: str | None) -> None:
    mine(write, text)
    with pytest.raises(ConfigError) as caught:
        prepare(["exp=mine"], keep_run_names=True)
    problems = getattr(caught.value, "problems", [caught.value])
    error = next(problem for problem in problems if str(problem.where).startswith(f"{key} "))
    assert error.where == f"{key} (conf/exp/mine.yaml:{line})"
    assert error.hint == hint


@pytest.mark.parametrize(
    ("typed", "got", "expected"),
    [
        ("seed=yes", "'yes'", "a whole number"),
        ("seed=-1", "-1", "at least 0"),
        ("track.mode=offlin", "'offlin'", "'online', 'offline' or 'none'"),
        ("track.notes={a: {b: 1}}", "a", "a text"),
        ("run.name=false", "False", "in quotes"),
        ("trainer.args.max_completion_length=null", "null", "a number of tokens"),
        ("rewards.other={}", "{}", "one of `fn`"),
        ("rewards.unlike={weight: 1}", "weight", "correct, format, brevity"),  # too far from each for a correction
        ("rewards.format.clip=[1,2,3]", "[1, 2, 3]", "[LOW, HIGH]"),
        ("data.mix={}", "{}", "at least 1 item"),
        ("model.build.warm_start.worlds=[]", "[]", "at least 1 item"),
        ("model.lora.target_modules=[]", "[]", "at least 1 item"),
        ("model.trust_remote_code=yes", "'yes'", "true or false"),
        ("rewards.format.args._target_=os.system", "os.system", "module:function"),
        ("run.name='a/b'", "'a/b'", "letters, digits, '.', '_' and '-'"),
        ("trainer.args.learning_rate=fast", "'fast'", "a number, such as 1e-06, the default"),
        ("trainer.args.lr_scheduler_kwargs=nonsense", "'nonsense'", "a mapping"),
    ],
)
@pytest.mark.fault(39)
def test_a_wrong_type_or_value(refused: Refused, typed: str, got: str, expected: str) -> None:
    error = refused("exp=quickstart", typed)
    assert error.where == f"{typed.partition('=')[0]} (command line)"
    assert error.got == got
    assert expected in str(error.expected)


@pytest.mark.parametrize("name", RESERVED_ARGS)
def test_an_argument_that_another_key_replaces(refused: Refused, name: str) -> None:
    error = refused("exp=quickstart", f"trainer.args.{name}=1")
    assert (error.where, error.hint) == (f"trainer.args.{name} (command line)", RESERVED_ARGS[name])


def test_trust_remote_code_is_for_the_command_line(write: Write, refused: Refused, judged: Judged) -> None:
    mine(write, "model:\n  trust_remote_code: true\n")
    error = refused("exp=mine")
    assert error.where == "model.trust_remote_code (conf/exp/mine.yaml:7)"
    assert "model.trust_remote_code=true" in str(error.advice)
    assert refused("exp=mine", "model.dtype=float32").where == error.where
    assert judged("exp=mine", "model.trust_remote_code=true").model.trust_remote_code
    assert not judged("exp=mine", "model.trust_remote_code=false").model.trust_remote_code


def test_broken_yaml(write: Write, refused: Refused) -> None:
    mine(write, "seed: 3\nrun: {name: a\n")
    error = refused("exp=mine")
    assert error.where == "conf/exp/mine.yaml:8"
    assert error.expected == "`key: value` lines, indented with spaces"
    mine(write, "seed: 1\nseed: 2\n")
    error = refused("exp=mine")
    assert (error.got, error.expected) == ("found duplicate key seed", "each key once")


@pytest.mark.fault(39)
def test_several_problems_are_reported_together(write: Write) -> None:
    mine(write, "sed: 3\ntrainer:\n  args:\n    learning_rat: 1\n    seed: 3\n")
    with pytest.raises(Problems) as caught:
        prepare(["exp=mine", "track.mode=offlin"], keep_run_names=True)
    told = {str(problem.where) for problem in caught.value.problems}
    assert told == {
        "sed (conf/exp/mine.yaml:6)",
        "trainer.args.learning_rat (conf/exp/mine.yaml:9)",
        "trainer.args.seed (conf/exp/mine.yaml:10)",
        "track.mode (command line)",
    }
    assert all(place in str(caught.value) for place in told)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("rewards.format.args.deep.password=s3cr3tpw", "HF_TOKEN"),
        ("track.api_key=s3cr3tpw", "HF_TOKEN"),
        ("trainer.args.hub_token=s3cr3tpw", "HF_TOKEN"),
        # by its shape, or the value of a variable
        ("track.notes=hf_AbCdEfGhIjKlMnOpQrStUvWxYz", "a Hugging Face token"),
        ("rewards.format.args.url=https://me:s3cr3tpw@host/", "a password in an address"),
        ("rewards.format.args.url='https://host/?api_key=s3cr3tpw'", "a key in an address"),
        ("trainer.args.vllm_server_base_url=http://me:s3cr3tpw@host:8000", "a password in an address"),
        ("track.notes=with plain-words-1", "'track.notes=${oc.env:SERVICE_PASSWORD}'"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(refused: Refused, monkeypatch, typed: str, said: str) -> None:
    monkeypatch.setenv("SERVICE_PASSWORD", "plain-words-1")
    error = refused("exp=quickstart", typed)
    assert (error.where, said in str(error)) == (f"{typed.partition('=')[0]} (command line)", True)
    assert not re.search("s3cr3tpw|AbCdEf|plain-words-1", str(error))
    assert said == "HF_TOKEN" or "${oc.env:" in f"{error.hint}{error.advice}"


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.args.hub_token=${oc.env:SECRET_OF_MINE}"],
        ["apikey=s3cr3tpw"],
        ["seed=https://me:s3cr3tpw@host"],
        ["track.api_key=s3cr3tpw'"],
        ["trainer.args.password=s3cr3tpw", "trainer.args.learning_rate=s3cr3tpw"],
    ],
    ids=str,
)
def test_no_message_repeats_a_secret(words: list[str], capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "s3cr3tpw")
    assert main(["check", "+exp=quickstart", *words]) == 2
    printed = "".join(capsys.readouterr())
    assert ("error:" in printed, "s3cr3tpw" in printed) == (True, False)


class Sample(BaseModel):
    """A field of every kind that a configuration has."""

    size: int = Field(gt=0)
    count: int = Field(default=1, gt=0)
    share: float = Field(default=0.5, ge=0, le=1)
    rate: float = Field(default=1e-05, gt=0)
    switch: bool = False
    word: Literal["steps", "epoch"] = "steps"
    names: list[str] = Field(default_factory=list)
    title: str = ""


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("count", "7", "count=7"),
        ("size", 0, "size=1"),
        ("count", 7.5, "count=8"),
        ("count", -7, "count=1"),  # the default: a sign is never flipped
        ("title", 7, "'title=\"7\"'"),
        ("rate", -0.0, "rate=1e-05"),  # a rate of 1 is taken, and is no rate that anybody means
        ("switch", "yes", "switch=true"),
        ("switch", 0, "switch=false"),
        ("word", "epohc", "word=epoch"),
        ("names", "one", "names=[one]"),
        *(("rate", "1k", None), ("word", "wombat", None), ("share", float("nan"), None)),  # no accepted value is near
    ],
)
def test_the_suggested_value_is_the_one_that_was_meant(name: str, given: object, meant: str | None) -> None:
    assert meant_value(name, Sample.model_fields[name], given) == meant


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("trainer.args.bf16=false", "launch.precision=float32"),
        ("trainer.args.report_to=none", "track=none"),
        ("trainer.args.report_to=[]", "track=none"),
        ("trainer.args.report_to=wandb", "track=wandb, or rlhf list track"),
        ("trainer.args.deepspeed=null", "'~trainer.args.deepspeed'"),
        ("trainer.args.lora_target_linear=true", "model.lora.target_modules=all-linear"),
        ("trainer.args.use_vllm=false", "'~trainer.args.use_vllm'"),
        ("trainer.args.max_prompt_length=64", "data.overlong_prompts=drop"),
        ("rewards.format=2", "rewards.format.weight=2"),
        ("rewards.format.gate=at_least:0.5", "rewards.format.gate.at_least=0.5"),
        ("data.eval=0.1", "data.eval.fraction=0.1"),
        ("data.eval={easy: mine.jsonl}", "data.eval.easy.path=mine.jsonl"),
        ("rewards.x.fn=brevity", "reward@rewards.x=brevity"),
        ("rewards.format.gate=correct", "'rewards.format.gate={by: correct, at_least: 1}'"),
        ("primary=correct", "'primary={by: correct, at_least: 1}'"),
        ("seed=[0,1]", "rlhf train -m ... 'seed=0,1'"),
        ("algorithm=ppo", "trainer=ppo"),
        ("+experiment=toy_ppo", "+exp=toy_ppo"),
        ("brevity=2", "rewards.brevity.weight"),
        ("trainer.name=ppo", "trainer=ppo"),
        ("aggregate=normalise_then_sum", "aggregate=normalize_then_sum"),
        ("track.notes=a,", "track.notes=a"),
        ("trainer.args.learning_rate=1e\u22125", "trainer.args.learning_rate=1e-5"),
        ("trainer.args.learning_rate=fast", "trainer.args.learning_rate=1e-06"),
        ("trainer.args.max_tokens=64", "trainer.args.max_completion_length"),
        ("model.path=Some/Model-0.5B", "model=local model.path=Some/Model-0.5B"),
        ("data.path='my rows.jsonl'", "data=file 'data.path=my rows.jsonl'"),
        ("data.path=my rows (1).jsonl", "\"data.path='my rows (1).jsonl'\""),
        ("data.mix.a.path=mine.jsonl", "data=file data.path=null"),
        ("model=run:quickstart", "model=local model.path=run:quickstart"),
        ("data=my rows.jsonl", "data=file 'data.path=my rows.jsonl'"),
        ("kl=0.1", "trainer.args.beta=0.1"),
        ("trainer=ppo kl=0.1", "kl.coef=0.1"),
        ("trainer=ppo critic=1e-5", "critic.learning_rate=1e-05"),
        ("model.lora=8", "model.lora.r=8"),
        ("model.lora=true", "model.lora.r=16"),
        ("rewards.my-reward.weight=2", "rewards.my_reward"),
        ("data.eval=held.jsonl", "data.eval.path=held.jsonl"),
        ("rewards.mine=./r.py:f", "rewards.mine.fn=./r.py:f"),
        ("teacher=FOLDER", "teacher.path=FOLDER"),
        ("pref_beta=0.1", "trainer.args.beta"),
        ("dataset_prompt_column=q", "data.rename.prompt"),
        ("model=my model", "model=local 'model.path=my model'"),
        # what is suggested fits the typed value
        ("zero_stage=3", "launch.strategy=zero3"),
        ("deepspeed=ds_z3_config.json", "launch.strategy=zero3"),
        ("zero_stage=2", "launch.strategy=zero2"),
        ("load_in_4bit=false", "'~load_in_4bit'"),
        ("data.truncation=error", "data.overlong_prompts"),
        ("trainer.args.learning_rte=fast", "trainer.args.learning_rate=VALUE"),
        ("model_type=LlamaForCausalLM", None),  # the section `model` holds no value
        ("trainer.val_before_train=true", "trainer.args.eval_on_start"),
        ("trainer.critic_warmup=10", None),  # the advice is a sentence
        ("data.filter_overlong_prompts=true", "data.overlong_prompts=drop"),
        ("quantization_bit=4", "model.quantize"),
    ],
)
def test_names_and_values_of_other_tools_get_ours(refused: Refused, typed: str, hint: str | None) -> None:
    assert refused("exp=quickstart", *re.split("(?<=trainer=ppo) ", typed)).hint == hint


def test_the_page_pairs_names_only_where_both_sides_have_as_many() -> None:
    page = names_here()
    assert page["actor_rollout_ref.rollout.top_p"] == "trainer.args.top_p"
    assert page["data.truncation"] == page["data.filter_overlong_prompts"] == "data.overlong_prompts"
    assert page["actor_rollout_ref.actor.use_kl_loss"] == "trainer.args.beta; under PPO kl.where=loss, kl.coef"


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
    assert refused("exp=quickstart", "traner={name: x, args: {max_steps: 3}}").hint == "trainer"


SOURCES = """\
# @package _global_
defaults: [quickstart, {override /data: file}, {override /model: local}, _self_]
data: {path: a.jsonl}
model: {path: o/n}
"""


@pytest.mark.parametrize(
    ("file", "typed", "hint"),
    [
        (SOURCES, ["data.world=toy_sums"], "data.path=null"),
        (
            SOURCES,
            ["model.build={hidden_size: 16, num_layers: 1, num_heads: 2, context_tokens: 64}"],
            "model.path=null",
        ),
        (MINE + "data: {world: toy_sums}\n", ["trainer=grpo", "model=tiny", "data.path=a.jsonl"], "data.world=null"),
    ],
)
def test_what_is_typed_beside_another_source(
    write, refused: Refused, judged: Judged, file: str, typed, hint: str
) -> None:
    write("conf/exp/mine.yaml", file)
    assert refused("exp=mine", *typed).hint == hint
    assert judged("exp=mine", *typed, hint)


@pytest.mark.parametrize("word", ["select=4", "rename.q=a", "sort=a", "keep={column: a, between: [0,1]}"])
def test_a_mix_selects_in_its_sources(refused: Refused, word: str) -> None:
    error = refused("exp=quickstart", "data.world=null", "data.mix.a.path=mine.jsonl", f"data.{word}")
    assert str(error.expected).endswith("data.mix.NAME." + re.split("[.=]", word)[0])


@pytest.mark.parametrize("key", ["model.attn_implementation", "trainer.args.rpo_alpha", "flash_attn", "tools.x.args"])
def test_a_key_that_cannot_be_said_has_advice(refused: Refused, key: str) -> None:
    error = refused("exp=toy_dpo", *["tools.x.fn=./t.py:f"] * key.startswith("tools"), f"{key}=1")
    assert (error.where, bool(error.advice), error.hint) == (f"{key} (command line)", True, None)
