"""What hands used to other tools type is answered with what there is here."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.jobs.usage import usage_of
from rlhf_cli.project.reference.key_reference import key_reference
from rlhf_cli.tables.former_names import FLAGS_OF_OTHERS, VERBS_OF_OTHERS

Said = pytest.CaptureFixture[str]


def test_no_verb_of_ours_is_one_of_others() -> None:
    assert set(VERBS) & set(VERBS_OF_OTHERS) == set()


@pytest.mark.parametrize("hint", FLAGS_OF_OTHERS.values())
def test_what_is_said_instead_exists(hint: str) -> None:
    """A verb with its flags, a group with its option, or a key that the schema has."""
    if hint.startswith("rlhf "):
        verb, *rest = hint.split()[1:]
        assert verb in VERBS or verb == "--help"
        assert [word for word in rest if word.startswith("-") and word not in usage_of(verb).flags] == []
    for word in re.findall(r"[\w.@+]+=[\w{}]+", hint):
        key, _, value = word.partition("=")
        group = key.lstrip("+").partition("@")[0]
        if group in groups():
            assert value in groups()[group] or value in ("{value}", "NAME", "OPTION")
        else:
            assert key_reference(key) is not None, word


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("tarin +exp=quickstart seed=3", "rlhf train +exp=quickstart seed=3"),
        ("ls reward", "rlhf list reward"),
        ("sweep +exp=quickstart", "rlhf train -m +exp=quickstart"),
        ("train --cfg job +exp=quickstart", "rlhf show +exp=quickstart"),
        ("train +exp=quickstart --cfg=job", "rlhf show +exp=quickstart"),
        ("why runs/a --cfg job", "rlhf show runs/a"),
        ("check +exp=quickstart --dry-run", "rlhf train --dry-run +exp=quickstart"),
        ("train --output_dir out", "run.root, or run.name"),
        ("train --learning_rate=1e-5", "trainer.args.learning_rate=1e-5"),
        ("train --model_name_or_path a/b --bf16", "model.path=a/b"),
        ("train --lr 1e-5", "trainer.args.learning_rate=1e-5"),
        ("train --multirn", "--multirun"),
    ],
)
def test_the_right_word(words: str, hint: str, capsys: Said) -> None:
    assert main(words.split()) == 2
    assert f"try:      {hint}\n" in capsys.readouterr().err


def at_a_terminal(**environment: str) -> str:
    """What `rlhf tarin` prints to stderr where that is a terminal."""
    leader, follower = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | environment
    subprocess.run([sys.executable, "-m", "rlhf_cli", "tarin"], stderr=follower, env=env, check=False)
    os.close(follower)
    said = os.read(leader, 4096).decode()
    os.close(leader)
    return said


def test_error_is_red_at_a_terminal_and_nowhere_else(capsys: Said) -> None:
    assert "\x1b[1;31merror:\x1b[0m there is no verb" in at_a_terminal()
    assert "\x1b" not in at_a_terminal(NO_COLOR="1")
    assert "\x1b" not in at_a_terminal(TERM="dumb")
    assert main(["tarin"]) == 2
    assert "\x1b" not in capsys.readouterr().err
