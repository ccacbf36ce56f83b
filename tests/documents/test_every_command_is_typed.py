"""Test that every quoted command is typed by `test_typed_pages`, or marked with what it needs."""

from __future__ import annotations

import subprocess

import pytest

from tests.documents.quoted_commands import ROOT
from tests.documents.typed_pages import REASONS, blocks, pages, script_of

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
