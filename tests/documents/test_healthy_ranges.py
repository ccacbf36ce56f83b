"""Test that every metric in the tables of healthy ranges is logged by a run of that kind."""

from __future__ import annotations

import re

import pytest

from rlhf_cli.errors import UserError
from rlhf_cli.plan.prepare import prepare
from tests.documents.quoted_commands import ROOT

pytestmark = pytest.mark.usefixtures("place")
_EVALUATED = ("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=10", "data.eval.fraction=0.1")
RUNS = {
    "All trainers that generate (GRPO, RLOO, PPO)": (("toy_ppo",), ("quickstart", "trainer.args.beta=0.1")),
    "GRPO, RLOO": (("quickstart",),),
    "PPO": (("toy_ppo",),),
    "DPO, KTO, ORPO, CPO, TPO": (("toy_dpo",),),
    "Reward models": (("toy_reward", *_EVALUATED),),
    "SFT": (("toy_sft", *_EVALUATED),),
}
"""Title of a table -> experiments; one of them must log its metrics."""
_TABLE = re.compile(r"^\*\*(.+?)\*\*\n\n((?:\|.*\n)+)", re.MULTILINE)
_METRIC = re.compile(r"`([a-z0-9_/A-Z]+)`")


def tables() -> dict[str, list[str]]:
    """Return title -> metrics of the first column, with NAME and A/B replaced."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8").partition("## Healthy ranges")[2]
    return {
        title: [name for row in rows.splitlines()[2:] for name in _names(row)] for title, rows in _TABLE.findall(text)
    }


def _names(row: str) -> list[str]:
    first = row.split("|")[1].replace("`/", "`rewards/NAME/")
    return [name.replace("NAME", "correct").replace("A/B", "correct/brevity") for name in _METRIC.findall(first)]


def is_logged(metric: str, *words: str) -> bool:
    """Return whether the experiment may expect the metric."""
    experiment, *overrides = words
    try:
        prepare([f"+exp={experiment}", *overrides, f"expect=[{{metric: {metric}, at_least: 0}}]"], keep_run_names=True)
    except UserError:
        return False
    return True


def test_every_table_has_experiments() -> None:
    assert set(tables()) == set(RUNS)


@pytest.mark.parametrize("title", RUNS)
def test_listed_metrics_are_logged(title: str) -> None:
    metrics = tables()[title]
    assert metrics
    assert [name for name in metrics if not any(is_logged(name, *words) for words in RUNS[title])] == []


def test_negative_control() -> None:
    assert is_logged("ppo/explained_variance", "toy_ppo")
    assert not is_logged("ppo/explained_varience", "toy_ppo")
    assert not is_logged("ppo/explained_variance", "quickstart")
