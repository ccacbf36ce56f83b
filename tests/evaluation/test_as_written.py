"""What evaluations write and print, key for key and cell for cell, as the files of `as_written/` have it.

They were made by the code before its results were dataclasses; they change only where a format is to change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_evaluations import SMALL
from tests.support.tolerances import MODEL

AS_WRITTEN = Path(__file__).parent / "as_written"


def shape(value: Any) -> Any:
    """Everything but numbers that are no whole ones: keys in their order, texts, counts, null."""
    if isinstance(value, dict):
        return [(key, shape(one)) for key, one in value.items()]
    if isinstance(value, list):
        return [shape(one) for one in value]
    return "a number" if isinstance(value, float) else value


def numbers(value: Any) -> list[float]:
    """The numbers that are no whole ones, in their order."""
    if isinstance(value, dict | list):
        return [one for inner in (value.values() if isinstance(value, dict) else value) for one in numbers(inner)]
    return [value] if isinstance(value, float) else []


def test_every_file_is_compared() -> None:
    assert {file.name.partition(".")[0] for file in AS_WRITTEN.iterdir()} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_as_before(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for suffix, text in SMALL[name](place, monkeypatch).items():
        before = (AS_WRITTEN / f"{name}.{suffix}").read_text()
        if suffix.endswith("json"):
            ours, theirs = json.loads(text), json.loads(before)
            assert shape(ours) == shape(theirs)
            assert numbers(ours) == pytest.approx(numbers(theirs), **MODEL)
        else:
            assert text == before


def test_negative_control_an_order_of_keys_is_seen() -> None:
    assert shape({"a": 1, "b": 2.0}) != shape({"b": 2.0, "a": 1})
    assert shape({"a": 1}) != shape({"a": 1.0})
