"""`rlhf list`: pages of groups and options, and suggestions for wrong words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main

Said = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("place")


def said(capsys: Said, *words: str) -> str:
    assert main(["list", *words]) == 0
    return capsys.readouterr().out


def test_a_reward(capsys: Said) -> None:
    shown = said(capsys, "rewards", "brevity")
    for part in (
        "Shorter is better",
        "min(1, max(0, (zero - length) / (zero - full)))",
        "unit  tokens | characters | words, default tokens, here words",
        "one two three four                    0.75",
        "    fn: rlhf_cli.rewards.length:length_ramp",
        "+reward@rewards.brevity=brevity",
        "conf/reward/brevity.yaml",
    ):
        assert part in shown


@pytest.mark.parametrize(("key", "holds"), [("launch.vllm", "section of 1 key\n"), ("guards", "section of 3 keys\n")])
def test_keys(key: str, holds: str, capsys: Said) -> None:
    assert f"{key}  {holds}" in said(capsys, "keys", key)


def test_the_yaml_and_the_override_of_a_page_work(capsys: Said, write: Callable[[str, str], Path]) -> None:
    shown = said(capsys, "reward", "digits_only")
    pasted = shown.partition("in an experiment\n")[2].partition("\non the command line")[0]
    write("conf/exp/mine.yaml", f"# @package _global_\n{pasted}")
    assert main(["check", "+exp=mine", "trainer.args.max_completion_length=32"]) == 0
    override = shown.partition("rlhf train +exp=NAME ")[2].splitlines()[0]
    assert main(["check", "+exp=quickstart", override]) == 0


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rewrd"], "rlhf list reward"),
        (["quickstart"], "rlhf list exp quickstart"),
        (["reward", "jugde"], "rlhf list reward judge"),
        (["trainer", "grpo", "lerning_rate"], "rlhf list trainer grpo learning_rate"),
        (["keys", "wieght"], "rlhf list keys weight"),
        (["exp", "a", "b"], None),
    ],
)
def test_wrong_words(words: list[str], hint: str | None, capsys: Said) -> None:
    assert main(["list", *words]) == 2
    error = capsys.readouterr().err
    assert hint is None or f"try:      {hint}\n" in error
