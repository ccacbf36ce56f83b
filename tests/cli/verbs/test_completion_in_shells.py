"""Completion in a real bash and zsh at a terminal: the line after pressing Tab."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.typed_shell import TypedShell

pytestmark = pytest.mark.whole

LINES = {
    "rlhf tr": "rlhf train ",
    "rlhf train +exp=qu": "rlhf train +exp=quickstart ",
    "rlhf train +exp=quickstart rewards.brev": "rlhf train +exp=quickstart rewards.brevity.",
    "rlhf train rewards.": "rlhf train rewards.",
    "rlhf compare runs/quickstart/w": "rlhf compare runs/quickstart/weight=0.1,seed=2 ",
    "rlhf compare runs --on -pol": "rlhf compare runs --on -polite ",
    "rlhf train rewards.x.fn=./rewards.py:pol": "rlhf train rewards.x.fn=./rewards.py:polite ",
    "true; rlhf resume --fai": "true; rlhf resume --failed ",
    "rlhf train trainer=nonsen": "rlhf train trainer=nonsen",
}
"""A line -> the line after one Tab, with a blank after a whole word."""


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedShell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    place = tmp_path_factory.mktemp("place")
    run = place / "runs" / "quickstart" / "weight=0.1,seed=2"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("rewards: {polite: {fn: ./rewards.py:polite}}\n")
    (place / "rewards.py").write_text("def polite(completions): ...\n")
    typed = TypedShell(request.param, place)
    yield typed
    typed.close()


@pytest.mark.parametrize("line", LINES)
def test_one_tab(line: str, shell: TypedShell) -> None:
    assert shell.line(line) == LINES[line]


def test_negative_control_without_the_script(tmp_path: Path) -> None:
    bare = TypedShell("bash", tmp_path, complete=False)
    try:
        assert bare.line("rlhf train +exp=qu") == "rlhf train +exp=qu"
    finally:
        bare.close()
