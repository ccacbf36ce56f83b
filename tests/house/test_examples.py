"""Test that the documents quote what `make examples` prints."""

from __future__ import annotations

import pytest

from scripts import examples, structure

PRINTED = [(document, example) for document, some in examples.EXAMPLES.items() for example in some]


@pytest.mark.parametrize(("document", "example"), PRINTED, ids=[example.__name__ for _, example in PRINTED])
def test_a_document_quotes_what_is_printed(document: str, example) -> None:
    printed = "\n".join(example())
    assert f"\n\n{printed}\n\n" in (structure.ROOT / document).read_text(encoding="utf-8")


def test_control_another_number_is_no_quotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "B", [0.5, 0.7, 0.2, 0.9])
    with pytest.raises(AssertionError):
        test_a_document_quotes_what_is_printed("docs/how-to/rewards.md", examples.gates)
