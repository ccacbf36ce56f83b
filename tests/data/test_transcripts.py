"""Split whole dialogues into the prompt that they share and two answers."""

from __future__ import annotations

import pytest

from rlhf_cli.data.dialogues import split_pair
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.peeking import peek, prepare_preview
from rlhf_cli.data.source import DataSource


def test_a_transcript_is_split_at_the_last_answer() -> None:
    asked = "\n\nHuman: Hello\n\nAssistant: Hi!\n\nHuman: How are you?\n\nAssistant:"
    assert split_pair(asked + " Fine.", asked + " Go away.") == (asked, " Fine.", " Go away.")
    # The answers begin alike: it is the turn that ends the prompt, not the last letter in common.
    assert split_pair(asked + " I am fine.", asked + " I am not.") == (asked, " I am fine.", " I am not.")
    assert split_pair(asked + " Fine.", asked + " ") == (asked, " Fine.", " ")
    assert split_pair(asked + " Fine.", asked) == (asked, " Fine.", "")


def test_dialogues_that_differ_earlier_are_split_where_they_differ() -> None:
    asked = "\n\nHuman: Hello\n\nAssistant:"
    long = " Hi!\n\nHuman: Tea?\n\nAssistant: Yes."
    # One dialogue may continue after the other has ended: its later turns are no part of the prompt.
    for other in (" Ho!\n\nHuman: Tea?\n\nAssistant: No.", " Hi!"):
        assert split_pair(asked + long, asked + other) == (asked, long, other)
        assert split_pair(asked + other, asked + long) == (asked, other, long)


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [
        ("Fine.", "Go away."),
        ("\n\nHuman: Hello\n\nAssistant: Hi!", "Hi!"),
        ("\n\nHuman: Hello\n\nAssistant: Hi!", "\n\nHuman: Bye\n\nAssistant: Hi!"),
        ("\n\nHuman: Hello", "\n\nHuman: Hello"),
        ("I said \n\nAssistant: once", "I said \n\nAssistant: twice"),
    ],
)
def test_texts_that_are_no_pair_of_transcripts_are_not_split(chosen: str, rejected: str) -> None:
    assert split_pair(chosen, rejected) is None


def test_loading_splits_and_templates_can_read_the_prompt(jsonl) -> None:
    asked = "\n\nHuman: Hello\n\nAssistant:"
    path = jsonl([{"chosen": asked + " a", "rejected": asked + " b"}, {"chosen": "c", "rejected": "d"}])
    dataset = load_split([DataSource(path=path, transcripts=True)], seed=0)
    assert dataset.to_list() == [
        {"chosen": " a", "rejected": " b", "prompt": asked},
        {"chosen": "c", "rejected": "d", "prompt": ""},
    ]
    templated = load_split([DataSource(path=path, transcripts=True)], seed=0, prompt="<{prompt}>")
    assert templated["prompt"][0] == f"<{asked}>"
    assert "prompt" not in load_split([DataSource(path=path)], seed=0).column_names


def test_data_with_prompts_is_not_split(jsonl) -> None:
    rows = [{"prompt": "p", "chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}]
    source = DataSource(path=jsonl(rows))
    assert load_split([source], seed=0).to_list() == rows
    assert prepare_preview(source, peek(source), None)[0] == ("prompt", "chosen", "rejected")
