"""Test that every `hint=` in the source can be typed, or is marked as prose.

tests/conftest.py types the hints of messages when tests run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlhf_cli
from rlhf_cli.errors import ConfigError, UserError
from tests.support import suggestions
from tests.support.suggestions import alternatives, is_typed, prose, useless

PACKAGE = Path(rlhf_cli.__file__).parent


def written_hints() -> Iterator[tuple[str, str]]:
    """Yield (file:line, text) of every literal hint, passed or assigned, and its alternatives; X1 is a placeholder."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            values = [node.value] if isinstance(node, ast.keyword) and node.arg == "hint" else []
            if isinstance(node, ast.Assign):
                pairs = zip(elements(node.targets[0]), elements(node.value), strict=False)
                values = [value for target, value in pairs if ast.unparse(target) == "hint"]
            for value in values:
                for text in literals(value):
                    yield f"{file.relative_to(PACKAGE)}:{value.lineno}", text


def elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def literals(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X1" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (*literals(node.body), *literals(node.orelse))
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from literals(value)


def test_every_hint_is_typed_or_marked() -> None:
    hints = list(written_hints())
    assert len(hints) > 150
    # Texts that begin with a placeholder are decided at run time.
    shown = [(where, text) for where, text in hints if not text.startswith(("X1", "rlhf X1"))]
    wrong = [f"{where}: {text!r}" for where, text in shown if not all(map(is_typed, alternatives(text)))]
    assert not wrong, "cannot be typed, so it is an advice=:\n" + "\n".join(wrong)


TYPED = (
    *("seed", "'~rewards.brevity'", "launch.rollout=hf launch.rollout_gpus=0", "rlhf train -m ... 'seed=1,2'"),
    *("rlhf list trainer", "rlhf eval mine --data FILE", "rlhf resume mine", "--column prompt=Question"),
    *("- override /track: none", "trainer: {args: {max_steps: 3}}", "export HF_TOKEN=..."),
)
PROSE = (
    *("leave it out", "rlhf status shows what there is", "rlhf resume RUN starts them all", "rlhf resume mine again"),
    *("model.lora.r=16 trains an adapter", "run.name=ANOTHER for a run beside it", "'unclosed", "rlhf no_such_verb"),
    *("rlhf train --no-such-flag", "mixed_precision: bf16 in FILE", "rlhf score", "rlhf check"),
    "rlhf eval mine --data",
)


@pytest.mark.parametrize("text", [*TYPED, *PROSE])
def test_what_can_be_typed_and_what_cannot(text: str) -> None:
    assert is_typed(text) == (text in TYPED)


def test_negative_control_what_is_wrong_is_noticed() -> None:
    """Check the judge by hand: it refuses any seed below 0."""

    def judge(words: list[str]) -> None:
        if any(word.startswith("seed=-") for word in words):
            raise refusal("seed=0")

    def refusal(hint: str) -> UserError:
        return ConfigError("a negative seed", where="seed (command line)", hint=hint)

    def found(hint: str) -> list[str]:
        return list(useless(["exp=quickstart", "seed=-1"], refusal(hint), judge))

    assert not found("seed=0")
    assert not found("~seed")
    assert found("seed=-2")
    assert found("trainer=grpo, or seed=-3")
    assert not found("seed=NUMBER")
    assert len(prose(UserError("no", hint="think again"))) == 1
    assert not prose(UserError("no", advice="think again"))
    assert suggestions.WRONG == ["no advice, and cannot be typed: 'think again', of 'no'"]
    suggestions.WRONG.clear()
