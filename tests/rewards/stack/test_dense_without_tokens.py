"""Dense scores where a completion is a text and has no tokens (a row is worth its sum), and where it has them."""

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


def test_with_tokens_and_a_tokenizer_a_span_lies_on_its_tokens(bench: Bench) -> None:
    """Tokens of one, two and one characters: 1 .. 3 is the second's, and its last character alone is still there."""
    pieces = {5: "a", 6: "bc", 7: "d"}
    stack = bench.stack(lambda completions, **_: [[(1, 3, 0.5), (2, 3, 0.25), (3, 4, -1.0)]])
    stack.decode = lambda ids: "".join(pieces[token] for token in ids)
    outcome = stack.evaluate(prompts=["p"], completions=["abcd"], completion_ids=[[5, 6, 7]])["mine"]
    assert outcome.tokens == [[None, 0.75, -1.0]]
    assert outcome.raw == [-0.25]
