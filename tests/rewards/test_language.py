"""The language of a completion: its share of letters, and the prompt's language kept."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.language import LANGUAGES, language_consistency


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("The answer is forty two", "latin", 1.0),
        ("Ответ сорок два", "cyrillic", 1.0),
        ("Ответ is два", "cyrillic", 2 / 3),
        ("答案 is 二", "han", 3 / 4),  # every Han letter is a word: 3 of 4
        ("カタカナとひらがな漢字", "japanese", 1.0),
        ("ひらがな漢字", "han", 2 / 6),
        ("उत्तर is है", "devanagari", 2 / 3),
        ("don't won’t да", "latin", 2 / 3),  # an apostrophe does not split a word
        ("é café e\u0301te\u0301", "latin", 1.0),
        ("答案是 42, 3.5!", "han", 1.0),  # digits and punctuation do not count
        ("<think>答案</think>", "han", 1.0),
        (r"答案 $x = \frac{1}{2} y$", "han", 1.0),
        ("答案 ```python\nprint(answer)\n```", "han", 1.0),
        ("42 + 1 = 43", "latin", None),
    ],
)
def test_share(text: str, language: str, expected: float | None) -> None:
    (found,) = language_consistency([""], [text], language=language)
    assert found == (None if expected is None else pytest.approx(expected))


def test_rows() -> None:
    prompts = [
        "How many ducks?",
        [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "一加一？"}],
        "1 + 1",
        "How many ducks?",
    ]
    completions = ["Two ducks", [{"role": "assistant", "content": "是 two", "reasoning_content": "想"}], "Two", "2"]
    assert language_consistency(prompts, completions) == [1.0, pytest.approx(2 / 3), None, None]
    assert language_consistency(prompts, completions, language="latin") == [1.0, pytest.approx(1 / 3), 1.0, None]


def test_unknown_language() -> None:
    with pytest.raises(RewardError):
        language_consistency(["x"], ["x"], language="french")
    assert {"auto", "latin", "han", "cyrillic", "arabic"} < set(LANGUAGES)
