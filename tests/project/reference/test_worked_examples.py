"""Every ready-made reward has a worked example, whose scores the reward gives."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
from typing import Any

import pytest
import yaml

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.project.reference.reward_reference import WorkedExample, worked_examples
from rlhf_cli.rewards.stack.reward_functions import resolve

WORKED_EXAMPLES = worked_examples()
SHIPPED = groups()["reward"]
OF_SERVERS = ("judge", "judge_ranking", "server")
OF_PACKAGES = {"trl_accuracy": "math_verify", "trl_cosine_length": "math_verify", "reasoning_gym": "reasoning_gym"}
"""Rewards that need a package of an extra."""


def given(option: str, example: WorkedExample, **more: object) -> list[Any]:
    """Return the scores of an option's reward for the rows of an example."""
    shipped = yaml.safe_load(SHIPPED[option].read_text())
    reward = resolve(shipped["fn"], {**(shipped.get("args") or {}), **example.args, **more}, where="the test")
    texts = [row["completion"] for row in example.rows]
    completions = [[{"role": "assistant", "content": text}] for text in texts] if example.as_messages else texts
    columns = {name: [row["columns"][name] for row in example.rows] for name in example.rows[0]["columns"]}
    scores = reward(
        prompts=[example.prompt] * len(texts),
        completions=completions,
        completion_ids=[[7] * row.get("num_tokens", 0) for row in example.rows],
        **columns,
    )
    return list(asyncio.run(scores)) if inspect.isawaitable(scores) else list(scores)


def test_every_ready_made_reward_has_an_example() -> None:
    assert set(WORKED_EXAMPLES) == set(SHIPPED)


@pytest.mark.parametrize("option", [name for name in WORKED_EXAMPLES if name not in OF_SERVERS])
def test_the_reward_gives_the_scores_of_its_example(option: str) -> None:
    if (package := OF_PACKAGES.get(option)) is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    example = WORKED_EXAMPLES[option]
    for given_score, row in zip(given(option, example), example.rows, strict=True):
        score = row["score"]
        if isinstance(score, list):
            assert given_score == [tuple(span) for span in score]
        else:
            assert given_score == (None if score is None else pytest.approx(score))
