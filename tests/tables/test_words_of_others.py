"""Verbs and flags of other tools are answered with ours."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.tables.former_names import VERBS_OF_OTHERS

Said = pytest.CaptureFixture[str]


def test_no_verb_of_ours_is_one_of_others() -> None:
    assert set(VERBS) & set(VERBS_OF_OTHERS) == set()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("tarin +exp=quickstart seed=3", "rlhf train +exp=quickstart seed=3"),
        ("ls reward", "rlhf list reward"),
        ("sweep +exp=quickstart", "rlhf train -m +exp=quickstart"),
        ("train --output_dir out", "run.root, or run.name"),
        ("train --learning_rate=1e-5", "trainer.args.learning_rate=1e-5"),
        ("train --model_name_or_path a/b --bf16", "model.path=a/b"),
        ("train --lr 1e-5", "trainer.args.learning_rate=1e-5"),
        ("train --multirn", "--multirun"),
    ],
)
def test_the_hint_for_another_tools_word(words: str, hint: str, capsys: Said) -> None:
    assert main(words.split()) == 2
    assert f"try:      {hint}\n" in capsys.readouterr().err


def at_a_terminal(**environment: str) -> str:
    """What `rlhf tarin` prints to stderr where that is a terminal."""
    leader, follower = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | environment
    subprocess.run([sys.executable, "-m", "rlhf_cli", "tarin"], stderr=follower, env=env, check=False)
    os.close(follower)
    printed = os.read(leader, 4096).decode()
    os.close(leader)
    return printed


def test_error_is_red_at_a_terminal_and_nowhere_else(capsys: Said) -> None:
    assert "\x1b[1;31merror:\x1b[0m there is no verb" in at_a_terminal()
    assert "\x1b" not in at_a_terminal(NO_COLOR="1")
    assert "\x1b" not in at_a_terminal(TERM="dumb")
    assert main(["tarin"]) == 2
    assert "\x1b" not in capsys.readouterr().err
