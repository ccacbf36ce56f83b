"""Completion in a real bash and a real zsh at a terminal: what stands on the line when Tab was pressed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.typed_shell import TypedShell

LINES = {
    "rlhf tr": "rlhf train ",
    "rlhf train +exp=qu": "rlhf train +exp=quickstart ",
    "rlhf train trainer=rl": "rlhf train trainer=rloo ",
    "rlhf train +exp=quickstart rewards.brevity.gat": "rlhf train +exp=quickstart rewards.brevity.gate.",
    "rlhf compare run:qu": "rlhf compare run:quickstart ",
    "rlhf compare runs/quickstart/w": "rlhf compare runs/quickstart/weight=0.1,seed=2/",
    "rlhf compare my\\ r": "rlhf compare my\\ run/",
    "rlhf train rewards.x.fn=./rewards.py:pol": "rlhf train rewards.x.fn=./rewards.py:polite ",
    "rlhf train +reward@rewards.judge=jud": "rlhf train +reward@rewards.judge=judge ",
    "true; rlhf resume --fai": "true; rlhf resume --failed ",
    "rlhf train trainer=nonsen": "rlhf train trainer=nonsen",
}
"""A line, and what it becomes by one Tab: unfinished words without a blank behind them, whole ones with one."""


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedShell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    place = tmp_path_factory.mktemp("place")
    for run in ("runs/quickstart/weight=0.1,seed=2", "my run"):
        (place / run).mkdir(parents=True)
        (place / run / "config.yaml").write_text("seed: 0\n")
    (place / "rewards.py").write_text("def polite(completions): ...\n")
    typed = TypedShell(request.param, place)
    yield typed
    typed.close()


@pytest.mark.parametrize("line", LINES)
def test_one_tab(line: str, shell: TypedShell) -> None:
    assert shell.line(line) == LINES[line]


def test_two_tabs_show_what_there_is(shell: TypedShell) -> None:
    shell.line("rlhf train truncation.policy=", tabs=2)
    shown = shell.shown.replace("truncation.policy=", " ").split()
    assert {"bootstrap", "eos_penalty", "exclude", "none", "soft_overlong"} <= set(shown)


def test_two_tabs_behind_a_blank_show_what_may_come(shell: TypedShell) -> None:
    """Nothing of the word is typed yet: what somebody presses first who knows the program's name alone."""
    shell.line("rlhf ", tabs=2)
    assert {"init", "train", "check", "why"} <= set(shell.shown.split())


def test_files_and_runs_are_both_offered(shell: TypedShell) -> None:
    shell.line("rlhf compare run", tabs=2)
    assert {"run:", "runs/"} <= set(shell.shown.split())


def test_negative_control_without_the_script_nothing_is_known(tmp_path: Path) -> None:
    bare = TypedShell("bash", tmp_path, complete=False)
    try:
        assert bare.line("rlhf train +exp=qu") == "rlhf train +exp=qu"
    finally:
        bare.close()
