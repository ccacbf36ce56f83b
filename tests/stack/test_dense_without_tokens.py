"""Dense scores outside of training, where a completion is a text and has no tokens: a row is worth its sum."""

from __future__ import annotations

from tests.support.reward_bench import Bench

TEXTS = {"prompts": ["p"] * 3, "completions": ["abc", "de", ""]}


def test_spans_of_characters_and_values_by_token(bench: Bench) -> None:
    """Two spans of one text are worth both; how many tokens a list was written for nobody can say here."""
    rows = [[(0, 1, 0.5), (1, 3, 0.25)], [1.0, None, -0.25, 2.0], []]
    outcome = bench.stack(lambda completions, **_: rows).evaluate(**TEXTS)["mine"]
    assert outcome.raw == [0.75, 2.75, 0.0]
    assert outcome.errors == [None] * 3


def test_a_span_outside_the_text_is_refused_there_too(bench: Bench) -> None:
    rows = {"abc": [(0, 4, 1.0)], "de": [(0, 2, 1.0)], "": 0.0}
    score = bench.stack(lambda completions, **_: [rows[text] for text in completions], on_error="exclude")
    outcome = score.evaluate(**TEXTS)["mine"]
    assert outcome.raw == [None, 1.0, 0.0]
    assert "not inside the completion's 3 characters" in (outcome.errors[0] or "")
