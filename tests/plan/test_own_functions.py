"""An aggregate and a teacher that do not fit are refused before a run; what makes advantages is a file of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.errors import UserError
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER, read_tokenizer
from rlhf_cli.plan.checks import data_checks, reward_checks
from rlhf_cli.plan.checks.facts import DataFacts, Report, RewardFacts
from rlhf_cli.plan.checks.model_checks import policy_problems, teacher_problems
from tests.support.model_copies import model_copy
from tests.support.planning import Write, planned, subject_of, table, told, unsaid

MINE_PY = """
def cols(completions, gold, size=1, **columns): ...
def placed(completions, size: int, **columns): ...
def asks(completions, difficulty, **columns): ...
def typed(completions, *, size: int, gold=1, **columns): ...
def short(totals, groups): return totals[:1]
class Env:
    def reset(self, **row): ...
    def get_reward(self): ...
def hides(completions, a=0.5, b=None, c=1, **columns): ...
def two(rewards, weights): ...
def more(rewards, weights, more): ...
def other(rewards, **other): ...
def looks(completions, **columns): return [float(gold) for gold in columns["gold"]]
def pairs(completions, **columns): assert len(completions) == 2; return [1.0, 0.0]
def eights(completions, **columns): assert len(completions) == 8; return [1.0] * 8
def alone(completions, **columns): assert len(completions) == 1; return [1.0]
def logs(completions, log_metric, **columns): return [0.0] * len(completions)
def best(completions, margin=0.0, **columns): return [float(text == max(completions)) for text in completions]
best.compares_rows = True
def two_each(completions, **columns): return [[0.5, 0.5] for text in completions]
"""
# the check; what is typed; what it says: the key, what it got and expected, what to type or do
FUNCTIONS = """
reward   | X={model:a/b,args:{c:1}}            | X.args
reward   | X.fn=M:hides                        | rewards / X.args.a=0.5 keeps
reward   | X.fn=M:hides X.args.a=2             |
reward   | X={model:a/b} rewards.y.fn=M:hides  | rewards / y.args.a=0.5 keeps
reward   | X.fn=M:best X.args.margin=1 X.isolate=true | X.isolate  true  None  X.isolate=false
reward   | X.fn=M:best X.args.margin=1         |
reward   | environment.class=M:Env X.environment=get_reward rewards.y.fn=M:hides | rewards / y.args.a=0.5
unfed    | rewards.format.per=turn             | rewards.format.per  turn  `tools` / '~rewards.format.per', or
unfed    | truncation=exclude truncation.also=[turns] | truncation.also  turns  `tools` / '~truncation.also', or
unfed    | rewards.format.per=turn rollout.fn=M:r |
unfed    | truncation=exclude truncation.also=[turns] | truncation.also  turns  `tools` / '~truncation.also', or
unfed    | stop.when=foo>1                     | no effect / 'foo'
unfed    | expect={metric:foo,at_least:1}      | no effect / expect / 'foo'
unfed    | stop.when=foo>1 X.fn=M:logs         |
column   | X.fn=M:cols                         | data  columns prompt, answer, a, b  gold, / X.args.gold= / rename.gold=
column   | X.fn=M:cols X.args.gold=1           |
column   | X.fn=M:cols data.rename.gold=answer |
column   | X.fn=M:cols rollout.fn=M:r rollout.columns=[gold] |
column   | X.fn=M:asks                         | file, or data=reasoning_gym  END
column   | X.fn=M:placed                       | X.fn  no arguments  X.args.size, or / X.args.size=VALUE
column   | X.fn=M:placed data=file data.path=a/b |
column   | X.fn=M:typed data=file data.path=a/b | X.fn  no arguments  X.args.size, or / X.args.size=VALUE
column   | X.fn=M:typed                        | X.fn  no arguments  X.args.size, or / X.args.size=VALUE
column   | X.fn=M:typed rollout.fn=M:r rollout.columns=[size] |
column   | X.fn=M:typed data.rename.size=answer |
column   | X.fn=M:typed X.args.gold=2          | X.fn  gold=2  X.args.size, or / X.args.size=VALUE
column   | data.rename.old=a                   | data.rename.old  None  None  '~data.rename.old'  END 
column   | data.rename.old=prompt              | data.rename.old  None  None  '~data.rename.old'  END 
column   | data.rename.old=prompt data.rename.prompt=a | None  '~data.rename.prompt' data.prompt='{a}'  END
column   | X.fn=M:cols data.rename.prompt=gold data.rename.gold=prompt |
function | advantages.fn=M:gone                | advantages.fn  M:gone  one of / short
function | aggregate=M:short                   | aggregate  M:short(totals, groups)  f(rewards, weights)
function | aggregate=M:more                    | aggregate  M:more(rewards, weights, more)  f(rewards, weights)
function | aggregate=M:two                     |
function | aggregate=M:other                   |
trial    | advantages.fn=M:short               | advantages.fn / shape: (1,)  finite
trial    | X.fn=M:cols                         | X.fn / 'gold' / each completion, here '32' / in the same way
trial    | X.fn=M:looks                        | KeyError: 'gold' / are prompt, answer, a, b; data.rename.gold=
trial    | X.fn=M:two_each                     | X.fn / 2 values for a completion of 3 tokens
trial    | X.fn=M:cols X.per=turn              | X.fn / 'gold' / each turn, here '32' / in the same way
trial    | X.fn=M:cols X.per=turn rollout.fn=M:r |
trial    | X.fn=M:cols X.trial=false           |
trial    | X.fn=M:cols X.trial=false rewards.y.fn=M:asks | rewards.y.fn / 'difficulty'
trial    | X.fn=M:cols rollout.fn=M:r rollout.columns=[gold] rewards.y.fn=M:asks | rewards.y.fn / 'difficulty'
trial    | X.fn=M:cols data=file data.path=a/b |
trial    | X.fn=M:cols data.rename.old=prompt  |
trial    | X.fn=M:alone X.isolate=true         |
trial    | X.fn=M:eights                       |
trial    | X.fn=M:eights X.gate={by:format,at_least:1} |
trial    | exp=toy_ppo X.fn=M:pairs            |
"""


@pytest.mark.parametrize(("check", "words", "parts"), table(FUNCTIONS, X="rewards.x", **{"M:": "./mine.py:"}))
def test_a_function_that_gets_or_gives_something_else(write: Write, check: str, words: str, parts: str) -> None:
    write("mine.py", MINE_PY)
    subject = subject_of(*["exp=quickstart"][words.startswith("exp=") :], *words.split())
    data = Report().run(data_checks.source_problems(subject), DataFacts())
    facts = Report().run(reward_checks.reward_problems(subject, data), RewardFacts())
    assert facts.comparing == ["x"] * ("M:best" in words.replace("./mine.py:", "M:"))
    findings = {
        "reward": lambda: reward_checks.reward_problems(subject, data),
        "unfed": lambda: reward_checks.unfed_problems(subject, facts),
        "column": lambda: data_checks.column_problems(subject, data, facts),
        "function": lambda: reward_checks.function_problems(subject),
        "trial": lambda: reward_checks.trial_problems(subject, data),
    }
    found = list(findings[check]())
    assert unsaid(told(iter(found)), parts) == []
    places = [str(one.where) for one in found if isinstance(one, UserError)]
    assert all("(command line)" in place for place in places if place != "data")


def test_a_reward_that_passed_is_not_tried_again(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job of a sweep is checked in the same process."""
    write("mine.py", "def again(completions, **columns): return [1.0] * len(completions)\n")
    subject, tried = subject_of("exp=quickstart", "rewards.x.fn=./mine.py:again"), list[str]()
    monkeypatch.setattr(reward_checks, "in_fork", lambda call, limit_s, what: tried.append(what))
    data = Report().run(data_checks.source_problems(subject), DataFacts())
    assert [*reward_checks.trial_problems(subject, data), *reward_checks.trial_problems(subject, data)] == []
    assert tried.count("the reward 'x'") == 1


def test_the_files_of_own_functions_are_those_of_the_run(write: Write) -> None:
    write("mine.py", "def f(totals, groups):\n    return totals - totals.mean()\n\ndef g(rewards, weights): ...\n")
    plan = planned("exp=quickstart", "advantages.fn=./mine.py:f", "aggregate=./mine.py:g")
    assert plan.files["advantages"] == plan.files["aggregate"] == Path("mine.py").resolve()
    write("heard.py", "from transformers import TrainerCallback\n\nclass Mine(TrainerCallback): ...\n")
    plan = planned("exp=quickstart", "trainer.callbacks=[./heard.py:Mine]")
    assert plan.files["trainer.callbacks[0]"] == Path("heard.py").resolve()


_NEW, _ULD = "'<new>' is no token for the teacher, 258 for the policy", "trainer.args.use_uld_loss=true"
_SIZES, _SCORER = "vocab_size 320 for the teacher, {} for the policy", "LlamaForSequenceClassification"
_CUTS, _ONE = "the same, or a trainer that cuts or pads it", "a teacher of the policy's family"


@pytest.mark.parametrize(
    ("words", "config", "error"),
    [
        ("trainer=gkd new", {}, (_NEW, _ONE, f"trainer=gold {_ULD}")),
        ("trainer=gold new", {}, (_NEW, _ONE, _ULD)),
        (f"trainer=gold {_ULD} new", {}, None),
        ("trainer=gkd none", {}, None),
        ("trainer=gkd", {}, None),
        ("trainer=gkd", {"vocab_size": 320}, (_SIZES.format(258), _CUTS, "trainer=gold")),
        ("trainer=gkd AS=policy", {"vocab_size": 320}, (_SIZES.format(300), _CUTS, "trainer=gold")),
        ("trainer=gkd AS=adapter", {"vocab_size": 320}, (_SIZES.format(300), _CUTS, "trainer=gold")),
        ("trainer=gkd AS=policy", {"vocab_size": 300}, None),
        ("trainer=gold", {"vocab_size": 320}, None),
        ("trainer=gkd", {"architectures": [_SCORER]}, (f"teacher ({_SCORER})", "a language model", None)),
    ],
)
def test_a_teacher_that_does_not_fit(
    place: Path, words: str, config: dict[str, object], error: tuple[str | None, ...] | None
) -> None:
    """Some rows of a model's embedding belong to no token: 320 instead of 258, with the same tokenizer."""
    weights = ("model.safetensors",)  # of 258 rows
    model_copy(place / "teacher", without=weights, config=config)
    model_copy(place / "policy", without=weights, config={"vocab_size": 300})
    (place / "adapter").mkdir()
    (place / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "policy"}')
    ours = read_tokenizer(EMBEDDED_TOKENIZER, where="model.path").tokens
    tokens = {} if "none" in words else {**ours, "<new>": 258} if "new" in words else ours
    words = words.replace(" new", "").replace(" none", "").replace("AS=", "model=local model.path=")
    subject = subject_of("data=file", "data.path=x", "launch=cpu", "teacher.path=teacher", *words.split())
    tokenizer: Any = SimpleNamespace(tokens=tokens)
    found = told(teacher_problems(replace(subject, tokenizer=tokenizer)))
    assert found == ([("teacher.path", *error)] if error else [])
    assert told(teacher_problems(subject)) == []


def test_what_the_policy_is_called_and_when_it_is_refused(place: Path) -> None:
    model_copy(place / "model")
    model_copy(place / "scorer", config={"architectures": [_SCORER], "num_labels": 1})
    local = ("model=local", "model.path=model")
    for words, described in (
        ((), "tiny: 2 layers of 64, byte-level, embedded"),
        (("model.lora.r=8",), "tiny: 2 layers of 64, byte-level, embedded + LoRA r=8"),
        ((*local, "model.lora.r=8", "model.quantize=4bit"), "model (LlamaForCausalLM) + LoRA r=8, 4bit"),
        (("model=local", "model.path=org/m", "model.revision=v1"), "org/m (hub)"),
    ):
        assert Report().run(policy_problems(subject_of("exp=quickstart", "launch=cpu", *words)), "") == described
    refused = subject_of("exp=quickstart", "launch=cpu", *local, "model.revision=v2")
    assert told(policy_problems(refused)) == [("model.revision", "v2 of model", None, "model.revision=null")]
    taught = ("trainer=gkd", "data=file", "data.path=x", "launch=cpu", "teacher.path=model", "teacher.revision=v2")
    refused = subject_of(*taught)
    found = told(teacher_problems(refused))
    assert found == [("teacher.revision", "v2 of model", None, "teacher.revision=null")]
    scorer = ("launch=cpu", "model=local", "model.path=scorer")
    refused = told(policy_problems(subject_of("exp=quickstart", *scorer)))
    assert [one[:3] for one in refused] == [("model.path", f"scorer ({_SCORER})", "a causal language model")]
    assert "rewards.NAME.model" in str(refused[0][3])
    assert told(policy_problems(subject_of("exp=toy_reward", *scorer))) == []
    model_copy(place / "three", config={"architectures": [_SCORER], "num_labels": 3})
    labelled = subject_of("exp=toy_reward", *scorer[:-1], "model.path=three")
    assert [where for where, *_ in told(policy_problems(labelled))] == ["model.path"]
