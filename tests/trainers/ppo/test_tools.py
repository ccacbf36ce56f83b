"""A tool that the policy calls: what the tool wrote is no action. TRL's own loop calls it, on completions by script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.support.ppo_by_hand import EOS, GAMMA, LAMBDA, Row, assert_rows, gae_of, total_of, whitened
from tests.support.tolerances import MODEL

LIMIT = 160
COEF = 0.3

OWN = """
from transformers import AutoTokenizer
from trl import GRPOTrainer

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ 'A:' + (m['content'] or '') }}"
    "{% for c in m.get('tool_calls') or [] %}{{ '<tool_call>' }}{{ c['function'] | tojson }}{{ '</tool_call>' }}"
    "{% endfor %}{{ eos_token }}{% else %}{{ m['role'][0] + ':' + m['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'A:' }}{% endif %}"
)
CALL = {
    "open": "<tool_call>", "close_pattern": "</tool_call>\\\\s*", "repeats": True, "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}
PARSER = {
    "defaults": {"role": "assistant"}, "start_anchor": "A:",
    "fields": {"tool_calls": CALL, "content": {"close_pattern": "<eos>", "content": "text"}},
}

def double(number: int) -> int:
    '''Double a number.

    Args:
        number: what is doubled.

    Returns:
        Twice the number.
    '''
    return 2 * number

class WithTool(GRPOTrainer):
    '''Is given a tool, and a tokenizer that can say that it calls one.'''

    def __init__(self, *args, model, **named):
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        tokenizer.chat_template, tokenizer.response_template = TEMPLATE, PARSER
        super().__init__(*args, model=model, processing_class=tokenizer, tools=[double], **named)
"""


def call(number: int) -> str:
    return f'<tool_call>{{"name": "double", "arguments": {{"number": {number}}}}}</tool_call><eos>'


def wrote(number: int) -> str:
    """What the chat template makes of the tool's answer, and the beginning of the next turn."""
    return f"t:{2 * number}\nA:"


def turns_of(number: int) -> list[tuple[str, bool]]:
    """(text, is it the policy's?) of what is to follow a prompt that names `number`."""
    calls = [(call(number), True), (wrote(number), False)]
    return [
        [("no call<eos>", True)],
        [*calls, ("it is so<eos>", True)],
        [*calls, (call(2 * number), True), (wrote(2 * number), False), ("done<eos>", True)],
        [*calls, ("x" * 200, True)],  # TRL cuts it at the limit
    ][number % 4]


@dataclass
class Answer:
    """A completion as TRL's loop puts it together: all its tokens, and which of them the policy chose."""

    ids: list[int]
    is_action: list[bool]
    is_cut: bool


def answer_of(number: int, encode: Callable[[str], list[int]]) -> Answer:
    ids: list[int] = []
    is_action: list[bool] = []
    for text, is_own in turns_of(number):
        ids += encode(text)
        is_action += [is_own] * (len(ids) - len(is_action))
    return Answer(ids[:LIMIT], is_action[:LIMIT], len(ids) > LIMIT)


@pytest.fixture
def words(workplace: Path, before_training) -> tuple[str, ...]:
    """What to type; a policy that says what the script says, one turn after another."""
    (workplace / "tooled.py").write_text(OWN)
    lines = [json.dumps({"prompt": [{"role": "user", "content": f"double {n}"}]}) for n in range(2, 18)]
    (workplace / "rows.jsonl").write_text("\n".join(lines))

    def set_on(trainer: Any) -> None:
        tokenizer = trainer.processing_class

        def generate(prompt_ids: list[list[int]], *args: Any, **named: Any) -> Any:
            turns = []
            for ids in prompt_ids:
                text = tokenizer.decode(ids)
                own = [said for said, is_own in turns_of(number_in(text)) if is_own]
                turns.append(tokenizer.encode(own[text.count("t:")]))
            return turns, None

        trainer._generate_single_turn = generate
        trainer.eos_token_ids = [EOS]

    before_training(set_on)
    data = ("data=file", "data.path=./rows.jsonl", "~data.args.num_rows")
    own = ("trainer.class=./tooled.py:WithTool", f"trainer.args.max_completion_length={LIMIT}")
    return (*data, *own, f"kl.coef={COEF}", "truncation=bootstrap", "truncation.mode=add")


def number_in(text: str) -> int:
    found = re.search(r"double (\d+)", text)
    assert found is not None
    return int(found.group(1))


def answers(run: Any, batch: dict[str, Tensor]) -> list[Answer]:
    tokenizer = run.trainer.processing_class
    rows = zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)
    return [answer_of(number_in(tokenizer.decode(ids[mask.bool()])), tokenizer.encode) for ids, mask in rows]


def chosen(values: list[float], answer: Answer) -> list[float]:
    return [value for value, acts in zip(values, answer.is_action, strict=True) if acts]


def spread(values: list[float], answer: Answer) -> list[float]:
    """The values of actions at their places, 0 at the tool's tokens."""
    one = iter(values)
    return [next(one) if acts else 0.0 for acts in answer.is_action]


def advantages_of(row: Row, answer: Answer) -> list[float]:
    """Of the actions alone, as if the tool's tokens were part of the state: the next state is that of the next action.

    Each action's reward is -coef KL there; the row's score lies on the last one, and a cut row goes on with the value
    after its last token.
    """
    rewards = [-COEF * kl for kl in chosen(row.kl, answer)]
    rewards[-1] += total_of(row.completion)
    last = row.values[-1] if answer.is_cut else 0.0
    return gae_of(rewards, chosen(row.values[:-1], answer), last, GAMMA, LAMBDA)


def test_the_tool_s_tokens_have_no_advantage_and_gae_bridges_them(rollouts, words: tuple[str, ...]) -> None:
    run = rollouts(*words)
    (rows,), (output,) = run.rows, run.outputs
    expected = answers(run, output)
    assert [row.completion for row in rows] == [answer.ids for answer in expected]
    assert output["tool_mask"].bool()[output["completion_mask"].bool()].tolist() == [
        acts for answer in expected for acts in answer.is_action
    ]
    assert {answer.is_cut for answer in expected} == {True, False}
    assert any(all(answer.is_action) for answer in expected)  # a row without a call, too
    raw = [advantages_of(row, answer) for row, answer in zip(rows, expected, strict=True)]
    used = [spread(values, answer) for values, answer in zip(whitened(raw), expected, strict=True)]
    assert_rows(output["advantages"], used)
    returns = []
    for values, row, answer in zip(raw, rows, expected, strict=True):
        of_actions = [a + v for a, v in zip(values, chosen(row.values[:-1], answer), strict=True)]
        returns.append(spread(of_actions, answer))
    assert_rows(output["returns"], returns)
    kls = [kl for row, answer in zip(rows, expected, strict=True) for kl in chosen(row.kl, answer)]
    assert run.events[0]["kl/k1_policy_ref"] == pytest.approx(sum(kls) / len(kls), **MODEL)
    assert run.events[0]["tools/call_frequency"] == pytest.approx(1.0)  # 0, 1, 2 and 1 calls
    # Control: with the tool's tokens as actions the advantages are others.
    everything = [Answer(answer.ids, [True] * len(answer.ids), answer.is_cut) for answer in expected]
    wrong = whitened([advantages_of(row, answer) for row, answer in zip(rows, everything, strict=True)])
    with pytest.raises(AssertionError):
        assert_rows(output["advantages"], wrong)
