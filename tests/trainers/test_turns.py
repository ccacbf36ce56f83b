"""Rewards per turn and endings in training: stages of a rollout function, calls of tools, GRPO and PPO."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.cut_runs import WINDOWS, goes_on_as, table
from tests.support.small_runs import PPO_SMALL, SMALL
from tests.support.tolerances import ARITHMETIC

pytestmark = pytest.mark.whole

REWARDS = """
def lengths(completions, s1, s2, **columns):
    return [[len(one) / 8, -len(two) / 4] for one, two in zip(s1, s2)]

def second(completions, s1, **columns):
    return [[None, float(one[:1] > "a")] for one in s1]

def said(completions, **columns):
    said = [[message["content"] for message in row if message["role"] == "assistant"] for row in completions]
    return [[len(content) / 8 for content in row] for row in said]

def unflagged(prompts, trainer):
    from rlhf_cli.trainers.staged_rollout import two_lines
    return {name: value for name, value in two_lines(prompts, trainer).items() if name != "is_truncated"}

def add(a: int, b: int) -> str:
    '''Add two numbers.

    Args:
        a: the first.
        b: the second.
    '''
    return str(int(a) + int(b))
"""

STAGES = [
    *("+exp=toy_staged", "~rewards.form", "~rewards.larger", *SMALL[1:]),
    *("rewards.lengths.fn=./mine.py:lengths", "rewards.lengths.per=turn"),
    *("rewards.second.fn=./mine.py:second", "rewards.second.per=turn", "rewards.second.weight=0.5"),
    *("trainer.args.max_completion_length=12", "guards.no_signal=off", "model=tiny", "expect=[]"),
]
PPO = [*PPO_SMALL, "kl.where=none", "trainer.args.gae_lambda=1"]


@pytest.fixture
def staged(workplace: Path, monkeypatch: Any) -> Callable[..., tuple[int, RunFolder]]:
    """`staged(*overrides)` trains in two stages under run.name=one."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    (workplace / "mine.py").write_text(REWARDS)

    def run(*overrides: str, name: str = "one") -> tuple[int, RunFolder]:
        code = main(["train", *STAGES, f"run.name={name}", *overrides])
        return code, RunFolder(workplace / "runs" / "toy_staged" / name)

    return run


def rounds(before_training: Any) -> list[dict[str, Any]]:
    """Return a list that gets the batch of every round."""
    found: list[dict[str, Any]] = []

    def watch(trainer: Any) -> None:
        generate = trainer._generate_and_score_completions

        def kept(inputs: Any) -> Any:
            output = generate(inputs)
            found.append({**output, "inputs": inputs})
            return output

        trainer._generate_and_score_completions = kept

    before_training(watch)
    return found


def expected_returns(row: dict[str, Any]) -> tuple[float, float]:
    """Return what the tokens of s1 and those of s2 earn, by hand: what comes at their turn's end and later."""
    second = -len(row["s2"]) / 4 + 0.5 * float(row["s1"][:1] > "a")
    return len(row["s1"]) / 8 + second, second


def test_under_ppo_s1_gets_the_rewards_of_both(staged, before_training) -> None:
    found = rounds(before_training)
    code, _ = staged(*PPO, "trainer.args.gamma=1")
    assert code == 0
    for batch in found:
        acts = (batch["completion_mask"] * batch["tool_mask"]).bool()
        for row, inputs in enumerate(batch["inputs"]):
            first, second = expected_returns(inputs)
            returns = batch["returns"][row][acts[row]].tolist()
            num_first = batch["tool_mask"][row].tolist().index(0)
            assert returns[:num_first] == pytest.approx([first] * num_first, **ARITHMETIC)
            assert returns[num_first:] == pytest.approx([second] * (len(returns) - num_first), **ARITHMETIC)
            assert not batch["returns"][row][~acts[row]].any()


def test_grpo_spreads_them(staged, before_training) -> None:
    """By hand: each rewarded position against the group's, and a token has what comes at it and later."""
    found = rounds(before_training)
    assert staged()[0] == 0
    batch = found[0]
    acts = (batch["completion_mask"] * batch["tool_mask"]).bool()
    for start in range(0, len(acts), 4):
        group = range(start, start + 4)
        pairs = [expected_returns(batch["inputs"][row]) for row in group]
        values = torch.tensor([[first - second, second] for first, second in pairs], dtype=torch.float64)
        normalised = (values - values.mean()) / (values.std() + 1e-4)
        for row, (one, two) in zip(group, normalised.tolist(), strict=True):
            advantages, end = batch["advantages"][row][acts[row]].tolist(), batch["tool_mask"][row].tolist().index(0)
            by_hand = [one + two] * end + [two] * (len(advantages) - end)
            assert advantages == pytest.approx(by_hand, rel=1e-3, abs=1e-3)


def test_tables_score_and_whatif_know_the_turns(staged, capsys) -> None:
    _, folder = staged()
    rows = table(folder, 1)
    names = ("s1", "s2", "turn_texts", "lengths.parts", "rollout.ending")
    for one, two, texts, parts, ending in zip(*(rows[name] for name in names), strict=True):
        turns = json.loads(parts)
        assert [turn["text"] for turn in turns] == texts == [one, two]
        assert [turn["reward"] for turn in turns] == pytest.approx([len(one) / 8, -len(two) / 4])
        assert turns[0]["advantage"] is not None
        assert ending in ("finished", "length")
    capsys.readouterr()
    assert main(["score", str(folder.path), "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert [len(row["rewards"]["lengths"]["parts"]) for row in scored["rows"]] == [2] * len(scored["rows"])
    assert main(["whatif", str(folder.path), "rewards.lengths.weight=2"]) == 0
    assert main(["report", str(folder.path)]) == 0
    (page,) = folder.path.glob("report*.html")
    assert re.search(r'"name": ?"lengths", ?"raw": ?[-0-9.]+, ?"weighted": ?[-0-9.]+, ?"parts": ?\[', page.read_text())


@pytest.mark.parametrize("function", ["rlhf_cli.trainers.staged_rollout:two_lines", "./mine.py:unflagged"])
@pytest.mark.parametrize("stop", ["", ", stop_strings: ['\n']"], ids=["plain", "stop"])
def test_a_row_is_cut_where_its_last_turn_is(staged, before_training, stop: str, function: str) -> None:
    """s1 has room for six tokens, s2 for five. The rollout function wrote a line break into every row: token 200."""
    found = rounds(before_training)
    often = "suppress_tokens: [0, 1], sequence_bias: [[[200], 4.0]]"
    code, folder = staged(f"trainer.args.generation_kwargs={{{often}{stop}}}", f"rollout.fn={function}")
    assert code == 0
    batch, is_cut, is_short = found[0], list[bool](), list[bool]()
    for row, mask in enumerate(batch["completion_mask"].bool()):
        ids, acts = (batch[name][row][mask].tolist() for name in ("completion_ids", "tool_mask"))
        is_short.append(len(ids) < 12)
        knows = "two_lines" in function or not is_short[-1]  # else only the limit tells
        is_cut.append(knows and len(ids) - acts.index(0) == 6 and not (stop and ids[-1] == 200))
    assert [ending == "length" for ending in table(folder, 1)["rollout.ending"]] == is_cut
    assert any(is_cut)
    assert any(map(bool.__and__, is_cut, is_short)) == ("two_lines" in function)


def test_a_transcript_is_scored_turn_by_turn(workplace: Path, capsys) -> None:
    (workplace / "mine.py").write_text(REWARDS)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    completion = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 3!"},
    ]
    (workplace / "t.jsonl").write_text(json.dumps({"prompt": "1+2=", "completion": completion}))
    words = ["score", "trainer=grpo", "rewards.said.fn=./mine.py:said", "rewards.said.per=turn"]
    assert main([*words, "--completions", "t.jsonl", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    parts = [(part["text"], part["reward"]) for part in row["rewards"]["said"]["parts"]]
    assert parts == [('add({"a": 1})', 0.0), ("It is 3!", 1.0)]
    assert main([*words, "--completions", "t.jsonl", "--show", "1"]) == 0
    assert 'add({"a": 1})[+0]' in capsys.readouterr().out


@pytest.mark.parametrize(("trainer", "step"), [("grpo", 3), ("ppo", 1), ("ppo", 3)])
def test_resumed_in_mid_round_it_is_the_run_that_never_stopped(staged, workplace, trainer: str, step: int) -> None:
    windows = [word for word in WINDOWS if word not in SMALL and not word.startswith(("trainer.args.max_", "data."))]
    code, whole = staged(*(PPO if trainer == "ppo" else []), *windows, "trainer.args.max_steps=4")
    assert code == 0
    goes_on_as(whole, step, workplace / "cut")


def test_endings_of_rollouts_with_tools(train, workplace: Path, before_training) -> None:
    """Of four answers one calls nothing, one adds, one calls again where no more calls are made, one calls no tool."""
    (workplace / "mine.py").write_text(REWARDS)
    prompt = [{"role": "user", "content": "1+2="}]
    (workplace / "rows.jsonl").write_text("\n".join([json.dumps({"prompt": prompt})] * 8))
    said = ["3", "[add a=1;b=2]", "[add a=2;b=2]", "[nope a=1]"]

    def script(trainer: Any) -> None:
        tokenizer = trainer.processing_class

        def answer(row: int, prompt: str) -> str:
            return said[row % 4] if "tool:" not in prompt else "[add a=3;b=3]" if "a=2" in prompt else "3"

        def generate(prompt_ids: list[list[int]], *args: Any, **named: Any) -> Any:
            texts = [f"{answer(row, tokenizer.decode(ids))}<eos>" for row, ids in enumerate(prompt_ids)]
            return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts], None

        trainer._generate_single_turn = generate

    before_training(script)
    found = rounds(before_training)
    words = ["data=file", "data.path=./rows.jsonl", "~data.args.num_rows", "guards.no_signal=off"]
    words += [f"~rewards.{name}" for name in ("correct", "format", "brevity")]
    words += ["rewards.said={fn: ./mine.py:said, per: turn}", "tools.add.fn=./mine.py:add"]
    words += ["trainer.args.max_completion_length=80", "trainer.args.max_tool_calling_iterations=1"]
    code, folder = train(*words, "truncation=eos_penalty", "truncation.also=[turns]", "trainer.args.max_steps=1")
    assert code == 0
    (event, *_) = read_metrics(folder.metrics)
    shares = {"finished": 0.5, "length": 0.0, "turns": 0.25, "tool_error": 0.25, "timeout": 0.0}
    assert {name: event[f"completions/endings/{name}"] for name in shares} == shares
    assert event["rewards/truncation/fraction"] == 0.25
    rows = table(folder, 1)
    assert rows["rollout.ending"][:4] == ["finished", "finished", "turns", "tool_error"]
    assert rows["rollout.truncated"][:4] == [False, False, True, False]
    assert rows["total"][2] - rows["said"][2] == pytest.approx(-1.0)
    assert [len(json.loads(parts)) for parts in rows["said.parts"][:4]] == [1, 2, 2, 2]
    acts = (found[0]["completion_mask"] * found[0]["tool_mask"]).bool()
    assert acts.sum(dim=1).tolist()[:4] == [2, 16, 28, 13]
