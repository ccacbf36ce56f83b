"""What the headers of conf/exp say to type can be typed: each command is parsed and composed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.errors import UserError
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.jobs.usage import read_options, usage_of

pytestmark = pytest.mark.usefixtures("place")
EXPERIMENTS = sorted((shipped_dir() / "exp").glob("*.yaml"))
_EXPLAINED = re.compile(r"\s{2,}\S.*$", re.MULTILINE)


def commands(file: Path) -> list[list[str]]:
    """Return the words behind `rlhf` of every command in the comments of a file, lines that go on put together."""
    comments = [line.lstrip("# ") for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = re.sub(r" \\\n", " ", "\n".join(comments))
    lines = _EXPLAINED.sub("", text).splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("rlhf ")]


def compose_command(words: list[str]) -> None:
    """Raise UserError for a command that cannot be typed."""
    verb, *rest = words
    options = read_options(usage_of(verb).text, rest, verb=verb)
    if verb == "train" and "-m" not in rest:
        prepare([word for word in options.words if "=" in word or word.startswith("~")], keep_run_names=True)


def test_most_experiments_say_what_to_type() -> None:
    assert sum(bool(commands(file)) for file in EXPERIMENTS) >= 18


@pytest.mark.parametrize("file", EXPERIMENTS, ids=[file.stem for file in EXPERIMENTS])
def test_it_can_be_typed(file: Path) -> None:
    for words in commands(file):
        compose_command(words)


def test_negative_control(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("# mine\n#   rlhf train +exp=quickstart \\\n#     rewards.brevity.wieght=1    lighter\nseed: 1\n")
    assert commands(file) == [["train", "+exp=quickstart", "rewards.brevity.wieght=1"]]
    with pytest.raises(UserError):
        compose_command(commands(file)[0])
