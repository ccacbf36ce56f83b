"""What `rlhf check` refuses of tools, environments and rollout functions, and what it only mentions."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.config.imported_code import asked_of
from rlhf_cli.errors import ModelError, RewardError, UserError
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER, read_tokenizer
from rlhf_cli.plan.checks.data_checks import source_problems
from rlhf_cli.plan.checks.facts import DataFacts, Report, Subject
from rlhf_cli.plan.checks.tool_checks import call_problems, conversation_problems, episode_problems
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.prompt_room import prompt_room
from rlhf_cli.plan.row_tokens import asking_columns, counter_of, longest_rows
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.trainers.assemble.tried_rows import prompts_seen
from tests.support.planning import Refused, Write, planned, subject_of, table, told


def tool(name: str, takes: str, body: str) -> str:
    """A function with the description that the model reads."""
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
class Judged(Maze):
    """A maze with a score that only a reward may ask for: the model is told nothing of it."""
    def so_far(self, weight):
        return float(self.at)
class Unfit(Maze):
    """No class can extend it."""
    def __init_subclass__(cls, *, given, **more):
        pass
class Broken(Maze):
    """A maze without a map."""
    def reset(self, **row):
        raise OSError(f"no map of {sorted(row)}")
class Walled(Maze):
    """A maze without a way."""
    def step(self, by: int) -> int:
        """Step.
        Args:
            by: How far.
        """
        raise OSError(f"no way for {by}")
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
    return subject_of(*CHAT, *(word.replace("M:", "./mine.py:").replace("T.", "tools.") for word in words))


REFUSED = """
T.untold.fn=M:untold                   | Reward | T.untold.fn       | M:untold / a type for every argument
T.add.fn=M:ad                          | Reward | T.add.fn          | M:ad / add, by_turn, late
T.add.fn=M:starred                     | Reward | T.add.fn          | M:starred / *numbers / a type for every
T.add.fn=M:Maze                        | Reward | T.add.fn          | but a type / a function that calls it: def add(
T.add.fn=M:placed                      | Reward | T.add.fn          | M:placed / a: int / a type for every
T.add.fn=M:add trainer=rloo            | Config | tools             | trainer=grpo, or '~tools'
T.add.fn=M:add rollout.fn=M:rollout    | Config | rollout           | tools, rollout / '~rollout', or '~tools'
environment.class=M:add                | Reward | environment.class | M:add / def reset
environment=[1]                        | Config | environment       | [1] / {class: / or null
environment.class=M:Judged              | Reward | environment.class | so_far / docstring
MAZE R.E=rest                          | Reward | R.environment     | Maze one of get_reward, step None
MAZE R.E=stepp                         | Reward | R.environment     | Maze one of get_reward, step R.environment=step
MAZE R.E=reset                         | Reward | R.environment     | Maze one of get_reward, step None
environment.one.class=M:Maze           | Data | data              | columns prompt / data.rename.environment=
R.E=get_reward                         | Config | R.environment     | get_reward / environment.class=./env.py:NAME
R.E=get_reward R.fn=M:scored           | Config | rewards.x         | environment, fn / `fn` / `model`
rollout.fn=M:other                     | Reward | rollout.fn        | M:other(prompts) / def rollout(prompts, trainer)
rollout.fn=M:rollout COLUMNS=[s1,completions] | Config | rollout.columns | completions None COLUMNS=[s1]
CALLS=2                                | Config | CALLS             | 2 / environment / T.NAME.fn=./tools.py:NAME
T.add.fn=M:add CALLS=0                 | Config | CALLS             | 0 1 or more CALLS=2
T.unknown.fn=M:add                     | Config | T.unknown         | another / my_unknown
T.step.fn=M:add MAZE                   | Config | T.step            | another / my_step
R.fn=M:scored                          | Data | data              | s1, which rewards.x reads / data.rename.s1=
"""
_SHORT = {
    "MAZE": "environment.class=M:Maze",
    "COLUMNS": "rollout.columns",
    "R.E=": "R.environment=",
    "M:": "./mine.py:",
    "T.": "tools.",
    "R.": "rewards.x.",
    "CALLS": "trainer.args.max_tool_calling_iterations",
}


@pytest.mark.parametrize(("words", "kind", "where", "parts"), table(REFUSED, **_SHORT))
def test_refused(refused: Refused, words: str, kind: str, where: str, parts: str) -> None:
    error = refused(*CHAT, *words.split())
    assert (type(error).__name__, str(error.where).partition(" ")[0].partition(",")[0]) == (f"{kind}Error", where)
    said = f"{error.got} {error.expected} {error.hint or error.advice}"
    assert [part for part in parts.split(" / ") if part not in said] == []


def test_nothing_can_be_called_in_plain_prompts() -> None:
    subject = subject_of("exp=quickstart", "tools.add.fn=./mine.py:add")
    ((key, got, expected, hint),) = told(
        conversation_problems(subject, DataFacts(columns=("prompt",), described="sums"))
    )
    assert (key, got, str(hint).rpartition(" ")[2]) == ("data", "sums", "'~tools'")
    assert "messages" in str(expected)
    assert told(conversation_problems(subject, DataFacts())) == [], "the columns are not known"


def test_rows_name_environments_that_exist(write: Write) -> None:
    """The first source has no such column, and another check says so."""
    write("one.jsonl", '{"prompt": [{"role": "user", "content": "go"}]}\n')
    named = [{"prompt": [{"role": "user", "content": "go"}], "environment": name} for name in ("one", *"zyxwv", "mazz")]
    write("two.jsonl", "".join(json.dumps(row) + "\n" for row in named))
    mixed = ("data=file", "data.path=null", "data.mix={a: {path: one.jsonl}, b: {path: two.jsonl}}")
    subject = subject_of(
        "exp=quickstart", *mixed, "environment.one.class=./mine.py:Maze", "environment.maze.class=./mine.py:Maze"
    )
    data = Report().run(source_problems(subject), DataFacts())
    found = told(conversation_problems(subject, data))
    assert found == [("data.mix.b, column environment", "mazz, v, w, x, y", "one, maze", "write maze")]


def test_files_are_noted_and_columns_of_a_rollout_are_there() -> None:
    plan = planned(*CHAT, "tools.add.fn=./mine.py:add", "environment.class=./mine.py:Maze")
    assert plan.files["tools.add"] == plan.files["environment"] == Path("mine.py").resolve()
    read = planned(*CHAT, "environment.class=./mine.py:Maze", "rewards.x.environment=get_reward")
    told_of = [[notice.subject for notice in made.notices].count("environment") for made in (plan, read)]
    assert told_of == [1, 0], "its score is read by no reward, and by one"
    planned(*CHAT, "environment.class=./mine.py:Judged", "rewards.x.environment=so_far")
    words = [*CHAT, "rollout.fn=./mine.py:rollout", "rollout.columns=[s1]", "rewards.x.fn=./mine.py:scored"]
    words += ["rewards.t={fn: ./mine.py:by_turn, per: turn}", "rewards.two={fn: ./mine.py:two_turns, per: turn}"]
    assert "rollout" in planned(*words).files
    prepared = prepare(words, keep_run_names=True)
    preflight(prepared.experiment, prepared.composed, tries_rewards=True)  # the trial leaves rewards of rollouts out
    assert any(line.startswith("rollout.fn: ") for line in asked_of(prepared.experiment.model_dump(mode="json")))


def test_a_prompt_is_counted_with_its_tools(write: Write) -> None:
    """Bytes of prompt, the run's tool and that of the row's environment: as it is checked, shown and trained on."""
    template = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}"
    written = tool("wander", "self, by: int", "return by").replace("\n", "\n    ")
    write("forest.py", f'class Forest:\n    """A forest."""\n    def reset(self, **row):\n        pass\n    {written}')
    write("rows.jsonl", "".join(json.dumps({"prompt": "go", "environment": name}) + "\n" for name in ("one", "two")))
    named = ("environment.one.class=./mine.py:Maze", "environment.two.class=./forest.py:Forest")
    given = ("T.plus.fn=M:add", "data=file", "data.path=rows.jsonl", f"model.chat_template='{template}'")
    tokenizer = byte_tokenizer(512)
    tokenizer.chat_template = template
    tokenizer.save_pretrained("chat")
    subject = replace(with_tools(*named, *given), tokenizer=read_tokenizer(Path("chat"), where="model.path"))
    data, tokens = Report().run(source_problems(subject), DataFacts()), [len("goplusstep"), len("gopluswander")]
    rows = data.sources[0].rows
    assert rows is not None
    counter, longest = counter_of(subject), longest_rows(subject, data, None)
    assert counter is not None
    assert longest is not None
    assert (counter.prompts(asking_columns(rows)), longest.prompt) == (tokens, max(tokens))
    experiment, prompts, names = subject.experiment, [rows[place]["prompt"] for place in (0, 1)], ["one", "two"]
    seen = prompts_seen(experiment, prompts, shown=2, environments=names).prompts
    assert [prompt.tokens for prompt in seen] == tokens
    context = (experiment.trainer.whole("max_completion_length") or 0) + tokens[0]
    config: Any = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=context))
    room = prompt_room(experiment, config, tokenizer)
    assert room is not None
    assert room.longer(prompts, names) == {1: tokens[1]}


def test_an_episode_is_tried(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that is one of several is reset without the column that names it, as in a run."""
    write("one.jsonl", '{"prompt": [{"role": "user", "content": "go"}], "environment": "one", "size": 3}\n')
    rows = Report().run(source_problems(subject_of(*CHAT[:1], "data=file", "data.path=one.jsonl")), DataFacts())
    late = ("tools.late.fn=./mine.py:late", "tools.late.timeout_s=0.1")
    subject = with_tools(*late, "environment.class=./mine.py:Broken")
    (notice, error) = told(episode_problems(subject, rows))
    assert (notice[0], error[0]) == ("tools.late", "environment")
    assert "the model would be told: no answer within 0.1 s" in str(notice[1])
    ((_, text),) = told(episode_problems(with_tools(*late, "tools.late.on_error=raise"), rows))
    assert "ends the run" in str(text), "no error: made-up arguments may fail where real ones do not"
    assert "no map of ['environment', 'prompt', 'size']" in str(error[1])
    ((key, got, *_),) = told(episode_problems(with_tools("environment.one.class=./mine.py:Broken"), rows))
    assert (key, "no map of ['prompt', 'size']" in str(got)) == ("environment.one", True)
    walled = with_tools("T.add.fn=M:add", "environment.class=./mine.py:Walled")
    ((key, text),) = told(episode_problems(walled, DataFacts()))
    assert (key, str(text).endswith("OSError: no way for 1")) == ("environment: step", True)
    ((key, got, *_),) = told(episode_problems(with_tools("environment.class=./mine.py:Unfit"), DataFacts()))
    assert (key, "given" in str(got)) == ("environment", True), "a class that cannot be extended"
    assert told(episode_problems(with_tools("environment.class=./mine.py:Maze"), DataFacts())) == []
    prepared = prepare([*CHAT, "environment.class=./mine.py:Broken"])
    with pytest.raises(UserError) as caught:
        preflight(prepared.experiment, prepared.composed, tries_rewards=True)
    assert str(caught.value.where).startswith("environment")
    assert told(episode_problems(with_tools(), rows)) == []
    cuda = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert told(episode_problems(subject, rows)) == [], "such a process cannot be forked"


@pytest.mark.parametrize(
    ("source", "limit_s", "got"), [("raise Odd", 30.0, "Odd"), ("while True: pass", 0.01, "no answer within")]
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
    assert (got in str(found.got), "a result" in str(found.expected)) == (True, True)


def test_a_tool_may_take_longer_than_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_cli.plan.checks.tool_checks.TRIAL_S", 0.01)
    (found,) = episode_problems(with_tools("tools.late.fn=./mine.py:late", "tools.late.timeout_s=off"), DataFacts())
    assert isinstance(found, Notice)


def test_the_call_of_every_tool_is_read_back() -> None:
    """The parser of the embedded model knows numbers and texts, but no lists; the message names the first mistake.
    It knows arguments by the name in the configuration, which may be another than the function's.
    """
    tokenizer = read_tokenizer(EMBEDDED_TOKENIZER, where="model.path")
    for name in ("plus", "add"):
        calling = with_tools(f"tools.{name}.fn=./mine.py:add")
        assert list(call_problems(calling)) == list(call_problems(replace(calling, tokenizer=tokenizer))) == []
    three = with_tools("T.add.fn=M:add", "T.longest.fn=M:longest", "T.longer.fn=M:longest")
    ((key, got, expected, hint),) = told(call_problems(replace(three, tokenizer=tokenizer)))
    assert (key, "'longest'" in str(got), "'longest'" in str(expected)) == ("model.path", True, True)
    assert str(hint).startswith("model=tiny_calls")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"start_anchor": "nobody: "}, ""),  # the whole prompt is read then, and holds no call
        ({"fields": {"content": {"close_pattern": "$"}}}, "tool_calls: "),
        (
            {"fields": {"tool_calls": {"open": "<call>", "close": "</call>", "content": "json"}, "content": {}}},
            "tool_c",
        ),
        (None, "model.response_template"),
        ("{% if messages|length < 2 %}x{% endif %}", "begins with"),
        ("{% if messages|length > 2 %}x{% endif %}", "begins with"),
    ],
)
def test_the_call_that_the_template_shows_is_read_back(
    tmp_path: Path, change: dict[str, Any] | str | None, says: str
) -> None:
    """TRL takes an answer that it cannot read for plain text, so the user would not notice."""
    for file in EMBEDDED_TOKENIZER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    if isinstance(change, str):
        template = tmp_path / "chat_template.jinja"
        template.write_text(change + template.read_text())
    else:
        settings["response_template"] = {**settings["response_template"], **change} if change is not None else None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = read_tokenizer(tmp_path, where="model.path")
    found = told(call_problems(replace(with_tools("T.add.fn=M:add"), tokenizer=tokenizer)))
    assert [says in str(expected) for _, _, expected, _ in found] == [True] * bool(says)


def test_trl_reads_back_the_calls_of_its_own_templates_and_by_a_response_schema(place: Path, chat_model: str) -> None:
    def found(*words: str) -> list[tuple[object, ...]]:
        tokenizer = read_tokenizer(place / "chat", where="x")
        return told(call_problems(replace(with_tools("T.add.fn=M:add", *words), tokenizer=tokenizer)))

    template, settings = place / "chat/chat_template.jinja", place / "chat/tokenizer_config.json"
    brought = {**json.loads(settings.read_text()), "response_template": None}
    settings.write_text(json.dumps(brought))
    assert found() == []
    template.write_text("{% if shown %}" + template.read_text() + "{% endif %}")
    shown = "++trainer.args.chat_template_kwargs={shown: true}"
    ((_, got, expected, _),) = found(shown)
    assert ("response_template" in str(got), "model.response_template" in str(expected)) == (True, True)
    settings.write_text(json.dumps(brought | {"response_schema": {}}))
    assert found(shown) == []
    assert [got for _, got, *_ in found()] == [""], "without its variable the template writes nothing"


def test_a_call_is_tried_with_an_argument_of_each_type(write: Write) -> None:
    takes = "a: int, b: float, c: bool, d: list[int], e: dict, f: str, g: Literal['x', 'y']"
    source = "from typing import Literal\n" + tool("kinds", takes, "raise ValueError((a, b, c, d, e, f, g))")
    write("kinds.py", source)
    ((_, text),) = told(episode_problems(with_tools("tools.kinds.fn=./kinds.py:kinds"), DataFacts()))
    assert str(text).endswith("(1, 1.5, True, [], {}, '1', 'x')")


@pytest.mark.parametrize(
    ("template", "got"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", "1+1"),
        ('{{ raise_exception("no tools") if tools }}{% for m in messages %}{{ m.content }}{% endfor %}', "no tools"),
    ],
)
def test_a_template_without_calls_is_refused(refused: Refused, template: str, got: str) -> None:
    error = refused(*CHAT, "tools.add.fn=./mine.py:add", f"model.chat_template='{template}'")
    assert isinstance(error, ModelError)
    assert str(error.where).startswith("model.chat_template")
    expected = "arguments" if got == "1+1" else "a call and its result"
    assert (got in str(error.got), expected in str(error.expected)) == (True, True)
