"""The documents quote what `make examples` prints, and what is printed is what the definitions say."""

from __future__ import annotations

import re

import pytest

from scripts import examples, structure

PRINTED = [(document, example) for document, some in examples.EXAMPLES.items() for example in some]


@pytest.mark.parametrize(("document", "example"), PRINTED, ids=[example.__name__ for _, example in PRINTED])
def test_a_document_quotes_what_is_printed(document: str, example) -> None:
    printed = "\n".join(example())
    assert f"\n\n{printed}\n\n" in (structure.ROOT / document).read_text(encoding="utf-8")


def cells(example) -> dict[str, list[list[float]]]:
    """First cell of a row -> the numbers of the others."""
    rows = [line.strip("| ").split(" | ") for line in list(example())[2:]]
    return {first: [[float(one) for one in numbers(cell)] for cell in others] for first, *others in rows}


def numbers(cell: str) -> list[str]:
    return re.findall(r"-?\d+(?:\.\d+)?", cell.replace("−", "-"))


def test_grpos_advantages_by_hand() -> None:
    """zero: totals 1.5, 0, 1.1, 0 have the mean 0.65. exclude: b counts as its mean 0.3 where it does not apply, so
    totals are 1.5, 0.3, 1.1, 0.3 with the mean 0.8, and b's part of the second and fourth is 0.3 - 0.3.
    """
    found = cells(examples.gates)
    assert found["zero"][2] == [0.85, -0.65, 0.45, -0.65]
    assert found["exclude"][2] == [0.7, -0.5, 0.3, -0.5]


def test_gaes_advantages_by_hand() -> None:
    """bootstrap, replace: deltas 0.4 - 0.2, 0.5 - 0.4, 0 + 0.6 - 0.5 = 0.2, 0.1, 0.1; with lambda 0.95 from the end
    0.1, 0.1 + 0.095, 0.2 + 0.95 * 0.195 = 0.38525; returns are 0.2, 0.4, 0.5 more. none: the last delta is 1 - 0.5.
    """
    found = cells(examples.cut_answer)
    assert found["`bootstrap`, `mode=replace`"] == [[0.0], [0.385, 0.195, 0.1], [0.585, 0.595, 0.6]]
    assert found["`none`"][1] == [0.746, 0.575, 0.5]
    assert found["`eos_penalty`, `mode=replace`"][0] == [-1.0]


def test_control_another_number_is_no_quotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "B", [0.5, 0.7, 0.2, 0.9])
    with pytest.raises(AssertionError):
        test_a_document_quotes_what_is_printed("docs/how-to/rewards.md", examples.gates)
