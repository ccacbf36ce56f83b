"""What tools_and_environments.py relies on in TRL, and a run that calls a tool."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trl
from trl import chat_template_utils

from rlhf_cli.cli import main
from rlhf_cli.data.worlds.reasoning_gym import generate
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.stack_building import interactions_of
from rlhf_cli.rewards.toy import add
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.tools_and_environments import NO_TOOLS, Counts, EnvironmentScore, Interactions, Limits, limited
from tests.documents.quoted_commands import ROOT
from tests.documents.typed_pages import blocks
from tests.support.cut_runs import events, goes_on_as
from tests.support.signatures import parameters

pytestmark = pytest.mark.whole

GRPO = trl.GRPOTrainer


def test_the_constructor_takes_what_we_give() -> None:
    wrapped = limited(add, "add", "tools.add", Limits(), Counts())
    given = [Interactions(Counts(), {"add": wrapped}), Interactions(Counts(), environments={None: object})]
    given.append(Interactions(Counts(), rollout=lambda *_: {}))
    names = {name for interactions in given for name in interactions.arguments()}
    assert names == {"tools", "environment_factory", "rollout_func"} <= set(parameters(GRPO.__init__))
    assert not names & set(parameters(trl.RLOOTrainer.__init__))
    assert {name for name, row in TRAINERS.items() if row.has_tools and row.generates} == {"GRPOTrainer", "GMPOTrainer"}


def test_tools_and_scores_of_an_environment_are_functions_of_its_class() -> None:
    source = inspect.getsource(GRPO.__init__)
    assert "inspect.getmembers(type(instance), predicate=inspect.isfunction)" in source
    assert [f'member_name == "{name}"' in source for name in NO_TOOLS] == [True, True]
    assert "observation = environment.reset(**reset_kwargs)" in inspect.getsource(GRPO._generate_and_score_completions)
    assert 'reward_kwargs["environments"] = self.environments' in inspect.getsource(GRPO._calculate_rewards)
    # An answer that cannot be read is plain text without a word: therefore `rlhf check` reads a call back.
    assert "except (ValueError, TypeError):" in inspect.getsource(chat_template_utils.parse_response)


def test_a_variant_of_a_chat_template_is_named_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As row_tokens.py finds what `assistant_only_loss` learns by."""
    monkeypatch.setattr(chat_template_utils, "supports_tool_calling", lambda _: False)
    variants = [*Path(trl.__file__).parent.joinpath("chat_templates").glob("*_training.jinja")]
    for file in variants:
        own = file.with_name(file.name.replace("_training", "")).read_text("utf-8")
        learnt = chat_template_utils.get_training_chat_template(SimpleNamespace(chat_template=own))
        assert learnt in (None, file.read_text("utf-8"))
        assert (learnt is None) == ("{%- generation" in own or "{% generation" in own)
    assert len(variants) > 5


SMALL = (
    *("+exp=toy_calculator", "track=none", "launch=cpu", "run.name=one", "trainer.args.per_device_train_batch_size=32"),
    *("trainer.args.max_steps=2", "trainer.args.num_generations=4"),
)
TOOL = '''
import os
calls = []

def late(completions, **columns):
    return [1 / (os.environ.get("BROKEN") is None) for _ in completions]

def add(a: int, b: int) -> object:
    """Add, now and then.

    Args:
        a: The first number.
        b: The second number.
    """
    calls.append(a)
    if len(calls) % 2:
        raise ValueError("not now")
    return a + b
'''


@pytest.fixture
def folder(workplace: Path) -> RunFolder:
    return RunFolder(workplace / "runs" / "toy_calculator" / "one")


def test_a_run_calls_its_tool_and_an_evaluation_does_so_too(
    folder: RunFolder, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "mine.py").write_text(TOOL)
    words = ["tools.add.fn=./mine.py:add", "trainer.args.log_completions=true", "rewards.late.fn=./mine.py:late"]
    assert main(["train", *SMALL, *words]) == 0
    rows = [row for row in read_metrics(folder.metrics) if "tools/add/calls" in row]
    calls, errors = (sum(row[f"tools/add/{kind}"] for row in rows) for kind in ("calls", "errors"))
    assert calls > 2
    assert errors == pytest.approx(calls / 2, abs=1)
    assert read_json(folder.provenance)["sha256"]["tools.add"]
    assert main(["eval", str(folder.path), "--rows", "4", "--samples", "8"]) == 0
    (file,) = (folder.path / "eval").glob("*.completions.jsonl")
    assert '"role": "tool"' in file.read_text()
    assert "calls of the model got no result" in str(
        read_json(file.with_name(file.name.replace(".completions.jsonl", ".json")))["warnings"]
    )
    asked = ["--limit", "6", "-n", "2", "--by", "correct", "--pass-rate", "rates.jsonl"]
    assert main(["generate", str(folder.path), *asked]) == 0
    rated, answered = (
        [json.loads(line)["prompt"] for line in file.read_text().splitlines()]
        for file in (workplace / "rates.jsonl", folder.path / "generated/completions.jsonl")
    )
    assert [prompt for prompt in rated for _ in range(2)] == answered, "an answer stays with its prompt"
    monkeypatch.setenv("BROKEN", "1")
    capsys.readouterr()
    assert main(["eval", str(folder.path), "--rows", "2", "--samples", "1"]) == 1
    shown = capsys.readouterr().err
    assert "rewards.late" in shown
    assert "rlhf score" not in shown  # the trainer's folder, and what it keeps of failures, is gone


def test_a_tool_that_must_not_fail_ends_the_run(folder: RunFolder, workplace: Path, capsys: Any) -> None:
    (workplace / "mine.py").write_text(TOOL)
    assert main(["train", *SMALL, "tools.add.fn=./mine.py:add", "tools.add.on_error=raise"]) == 1
    assert "not now" in capsys.readouterr().err


PPO = ("trainer=ppo", "trainer.args.num_generations=1", "critic.learning_rate=1e-3")
KEPT = (
    *("trainer.args.steps_per_generation=2", "trainer.args.num_iterations=2", "trainer.args.max_steps=6"),
    *("trainer.args.save_steps=1", "trainer.args.save_total_limit=null"),
)


@pytest.mark.parametrize("trainer", [(), PPO], ids=["grpo", "ppo"])
@pytest.mark.parametrize("step", [3, 4])
def test_a_run_with_a_tool_that_was_killed_is_the_run_that_never_stopped(
    folder: RunFolder, workplace: Path, trainer: tuple[str, ...], step: int
) -> None:
    """After step 3 the calls of a rollout wait in the buffer; after step 4 the next rollout calls again."""
    assert main(["train", *SMALL, *KEPT, *trainer]) == 0
    assert [event["step"] for event in events(folder) if event.get("tools/add/calls", 0) > 0] == [1, 5]
    goes_on_as(folder, step, workplace / "cut")


PLAIN = ("trainer.args.max_steps=1", "trainer.args.gradient_checkpointing=false", "data.args.num_rows=40")


def test_the_environment_of_the_page_is_played_and_trained(workplace: Path) -> None:
    """`entry` holds the right answer; by hand: right at the second try is worth 1/2."""
    pytest.importorskip("reasoning_gym", reason="pip install 'rlhf-cli[reasoning]'")
    page = "docs/how-to/rewards.md"
    for block in blocks((ROOT / page).read_text(encoding="utf-8"), page):
        if block.file:
            (workplace / block.file).parent.mkdir(parents=True, exist_ok=True)
            (workplace / block.file).write_text(block.text)
    interactions = interactions_of(prepare(["+exp=quiz"]).experiment)
    assert interactions is not None
    (row,) = generate(1, 0, task="chain_sum")
    quiz: Any = interactions.environments[None]()
    score = EnvironmentScore("get_reward", "rewards.solved.environment")
    assert (quiz.reset(**row), score([""], [quiz])) == (" You have 3 tries.", [0.0])
    assert (quiz.submit(answer="none"), score([""], [quiz])) == ("wrong, 2 tries left", [0.0])
    assert (quiz.submit(answer=row["answer"]), score([""], [quiz])) == ("right", [0.5])
    quiz.reset(**row)
    assert (quiz.submit(answer=row["answer"]), score([""], [quiz])) == ("right", [1.0])
    assert interactions.counts.drain() == {"submit": [3, 0, 0]}
    assert main(["train", "+exp=quiz", *SMALL[1:4], *PLAIN]) == 0
    (event,) = (row for row in read_metrics(RunFolder(workplace / "runs/quiz/one").metrics) if "loss" in row)
    assert (event["rewards/solved/mean"], event["tools/submit/calls"]) == (0.0, 0)
