"""Test that tables of the documents equal the code: phases, sections of a report, files, strategies, healthy ranges."""

from __future__ import annotations

import re

import pytest

from rlhf_cli.errors import UserError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.heartbeat import _KEYS
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, _Below
from rlhf_cli.sweeps.search import JOURNAL
from rlhf_cli.tables.metrics import PHASES, WAITING
from rlhf_cli.tables.strategies import STRATEGIES
from tests.documents.quoted_commands import ROOT

PAGES = ROOT / "docs" / "how-to"
pytestmark = pytest.mark.usefixtures("place")


def test_phases_are_listed_in_order() -> None:
    text = (PAGES / "memory.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", text, flags=re.MULTILINE)
    assert [row[:2] for row in rows] == list(PHASES.items())
    assert all(meaning for *_, meaning in rows)
    assert set(PHASES) == {*_KEYS.values(), WAITING}


def test_sections_of_a_report() -> None:
    template = (ROOT / "rlhf_cli/display/page/templates/page.html.jinja").read_text(encoding="utf-8")
    titles = re.findall(r"<h2[^>]*>(?:{{ \")?([\w, ]+)", template)
    table = (PAGES / "compare.md").read_text(encoding="utf-8").partition("| section | what it holds |")[2]
    shown = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)
    assert list(map(str.lower, shown)) == list(map(str.lower, titles))


def test_files_of_a_run_and_of_a_sweep() -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8").partition("## The files of a run")[2]
    named = set(re.findall(r"`([\w.-]+)/?`", text.partition("\n## ")[0]))
    of_a_run = {value.name for value in vars(RunFolder).values() if isinstance(value, _Below)}
    assert {*of_a_run, SWEEP, JOURNAL} <= named


def test_features_of_strategies() -> None:
    lines = (PAGES / "launch.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    head = next(row for row in rows if row[1:] == list(STRATEGIES))
    listed = {
        row[0]: dict(zip(head[1:], row[1:], strict=True))
        for row in rows
        if len(row) == len(head) and row[1] in ("yes", "no")
    }
    refused = {name: set(row.conflicts) for name, row in STRATEGIES.items()}
    assert set().union(*refused.values()) <= set(listed)
    for feature, answers in listed.items():
        for name, answer in answers.items():
            assert answer in ("yes", "yes, read", "no"), (feature, name)
            assert (answer == "no") == (feature in refused[name]), (feature, name)


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


@pytest.mark.parametrize("title", tables())
def test_listed_metrics_are_logged(title: str) -> None:
    metrics = tables()[title]
    assert metrics
    assert [name for name in metrics if not any(is_logged(name, *words) for words in RUNS[title])] == []


def test_negative_control_of_healthy_ranges() -> None:
    assert set(tables()) == set(RUNS)
    assert is_logged("ppo/explained_variance", "toy_ppo")
    assert not is_logged("ppo/explained_varience", "toy_ppo")
    assert not is_logged("ppo/explained_variance", "quickstart")
