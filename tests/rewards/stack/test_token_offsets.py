"""Character ranges of tokens, against an oracle that knows every token's bytes."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest
from tokenizers import Tokenizer, decoders, models

from rlhf_cli.models.tiny import byte_tokenizer
from rlhf_cli.rewards.stack.token_offsets import token_offsets

Ranges = list[tuple[int, int]]
TEXTS = [
    "A: 4\nB: 7",
    "答案是 18，对吗？",
    "😀 ok 👩‍👩‍👧 🇩🇪",
    "cafe\u0301 nai\u0308ve",
    "a\ufffdb\ufffd\ufffd",
    "\ufffd",
    " leading",
    "",
    "\x00\u200b",
]


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


def test_the_oracle_decodes_as_python_does() -> None:
    rng = Random(0)
    for _ in range(300):
        data = bytes(rng.choice(b"a\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbd\xff") for _ in range(12))
        assert characters_of_bytes(data)[0] == data.decode("utf-8", "replace")


def test_by_hand() -> None:
    tokenizer = byte_tokenizer(64)
    ids = tokenizer("a€\ufffd!").input_ids
    expected = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3), (3, 4)]
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
        # An empty token has no bytes to say where it is: only that it is empty.
        assert [pair for pair, token in zip(found, ids, strict=True) if token] == [
            pair for pair, token in zip(expected, ids, strict=True) if token
        ]
        assert all(start == end for (start, end), token in zip(found, ids, strict=True) if not token)


def test_control_texts_of_single_tokens_do_not_add_up() -> None:
    """What would be done without care, decoding tokens one by one, is wrong on the very texts above."""
    tokenizer = byte_tokenizer(64)
    wrong = 0
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        wrong += "".join(tokenizer.decode([token]) for token in ids) != text
    assert wrong >= 5


def _llama_like() -> tuple[Tokenizer, list[str]]:
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁▁", "ab", "▁ab", "."]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer, words


def test_a_leading_space_that_is_stripped() -> None:
    tokenizer, words = _llama_like()
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


def test_falls_back_to_prefixes() -> None:
    """A decoder that counts from the start, `!` after every third token: windows do not reproduce its text."""

    def decode(ids: Sequence[int]) -> str:
        return "".join("xyz"[token] + "!" * (index % 3 == 2) for index, token in enumerate(ids))

    ids = [0, 1, 2, 0, 1, 2, 1]
    assert decode(ids) == "xyz!xyz!y"
    assert token_offsets(ids, decode) == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6), (6, 8), (8, 9)]


@pytest.mark.parametrize("pattern", [b"a", "答".encode(), "ab😀".encode()], ids=ascii)
def test_time_is_linear(pattern: bytes) -> None:
    """Counted in tokens decoded: twice the tokens, about twice the work."""
    vocabulary = [bytes([byte]) for byte in range(256)]
    plain = decoder_of(vocabulary)

    def work(length: int) -> int:
        decoded = 0

        def decode(ids: Sequence[int]) -> str:
            nonlocal decoded
            decoded += len(ids)
            return plain(ids)

        ids = list((pattern * length)[:length])
        assert token_offsets(ids, decode) == oracle([bytes([byte]) for byte in ids])[1]
        return decoded

    assert work(2000) < 2.3 * work(1000)
    assert work(2000) < 2000 * 80
