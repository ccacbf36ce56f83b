"""Character ranges of tokens, against an oracle that knows every token's bytes; spans, runs and messages as parts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from rlhf_cli.errors import RewardError
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_matrix import Settled, last_token_rewards, token_rewards
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.stack.token_offsets import ScoredPart, offsets_in, token_offsets
from tests.support.settled_columns import NAN, Case, Rule, column

Ranges = list[tuple[int, int]]


def characters_of_bytes(data: bytes) -> tuple[str, list[int]]:
    """The text, and for every byte the character it belongs to. U+FFFD for the longest beginning of a character that
    comes to nothing (Unicode 16, table 3-8), as Rust's and Python's decoders have it.
    """
    text, places, start = "", [], 0
    while start < len(data):
        length = 1
        for stop in range(start + 1, min(start + 4, len(data)) + 1):
            try:
                decoded = codecs.getincrementaldecoder("utf-8")().decode(data[start:stop])
            except UnicodeDecodeError:
                break
            length = stop - start
            if decoded:
                break
        places += [len(text)] * length
        text += data[start : start + length].decode("utf-8", "replace")
        start += length
    return text, places


def oracle(tokens: Sequence[bytes]) -> tuple[str, Ranges]:
    text, places = characters_of_bytes(b"".join(tokens))
    ranges, start = [], 0
    for token in tokens:
        stop = start + len(token)
        if token:
            ranges.append((places[start], places[stop - 1] + 1))
        else:
            place = ranges[-1][1] if ranges else 0
            ranges.append((place, place))
        start = stop
    return text, ranges


def decoder_of(vocabulary: list[bytes]) -> Callable[[Sequence[int]], str]:
    return lambda ids: b"".join(vocabulary[token] for token in ids).decode("utf-8", "replace")


def test_a_character_of_many_tokens() -> None:
    """The tokens 0 to 11 make an x; a window that begins or ends inside of one decodes to U+FFFD there."""

    def decode(ids: Sequence[int]) -> str:
        letters = "".join("abcdefghijkl"[token] for token in ids)
        return re.sub("[a-l]+", "\ufffd", letters.replace("abcdefghijkl", "x"))

    assert token_offsets([*range(12)] * 3, decode) == [(place // 12, place // 12 + 1) for place in range(36)]


def test_by_hand() -> None:
    tokenizer = byte_tokenizer(64)
    ids = tokenizer("a€!").input_ids
    expected = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert token_offsets(ids, tokenizer.decode) == expected
    assert token_offsets([], tokenizer.decode) == []
    # EOS in the middle of a text, and in the middle of a character.
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    eos = tokenizer.eos_token_id
    assert token_offsets([ids[0], eos, *ids[1:4]], decode) == [(0, 1), (1, 1), (1, 2), (1, 2), (1, 2)]
    assert token_offsets([*ids[:2], eos, *ids[2:4]], decode) == [(0, 1), (1, 2), (1, 1), (1, 2), (1, 2)]


PIECES = [b"", b"a", b" b", b"\xe2", b"\x82", b"\xac", b"\x82\xac", b"\xac c", b"\xf0\x9f", b"\x98\x80", b"\x80\xf0"]
PIECES += ["\ufffd".encode(), b"\xef\xbf", b"\xbd", b"\xbd!\xef", b"\xff", "ä".encode(), "e\u0301".encode(), b"\xcc"]


@pytest.mark.parametrize("seed", range(8))
def test_random_tokens_of_any_bytes(seed: int) -> None:
    """Most of these are no UTF-8: what a policy that has learnt nothing yet samples."""
    rng = Random(seed)
    decode = decoder_of(PIECES)
    for _ in range(150):
        favoured = rng.sample(range(len(PIECES)), rng.randint(1, len(PIECES)))
        ids = [rng.choice(favoured) for _ in range(rng.randint(0, 80))]
        text, expected = oracle([PIECES[token] for token in ids])
        found = token_offsets(ids, decode)
        assert decode(ids) == text
        assert {place for pair in found for place in range(*pair)} == set(range(len(text)))
        if "\ufffd" not in text:  # bytes that are no character are not told apart
            pairs = zip(found, expected, ids, strict=True)
            assert all(pair == right if token else pair[0] == pair[1] for pair, right, token in pairs)


def test_a_leading_space_that_is_stripped() -> None:
    """As Llama's decoder does; bytes are tokens of their own there."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁▁", "ab", "▁ab", "."]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    ids = [words.index(word) for word in ("▁a", "▁ab", "<0xE2>", "<0x82>", "<0xAC>", "▁▁", "b", "▁", ".")]
    assert tokenizer.decode(ids) == "a ab€  b ."
    expected = [(0, 1), (1, 4), (4, 5), (4, 5), (4, 5), (5, 7), (7, 8), (8, 9), (9, 10)]
    assert token_offsets(ids, tokenizer.decode) == expected


def test_a_decoder_that_changes_the_text_before() -> None:
    """WordPiece's clean-up takes the space before a full stop back; the ranges still cover the text in order."""
    vocabulary = {word: index for index, word in enumerate(("[UNK]", "do", "n", "'", "t", ".", "##ing"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    ids = [1, 6, 1, 2, 3, 4, 5]
    text = tokenizer.decode(ids)
    found = token_offsets(ids, tokenizer.decode)
    assert text[slice(*found[0])] == "do"
    assert text[slice(*found[1])] == "ing"
    assert found[-1] == (len(text) - 1, len(text))
    assert {place for pair in found for place in range(*pair)} == set(range(len(text)))


@pytest.mark.parametrize("pattern", [b"a", "ab😀".encode()], ids=ascii)
def test_time_is_linear(pattern: bytes) -> None:
    """Counted in tokens decoded: twice the tokens, about twice the work."""
    vocabulary = [bytes([byte]) for byte in range(256)]
    plain = decoder_of(vocabulary)

    def work(length: int) -> int:
        decoded: list[int] = []

        def decode(ids: Sequence[int]) -> str:
            decoded.extend(ids)
            return plain(ids)

        ids = list((pattern * length)[:length])
        assert token_offsets(ids, decode) == oracle([vocabulary[one] for one in ids])[1]
        return len(decoded)

    assert work(2000) < min(2.3 * work(1000), 2000 * 80)


def decode(ids: Sequence[int]) -> str:
    """A character a token; 0 is a special token without text."""
    return "".join(chr(one) for one in ids if one)


def ids_of(text: str) -> list[int]:
    return [*map(ord, text), 0]


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def told(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content}


CALLS = [{"type": "function"}]
ANSWERED: list[Any] = [said("", tool_calls=CALLS), told("136"), said("136")]
CALLED: list[Any] = [said("76", tool_calls=CALLS), told("7"), said("7!")]
TWO_MESSAGES: list[Any] = [said("ab"), told("ab"), said("c")]
CASES: dict[str, tuple[Any, str, list[int | None]]] = {  # completion, decoded tokens, the tokens of its text
    "plain text": ("136", "136", [0, 1, 2]),
    "a tool's result that is the answer": (ANSWERED, "[76+60]136>136", [11, 12, 13]),
    "two messages": (TWO_MESSAGES, "ab<ab>c", [0, 1, None, 6]),
    "content before its call": (CALLED, "76[76]7>7!", [0, 1, None, 8, 9]),
    "thinking that was parsed out": ([said("no", reasoning_content="no, no")], "<no, no>no", [8, 9]),
    "parts": ([said([{"type": "text", "text": "yes"}])], "\nyes", [1, 2, 3]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_span_lies_on_the_tokens_of_its_characters(name: str) -> None:
    completion, decoded, tokens = CASES[name]
    places = [place for place, token in enumerate(tokens) if token is not None]
    stack = RewardStack([Component("fn", lambda **_: [[(place, place + 1, float(place + 1)) for place in places]])])
    stack.decode = decode
    stack.evaluate(prompts=["p"], completions=[completion], completion_ids=[ids_of(decoded)])
    values = stack.outcomes["fn"].tokens[0] or []
    expected = {tokens[place]: float(place + 1) for place in places}
    assert {token: value for token, value in enumerate(values) if value is not None} == expected
    text = text_of(completion)
    assert len(tokens) == len(text)
    assert [part.text for part in stack.parts("fn", 0) or []] == [text[place] for place in places]


def test_a_token_that_belongs_to_a_message_in_part() -> None:
    assert offsets_in("abc", "abc<end>", [(0, 2), (2, 8)]) == [(0, 2), (2, 8)]
    # The author reads `ab` and `c` in two lines; one token is the tool's result and the `c`.
    assert offsets_in(TWO_MESSAGES, "ab<ab>c", [(0, 2), (2, 7)]) == [(0, 2), (3, 4)]
    assert offsets_in(TWO_MESSAGES, "ab<ab>c", [(1, 6), (6, 7)]) == [(1, 2), (3, 4)]
    # The call `(ab)` follows the content `ab`; the search begins where the message before it ends.
    completion: list[Any] = [said("xy"), said("ab", tool_calls=CALLS)]
    assert offsets_in(completion, "xy|ab|(ab)", [(0, 2), (3, 5), (7, 9)]) == [(0, 2), (3, 5), (0, 0)]


def test_a_message_that_is_not_in_the_tokens_is_an_error() -> None:
    """A span at a wrong place would be worse than none."""
    stack = RewardStack([Component("fn", lambda **_: [[(0, 1, 1.0)]])])
    stack.decode = decode
    with pytest.raises(RewardError):
        stack.evaluate(prompts=["p"], completions=[[said("other")]], completion_ids=[ids_of("[1+1]")])


WORDS = {1: "ab", 2: "cd", 3: "\n", 9: ""}  # 9 ends a text
TEXT, TOKENS = "ab\ncd", [1, 3, 2, 9]


def stack_on(row: Any, *, ids: list[int] | None = None, **rules: Any) -> RewardStack:
    """A stack whose reward returned `row` for one completion."""
    stack = RewardStack([Component("r", lambda completions, **_: [row], **rules)])
    stack.decode = lambda ids: "".join(WORDS[one] for one in ids)
    stack.evaluate(prompts=["q"], completions=[TEXT], **({} if ids is None else {"completion_ids": [ids]}))
    return stack


def parts(row: Any, **rules: Any) -> list[ScoredPart] | None:
    return stack_on(row, **rules).parts("r", 0)


def test_spans_are_parts_in_text_order() -> None:
    """The two lines of a text got +1 and -1: the score is 0, and that is not all there is to say."""
    expected = [ScoredPart(0, 2, "ab", -1.0, (0,)), ScoredPart(3, 5, "cd", 1.0, (2,))]
    for spread in ("last", "even"):
        stack = stack_on([(3, 5, 1.0), (0, 2, -1.0)], ids=TOKENS, spread=spread)
        assert (stack.parts("r", 0), stack.outcomes["r"].raw, stack.outcomes["r"].has_parts) == (expected, [0.0], True)
    assert not stack_on(1.0, ids=TOKENS).outcomes["r"].has_parts


def test_a_span_has_all_tokens_that_it_touches_and_its_value_the_last() -> None:
    stack = stack_on([(1, 4, 2.0), (3, 5, -0.5)], ids=TOKENS)
    assert [(one.text, one.tokens) for one in stack.parts("r", 0) or []] == [("b\nc", (0, 1, 2)), ("cd", (2,))]
    assert stack.outcomes["r"].tokens == [[None, None, 1.5, None]]


def test_neighbouring_tokens_of_one_value_are_a_part() -> None:
    expected = [ScoredPart(0, 3, "ab\n", 1.0, (0, 1)), ScoredPart(5, 5, "", -1.0, (3,))]
    assert parts([0.5, 0.5, None, -1.0], ids=TOKENS) == expected
    assert parts([None] * 4, ids=TOKENS) == []


def test_without_tokens_a_character_is_one() -> None:
    assert parts([(0, 2, 1.0)]) == [ScoredPart(0, 2, "ab", 1.0, (0, 1))]
    assert parts([1.0, 1.0, None, 0.0, 2.0]) == [
        *(ScoredPart(0, 2, "ab", 2.0, (0, 1)), ScoredPart(3, 4, "c", 0.0, (3,)), ScoredPart(4, 5, "d", 2.0, (4,)))
    ]
    # One value per token of a text whose tokens are unknown.
    assert parts([1.0, -3.0]) == [ScoredPart(0, 5, TEXT, -2.0, (0, 1))]
    assert stack_on([(0, 1, 0.5), (1, 3, 0.25)]).outcomes["r"].raw == [0.75]
    assert (stack_on([]).outcomes["r"].raw, stack_on([]).outcomes["r"].errors) == ([0.0], [None])


IN_COMPLETION = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]])
CUT_FIRST = torch.tensor([True, False, False, False])


class DenseRows:
    """A stack whose reward `a` gave the first of its rows values on its first and last token."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float]] = []

    def token_values(self, name: str, row: int, divisor: float) -> list[float | None] | None:
        self.asked.append((name, row, divisor))
        return [0.5, None, 1.5] if (name, row) == ("a", 0) else None


def settled(*columns: torch.Tensor) -> Settled:
    """Return two components and an environment's own reward, of weights 2, -1 and 3."""
    return Case(list(columns), [Rule("a"), Rule("b")], [2.0, -1.0, 3.0]).settle()


def test_dense_scores_lie_on_their_tokens_and_plain_ones_on_the_last() -> None:
    """The row without tokens has no reward, and b does not apply to the last row."""
    rows = settled(column(2, 4, 6, 8), column(1, 1, 1, NAN), column(0, 0.5, 0, 0))
    stack = DenseRows()
    values, is_rewarded = token_rewards(stack.token_values, rows, IN_COMPLETION, slice(0, 4))
    assert {name for name, _, _ in stack.asked} == {"a", "b"}
    assert values.tolist() == [
        [[1.0, 0.0, 3.0], [0.0, 8.0, 0.0], [0.0] * 3, [16.0, 0.0, 0.0]],
        [[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [0.0] * 3, [0.0] * 3],
        [[0.0] * 3, [0.0, 1.5, 0.0], [0.0] * 3, [0.0] * 3],
    ]
    # The environment's 0 on the last token is a reward, too, and it has no parts.
    assert is_rewarded.tolist() == [[True, False, True], [False, True, False], [False] * 3, [True, False, False]]


def test_a_replaced_dense_row_has_everything_on_the_last_token() -> None:
    """a's 2 counts as a whole there: the penalty takes it back on the same token."""
    rows = replace(settled(column(2, 4, 6, 8), column(1, 1, 1, NAN), column(0, 0, 0, 0)), is_replaced=CUT_FIRST)
    values, is_rewarded = token_rewards(DenseRows().token_values, rows, IN_COMPLETION, slice(0, 4))
    assert values[0, 0].tolist() == [0.0, 0.0, 4.0]
    assert is_rewarded[0].tolist() == [False, False, True]


def test_all_on_the_last_token() -> None:
    """2 a, - b and 3 times the environment's; the last row has no score at all, the third no token."""
    rows = settled(column(2, 4, 6, NAN), column(1, 1, 1, NAN), column(0, 0.5, 0, NAN))
    values = last_token_rewards(rows, IN_COMPLETION, slice(0, 4))
    assert values.dtype == torch.float32
    assert values.tolist() == [
        [[0.0, 0.0, 4.0], [0.0, 8.0, 0.0], [0.0] * 3, [0.0] * 3],
        [[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [0.0] * 3, [0.0] * 3],
        [[0.0] * 3, [0.0, 1.5, 0.0], [0.0] * 3, [0.0] * 3],
    ]
    assert last_token_rewards(rows, IN_COMPLETION[:2], slice(1, 3)).tolist()[0] == [[0.0, 0.0, 8.0], [0.0, 12.0, 0.0]]
