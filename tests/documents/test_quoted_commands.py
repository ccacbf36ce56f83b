"""Test that quoted commands can be typed, and that each is typed by `test_typed_pages` or marked with what it needs."""

from __future__ import annotations

import contextlib
import re
import subprocess

import pytest

from rlhf_cli.cli.options import read_options, usage_of
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.errors import UserError
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from tests.documents.quoted_commands import (
    ROOT,
    Quoted,
    commands_in_sentences,
    commands_of_experiments,
    quoted_commands,
)
from tests.documents.typed_pages import REASONS, blocks, pages, script_of

pytestmark = pytest.mark.usefixtures("place")
COMPOSE = ("train", "check", "show", "audit", "score")
_STAND_IN = re.compile(r"\b[A-Z][A-Z_]+\b|\.\.\.|…")
OF_THE_READER = ("+exp=NAME", "+exp=mine", "+exp=first", "+exp=capitals", "+exp=quiz")
"""Experiments that the reader writes."""
ON_PURPOSE = ("tarin", "--output_dir", "rewards.brevity.wieght=0.5")
"""Words that the documents show as mistakes."""
IN_SENTENCES = commands_in_sentences()
COMMANDS = list({command.words: command for command in (*quoted_commands(), *commands_of_experiments())}.values())


def test_there_are_some() -> None:
    assert len(COMMANDS) > 80
    assert len({command.place for command in commands_of_experiments()}) >= 18


def type_it(command: Quoted) -> None:
    """Raise UserError or fail if a command cannot be typed."""
    verb, *words = command.words
    if verb.startswith("-") or _STAND_IN.fullmatch(verb):
        return
    assert verb in VERBS
    if {"-h", "--help"} & set(words):
        return
    options = read_options(usage_of(verb), [word for word in words if word != "..."])
    overrides = [word for word in options.words if "=" in word or word.startswith("~")]
    is_sweep = "-m" in words or "--multirun" in words
    if verb in COMPOSE and any(word.startswith("+exp=") for word in overrides) and not is_sweep:
        if any(_STAND_IN.search(word.partition("=")[0]) or word.startswith(OF_THE_READER) for word in overrides):
            return
        with pytest.raises(UserError) if command.is_refused else contextlib.nullcontext():
            prepared = prepare(overrides, keep_run_names=True)
            if command.is_refused:
                preflight(prepared.experiment, prepared.composed)


@pytest.mark.parametrize("part", range(4))
def test_commands_of_blocks(part: int) -> None:
    for command in COMMANDS[part::4]:
        type_or_fail(command)


def test_commands_of_sentences() -> None:
    """A flag may be named without its value."""
    for command in IN_SENTENCES:
        if set(ON_PURPOSE) & set(command.words):
            continue
        verb, last = command.words[0], command.words[-1]
        takes_a_value = verb in VERBS and re.search(rf"^ *(-\w, )?{last} [A-Zab]", usage_of(verb).text, re.MULTILINE)
        words = (*command.words, "1") if last.startswith("--") and takes_a_value else command.words
        type_or_fail(Quoted(command.place, words))


def type_or_fail(command: Quoted) -> None:
    """Type a command; fail with its place if it is refused."""
    try:
        type_it(command)
    except (UserError, AssertionError) as error:
        pytest.fail(f"{command.place}: {' '.join(command.words)}: {error}")


def test_negative_control() -> None:
    with pytest.raises(UserError):
        type_it(Quoted("here", ("train", "+exp=quickstart", "rewards.brevity.wieght=1")))
    with pytest.raises(UserError):
        type_it(Quoted("here", ("compare", "runs", "--onn", "x")))


PAGES = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in pages()}


def test_each_command_is_typed_or_marked() -> None:
    found = [block for name, text in PAGES.items() for block in blocks(text, name)]
    assert [(block.place, block.unread) for block in found if block.unread] == [], "commands? typed or text?"
    reasons = {reason for block in found for _, reason in block.needs}
    assert {reason for reason in reasons if not REASONS.fullmatch(reason)} == set()


def test_scripts_have_valid_syntax() -> None:
    for name, text in PAGES.items():
        script = script_of(blocks(text, name))
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.stderr == "", name


def test_negative_control_an_unmarked_command_is_noticed() -> None:
    (block,) = blocks("```\ngpu1$ rlhf train +exp=a\n  rlhf join gpu1:1\n```\n", "page")
    assert len(block.unread) == 2
    (block,) = blocks("```\n$ rlhf list\nrlhf show +exp=a\n```\n", "page")
    assert block.unread == ("rlhf show +exp=a",)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- befor: small -->\n```sh\nrlhf list\n```\n",
        "```sh\nrlhf list\n```\n<!-- exits: 2 -->\n",
        "<!-- exits: 2 -->\n```yaml\nseed: 1\n```\n",
        "<!-- a remark -->\n```sh\nrlhf list\n```\n",
    ],
)
def test_a_comment_without_effect_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="page"):
        blocks(text, "page")
