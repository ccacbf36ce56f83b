"""The arguments and columns of a reward are read from its source, without running it; its example gives its scores."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.errors import RewardError
from rlhf_cli.project.function_source import NO_DEFAULT, read_function
from rlhf_cli.project.reward_reference import WorkedExample, reward_reference, worked_examples
from rlhf_cli.rewards.stack.reward_functions import resolve

SHIPPED = list(groups()["reward"])
MINE = '''"""Mine."""
import a_module_that_is_not_there
from typing import Literal

LEAST = 2
Word = Literal["please", "thanks"]


def polite(completions, answer, *, word: Word = "please", least: int = LEAST, share: float, **kwargs):
    """Score 1.0 if the word is frequent.

    Args:
        completions: one per row.
        least: the minimum count,
            inclusive.

    Example:
        polite(["please please"]) == [1.0]
    """
    raise SystemExit("never called")


class Factory:
    """Makes a reward.

    Args:
        low, high: the bounds.
    """

    def __init__(self, low: float, high: float = 1.0) -> None: ...


async def _hidden(completions): ...
'''


@pytest.mark.parametrize("option", SHIPPED)
def test_the_parameters_are_those_of_the_imported_function(option: str) -> None:
    reward = reward_reference(option)
    module, _, name = reward.fn.rpartition(":")
    target = getattr(importlib.import_module(module), name)
    said = {one.name: one.default for one in read_function(reward.fn).parameters if not one.takes_the_rest}
    real = [one for one in inspect.signature(target).parameters.values() if one.kind != one.VAR_KEYWORD]
    assert said == {one.name: NO_DEFAULT if one.default is one.empty else one.default for one in real}
    lines, first = inspect.getsourcelines(target)  # decorators come first
    assert re.match(rf"(async def|def|class) {name}[(:]", lines[reward.line - first])


@pytest.mark.parametrize("option", SHIPPED)
def test_every_argument_is_explained_and_the_yaml_can_be_pasted(option: str) -> None:
    reward = reward_reference(option)
    assert [one.name for one in reward.arguments if not one.text] == []
    assert reward.caption
    assert reward.summary
    shipped = yaml.safe_load(groups()["reward"][option].read_text())
    assert set(shipped.get("args") or {}) <= {one.name for one in reward.arguments}
    assert yaml.safe_load(reward.yaml) == {"rewards": {option.removeprefix("trl_"): shipped}}


def test_a_file_is_read_and_not_run(place: Path) -> None:
    """The file imports a missing module, so importing it would fail."""
    (place / "rewards.py").write_text(MINE)
    polite = read_function("./rewards.py:polite")
    word, least, share = (one for one in polite.parameters if one.by_name)
    assert (word.choices, word.default) == (("please", "thanks"), "please")
    assert (least.default, least.type, share.default) == (2, "int", NO_DEFAULT)
    assert polite.docstring.arguments["least"] == "the minimum count, inclusive."
    factory = read_function("./rewards.py:Factory")
    assert factory.is_class
    assert [(one.name, factory.docstring.arguments[one.name]) for one in factory.parameters] == [
        *(("low", "the bounds."), ("high", "the bounds."))
    ]
    page = reward_reference("./rewards.py:polite")
    pasted = {"polite": {"fn": "./rewards.py:polite", "args": {"share": "???"}}}
    assert (page.conf_file, yaml.safe_load(page.yaml)) == (None, {"rewards": pasted})
    assert page.override == "+rewards.polite.fn=./rewards.py:polite +rewards.polite.args.share=VALUE"
    with pytest.raises(RewardError) as no_function:
        read_function("./rewards.py:polit")
    assert no_function.value.hint == "./rewards.py:polite"


WORKED_EXAMPLES = worked_examples()
OF_SERVERS = ("judge", "judge_ranking", "server")
OF_PACKAGES = {"trl_accuracy": "math_verify", "trl_cosine_length": "math_verify", "reasoning_gym": "reasoning_gym"}
"""Rewards that need a package of an extra."""


def given(option: str, example: WorkedExample) -> list[Any]:
    shipped = yaml.safe_load(groups()["reward"][option].read_text())
    reward = resolve(shipped["fn"], {**(shipped.get("args") or {}), **example.args}, where="the test")
    texts = [row["completion"] for row in example.rows]
    scores = reward(
        prompts=[example.prompt] * len(texts),
        completions=[[{"role": "assistant", "content": text}] for text in texts] if example.as_messages else texts,
        completion_ids=[[7] * row.get("num_tokens", 0) for row in example.rows],
        **{name: [row["columns"][name] for row in example.rows] for name in example.rows[0]["columns"]},
    )
    return list(asyncio.run(scores)) if inspect.isawaitable(scores) else list(scores)


@pytest.mark.parametrize("option", [name for name in WORKED_EXAMPLES if name not in OF_SERVERS])
def test_the_reward_gives_the_scores_of_its_example(option: str) -> None:
    assert set(WORKED_EXAMPLES) == set(SHIPPED), "every ready-made reward has an example"
    if (package := OF_PACKAGES.get(option)) is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    example = WORKED_EXAMPLES[option]
    for found, row in zip(given(option, example), example.rows, strict=True):
        score = row["score"]
        if isinstance(score, list):
            assert found == [tuple(span) for span in score]
        else:
            assert found == (None if score is None else pytest.approx(score))
