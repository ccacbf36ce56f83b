"""What is written is what the standard library writes of a redacted tree, and safe to print."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from rlhf_cli.text.json_values import write_json
from rlhf_cli.text.redaction import redacted_tree, remember

LEAVES: tuple[object, ...] = (
    *(None, True, False, 0, -3, 10**30, 0.1, 1e-7, 1e22, -0.0, math.nan, math.inf),
    *(
        "",
        "plain",
        'quoted " and \\ and \n and \t',
        "\x01\x7f\x9b\u202e",
        "Straße 東京 \U0001f600 \u2028",
        "\ud83d",
        "***",
    ),
    *("hf_AbCdEfGhIjKlMnOpQrStUvWxYz", "https://user:pw@host/path", "api_key=abcdefgh1", "a typed-secret-1 inside"),
)
KEYS = ("a", "b", "api_key", "hub_token", "pad_token", "ünicode", "", "typed-secret-1", 1, 2.5, None, True)


def written(value: object) -> str:
    texts: list[str] = []
    write_json(value, texts.append)
    return "".join(texts)


def tree(chance: random.Random, depth: int) -> object:
    kind = chance.choice(("leaf", "dict", "list", "tuple")) if depth else "leaf"
    if kind == "leaf":
        return chance.choice(LEAVES)
    if kind == "dict":
        return {chance.choice(KEYS): tree(chance, depth - 1) for _ in range(chance.randint(0, 4))}
    items = [tree(chance, depth - 1) for _ in range(chance.randint(0, 4))]
    return items if kind == "list" else tuple(items)


def finite(node: object) -> object:
    if isinstance(node, dict):
        return {key: finite(item) for key, item in node.items()}
    if isinstance(node, list | tuple):
        return [finite(item) for item in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node


def test_as_the_standard_library_writes_it() -> None:
    remember("typed-secret-1")
    chance = random.Random(0)
    for _ in range(1500):
        value = tree(chance, 4)
        expected = json.dumps(redacted_tree(finite(value)), indent=2, ensure_ascii=False, allow_nan=False)
        for code in "\x7f\x9b\u202e\ud83d":  # a terminal would act on them, or could not be sent them
            expected = expected.replace(code, f"\\u{ord(code):04x}")
        assert written(value) == expected


def test_what_json_cannot_hold() -> None:
    assert written([Path("a"), {1}]) == '[\n  "a",\n  "{1}"\n]'
    with pytest.raises(TypeError, match="keys must be str"):
        written({(1, 2): 3})
