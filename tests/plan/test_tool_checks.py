"""What `rlhf check` refuses of tools, environments and rollout functions, and what it only mentions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.config.asked_keys import asked_of
from rlhf_cli.errors import ConfigError, DataError, ModelError, RewardError
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER, read_tokenizer
from rlhf_cli.plan.checks.facts import DataFacts, Subject
from rlhf_cli.plan.checks.tool_checks import call_problems, episode_problems
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.run_plan import Notice
from tests.support.planning import Refused, planned, subject_of


def tool(name: str, takes: str, body: str) -> str:
    """A function with what the model is told of it."""
    told = "\n        ".join(f"{argument}: A value." for argument in re.findall(r"(\w+):", takes))
    return f'def {name}({takes}) -> int:\n    """Do it.\n\n    Args:\n        {told}\n    """\n    {body}\n\n'


TOOLS = (
    *(tool("add", "a: int, b: int", "return a + b"), tool("late", "a: int", "time.sleep(60)")),
    *(tool("longest", "words: list[str]", "return max(words)"), tool("placed", "a: int, /", "return a")),
    tool("starred", "*numbers: int", "return sum(numbers)"),
)
SOURCE = '''
import time
def untold(a):
    return a
class Maze:
    """A maze."""
    def reset(self, **row):
        self.at = 0
    def step(self, by: int) -> int:
        """Step.
        Args:
            by: How far.
        """
        self.at += by
        return self.at
    def get_reward(self) -> float:
        return float(self.at)
class Unfit(Maze):
    """No class can extend it."""
    def __init_subclass__(cls, *, given, **more):
        pass
class Broken(Maze):
    """A maze without a map."""
    def reset(self, **row):
        raise OSError("no map")
def rollout(prompts, trainer):
    return {}
def other(prompts):
    return {}
def scored(completions, s1, **columns):
    return [len(text) for text in s1]
def by_turn(completions, turn_texts, **columns):
    return [[float(len(text)) for text in texts] for texts in turn_texts]
def two_turns(completions, **columns):
    return [[1.0, 2.0]] * len(completions)
'''
CHAT = ("exp=quickstart", 'data.prompt=[{role: user, content: "{prompt}"}]')


@pytest.fixture(autouse=True)
def mine(workplace: Path) -> None:
    (workplace / "mine.py").write_text(SOURCE + "\n".join(TOOLS))


def with_tools(*words: str) -> Subject:
    return subject_of(*CHAT, *words)


@pytest.mark.parametrize(
    ("words", "kind", "where"),
    [
        (("tools.untold.fn=./mine.py:untold",), RewardError, "tools.untold.fn"),
        (("tools.add.fn=./mine.py:ad",), RewardError, "tools.add.fn"),
        (("tools.add.fn=./mine.py:starred",), RewardError, "tools.add.fn"),
        (("tools.add.fn=./mine.py:placed",), RewardError, "tools.add.fn"),
        (("tools.add.fn=./mine.py:add", "trainer=rloo"), ConfigError, "tools"),
        (("tools.add.fn=./mine.py:add", "rollout.fn=./mine.py:rollout"), ConfigError, "rollout"),
        (("environment.class=./mine.py:add",), RewardError, "environment.class"),
        (("environment=[1]",), ConfigError, "environment"),
        (("environment.class=./mine.py:Maze", "rewards.x.environment=reward"), RewardError, "rewards.x.environment"),
        (("environment.one.class=./mine.py:Maze",), DataError, "data"),
        (("rewards.x.environment=get_reward",), ConfigError, "rewards.x.environment"),
        (("rewards.x.environment=get_reward", "rewards.x.fn=./mine.py:scored"), ConfigError, "rewards.x"),
        (("rollout.fn=./mine.py:other",), RewardError, "rollout.fn"),
        (("rollout.fn=./mine.py:rollout", "rollout.columns=[s1,completions]"), ConfigError, "rollout.columns"),
        (("trainer.args.max_tool_calling_iterations=2",), ConfigError, "trainer.args.max_tool_calling_iterations"),
        (
            ("tools.add.fn=./mine.py:add", "trainer.args.max_tool_calling_iterations=0"),
            ConfigError,
            "trainer.args.max_tool_calling_iterations",
        ),
        (("tools.unknown.fn=./mine.py:add",), ConfigError, "tools.unknown"),
        (("tools.step.fn=./mine.py:add", "environment.class=./mine.py:Maze"), ConfigError, "tools.step"),
        (("rewards.x.fn=./mine.py:scored",), DataError, "data"),
    ],
)
def test_refused(refused: Refused, words: tuple[str, ...], kind: type[Exception], where: str) -> None:
    error = refused(*CHAT, *words)
    assert isinstance(error, kind)
    assert str(error.where).partition(" ")[0].partition(",")[0] == where


def test_plain_prompts_are_refused(refused: Refused) -> None:
    assert isinstance(refused("exp=quickstart", "tools.add.fn=./mine.py:add"), DataError)


def test_files_are_noted_and_columns_of_a_rollout_are_there() -> None:
    plan = planned(*CHAT, "tools.add.fn=./mine.py:add", "environment.class=./mine.py:Maze")
    assert {"tools.add", "environment"} <= set(plan.files)
    words = [*CHAT, "rollout.fn=./mine.py:rollout", "rollout.columns=[s1]", "rewards.x.fn=./mine.py:scored"]
    words += ["rewards.t={fn: ./mine.py:by_turn, per: turn}", "rewards.two={fn: ./mine.py:two_turns, per: turn}"]
    assert "rollout" in planned(*words).files
    prepared = prepare(words, keep_run_names=True)
    preflight(prepared.experiment, prepared.composed, tries_rewards=True)  # the trial leaves rewards of rollouts out
    assert any(line.startswith("rollout.fn: ") for line in asked_of(prepared.experiment.model_dump(mode="json")))


def test_an_episode_is_tried() -> None:
    subject = with_tools(
        "tools.late.fn=./mine.py:late", "tools.late.timeout_s=0.1", "environment.class=./mine.py:Broken"
    )
    found = list(episode_problems(subject, DataFacts()))
    assert [type(finding).__name__ for finding in found] == ["Notice", "RewardError"]
    assert "no answer within 0.1 s" in str(found[0])
    assert "no map" in str(found[1])
    assert list(episode_problems(with_tools("environment.class=./mine.py:Maze"), DataFacts())) == []


def test_a_failing_call_that_would_end_the_run_is_said_to_do_so() -> None:
    """Made-up arguments may fail where real ones do not, so it is no error."""
    late = ("tools.late.fn=./mine.py:late", "tools.late.timeout_s=0.1", "tools.late.on_error=raise")
    (found,) = episode_problems(with_tools(*late), DataFacts())
    assert isinstance(found, Notice)
    assert "ends the run" in str(found)


@pytest.mark.parametrize(
    ("source", "limit_s", "got"), [("raise Odd", 30.0, "Odd"), ("while True: pass", -1.5, "no answer within")]
)
def test_a_trial_that_does_not_end_is_named_by_its_key(
    source: str, limit_s: float, got: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_cli.plan.checks.tool_checks.TRIAL_S", limit_s)
    reset = f"class Odd(BaseException): ...\nclass Env:\n    def reset(self, **row):\n        {source}\n"
    (workplace / "mine.py").write_text(reset)
    (found,) = episode_problems(with_tools("environment.class=./mine.py:Env"), DataFacts())
    assert isinstance(found, RewardError)
    assert str(found.where).startswith("environment")
    assert got in str(found.got)


def test_a_tool_may_take_longer_than_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_cli.plan.checks.tool_checks.TRIAL_S", -1.5)
    (found,) = episode_problems(with_tools("tools.late.fn=./mine.py:late", "tools.late.timeout_s=off"), DataFacts())
    assert isinstance(found, Notice)


def test_a_class_that_cannot_be_extended_is_named_with_the_reason() -> None:
    (found,) = episode_problems(with_tools("environment.class=./mine.py:Unfit"), DataFacts())
    assert isinstance(found, RewardError)
    assert "given" in str(found.got)


def test_a_tool_may_have_another_name_than_its_function() -> None:
    """Its arguments are numbers, which the parser knows by the name in the configuration."""
    tokenizer = read_tokenizer(EMBEDDED_TOKENIZER, where="model.path")
    assert list(call_problems(with_tools("tools.plus.fn=./mine.py:add"), tokenizer)) == []


def test_the_call_of_every_tool_is_read_back() -> None:
    """The parser of the embedded model knows numbers and texts, and no lists."""
    tokenizer = read_tokenizer(EMBEDDED_TOKENIZER, where="model.path")
    two = with_tools("tools.add.fn=./mine.py:add", "tools.longest.fn=./mine.py:longest")
    assert [type(finding) for finding in call_problems(two, tokenizer)] == [ModelError]


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, False),
        ({"start_anchor": "nobody: "}, False),  # the whole prompt is read then, and holds no call
        ({"fields": {"content": {"close_pattern": "$"}}}, True),
        ({"fields": {"tool_calls": {"open": "<call>", "close": "</call>", "content": "json"}, "content": {}}}, True),
        (None, True),
    ],
)
def test_the_call_that_the_template_shows_is_read_back(
    tmp_path: Path, change: dict[str, Any] | None, refused: bool
) -> None:
    """TRL takes an answer that it cannot read for plain text, so nobody would notice."""
    for file in EMBEDDED_TOKENIZER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["response_template"] = {**settings["response_template"], **change} if change is not None else None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = list(call_problems(with_tools("tools.add.fn=./mine.py:add"), read_tokenizer(tmp_path, where="model.path")))
    assert [type(finding) for finding in found] == [ModelError] * refused


def test_a_template_without_calls_is_refused(refused: Refused) -> None:
    template = "model.chat_template='{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}'"
    error = refused(*CHAT, "tools.add.fn=./mine.py:add", template)
    assert isinstance(error, ModelError)
    assert str(error.where).startswith("model.chat_template")
