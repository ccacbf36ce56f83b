"""Rewards for the text of a completion: match, tags, length, repetition (against TRL's count) and language."""

from __future__ import annotations

from typing import Any

import pytest
from trl.rewards.other_rewards import get_repetition_penalty_reward

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.language import LANGUAGES, language_consistency, language_of
from rlhf_cli.rewards.length import length_ramp, length_target
from rlhf_cli.rewards.match import exact_match, regex
from rlhf_cli.rewards.repetition import repetition
from rlhf_cli.rewards.tags import format_tags


def said(content: str, **thinking: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": content, **thinking}]


@pytest.mark.parametrize(
    ("text", "answer", "options", "expected"),
    [
        (" Paris\n", "Paris", {}, 1.0),
        (" Paris\n", "Paris", {"strip": False}, 0.0),
        ("paris", "Paris", {}, 0.0),
        ("STRASSE", "straße", {"ignore_case": True}, 1.0),  # lower() alone would say no
        ("Paris.", "Paris", {}, 0.0),
        # A number that a table stores with decimals is compared by its value.
        *((text, 7.0, {}, 1.0) for text in ("7", "7.0", " 7\n", "7.00", "70e-1")),
        *((text, 7.0, {}, 0.0) for text in ("07", "7.", "7_0", "8", "seven", "")),
        *(("3.10", 3.1, {}, 1.0), ("-2", [1.5, -2.0], {}, 1.0), ("nan", float("nan"), {}, 1.0)),
        *((" 7", 7.0, {"strip": False}, 0.0), ("7", 7.0, {"strip": False}, 1.0)),
        *(("7.0", 7, {}, 0.0), ("7.0", "7", {}, 0.0), ("7", "7.0", {}, 0.0)),  # these are stored as they were written
    ],
)
def test_exact(text: str, answer: object, options: dict[str, bool], expected: float) -> None:
    assert exact_match([text], [answer], **options) == [expected]


def test_exact_match_rows() -> None:
    answer = [7, ["7", "seven"], ["7", "seven"], None, []]
    assert exact_match(["7", said("seven"), "8", "9", "10"], answer) == [1.0, 1.0, 0.0, None, None]


@pytest.mark.parametrize(
    ("text", "pattern", "options", "expected"),
    [
        ("42", "[0-9]+", {}, 1.0),
        ("42 apples", "[0-9]+", {}, 0.0),
        ("42 apples", "[0-9]+", {"mode": "search"}, 1.0),
        ("apples", "[0-9]+", {"mode": "search"}, 0.0),
        (" 42\n", "[0-9]+", {}, 1.0),
        (" 42\n", "[0-9]+", {"strip": False}, 0.0),
        ("YES", "yes", {}, 0.0),
        ("a\nb", "a.b", {}, 0.0),
    ],
)
def test_regex(text: str, pattern: str, options: dict[str, Any], expected: float) -> None:
    assert regex([text, said(text)], pattern=pattern, **options) == [expected] * 2


@pytest.mark.parametrize(
    ("text", "strict", "soft"),
    [
        ("<think>a</think><answer>b</answer>", 1.0, 1.0),
        (" <think>\na\n</think>\n\n<answer>b</answer>\n", 1.0, 1.0),
        ("Sure! <think>a</think><answer>b</answer>", 0.0, 1.0),
        ("<think>a</think> so <answer>b</answer>", 0.0, 1.0),
        ("<think>a</think><answer>b</answer> done", 0.0, 1.0),
        ("<answer>b</answer>", 0.0, 0.5),
        ("<answer>b</answer><think>a</think>", 0.0, 0.5),  # the second is before the first
        ("<think>a<answer>b</answer></think>", 0.0, 0.5),  # inside, so not after
        ("<think><answer></think>b</answer>", 0.0, 0.5),
        ("<think>a</think><answer>b", 0.0, 0.5),  # cut off
        ("b", 0.0, 0.0),
    ],
)
def test_think_answer(text: str, strict: float, soft: float) -> None:
    assert format_tags([text, said(text)]) == [strict] * 2
    assert format_tags([text], mode="soft") == [soft]


def test_prefilled_and_other_tags() -> None:
    texts = ["a</think><answer>b</answer>", "<think>a</think><answer>b</answer>"]
    assert format_tags(texts, prefilled=True) == [1.0, 0.0]  # the other is opened twice
    assert format_tags(texts) == [0.0, 1.0]
    assert format_tags(["<a.b>x</a.b>", "<acb>x</acb>"], tags=["a.b"]) == [1.0, 0.0]  # a name, not a pattern


@pytest.mark.parametrize(
    ("length", "near", "shorter", "longer"),
    [(0, 0.0, 1.0, 0.0), (50, 0.0, 1.0, 0.0), (75, 0.5, 0.75, 0.25), (100, 1.0, 0.5, 0.5), (150, 0.0, 0.0, 1.0)],
)
def test_target_and_ramps(length: int, near: float, shorter: float, longer: float) -> None:
    text = "x" * length
    assert length_target([text], target=100, width=50, unit="characters") == [near]
    assert length_ramp([text], full=50, zero=150, unit="characters") == [shorter]
    assert length_ramp([text], full=150, zero=50, unit="characters") == [longer]


def test_length_rows() -> None:
    completions, ids = ["one two  three", said("four", reasoning_content="hm hm"), ""], [[5, 6, 7, 2], [8, 2], [2]]
    assert length_target(completions, ids, target=2, width=2) == [0.0, 1.0, 0.5]
    assert length_target(completions, target=3, width=3, unit="words") == [1.0, 1.0, 0.0]
    assert length_ramp(completions, completion_ids=ids, full=0, zero=4) == [0.0, 0.5, 0.75]
    assert length_ramp(completions, full=4, zero=0, unit="characters") == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("reward", "where", "arguments"),
    [
        (length_target, "args.unit", {"target": 1, "width": 1}),
        (length_ramp, "args.zero", {"completion_ids": [[1]], "full": 5, "zero": 5}),
        *((format_tags, "args.tags", {"tags": tags}) for tags in ("think", [], ["a", "b", "a"])),
        (language_consistency, "args.language", {"prompts": ["x"], "language": "french"}),
    ],
)
def test_arguments_that_mean_nothing_are_refused(reward: Any, where: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(RewardError) as caught:
        reward(completions=["x"], **arguments)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a b c d", {"ngram_size": 2}, 0.0),
        ("a b a b", {"ngram_size": 2}, -1 / 3),  # ab ba ab: 2 of 3 differ
        ("A a a\na  a", {"ngram_size": 2}, -3 / 4),  # case and spacing make no difference
        ("a a a a a", {"ngram_size": 1}, -4 / 5),
        ("a a", {}, 0.0),  # too short: three words are counted together unless told otherwise
        ("a a a", {}, 0.0),  # a single n-gram repeats nothing
        ("a a a a", {}, -0.5),
        ("", {}, 0.0),
        ("我我我我 我", {"ngram_size": 2, "unit": "characters"}, -0.75),
        ("我我我我 我", {"ngram_size": 2}, 0.0),  # two words: in Chinese this unit sees nothing
    ],
)
def test_repetition(text: str, options: dict[str, Any], expected: float) -> None:
    assert repetition([text, said("", thinking=text)], **options) == pytest.approx([expected] * 2, abs=1e-15)


@pytest.mark.parametrize("text", ["a b c d", "x y x y x", "the cat and the cat and the dog", "b b b b b b"])
@pytest.mark.parametrize("ngram_size", [1, 2, 3])
def test_same_share_as_trl_counts_over_ids(text: str, ngram_size: int) -> None:
    ids = [hash(word) for word in text.split()]
    theirs = get_repetition_penalty_reward(ngram_size=ngram_size, max_penalty=-1.0)(completion_ids=[ids])
    assert repetition([text], ngram_size=ngram_size) == pytest.approx(theirs, abs=1e-15)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
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
def test_share_of_a_language(text: str, language: str, expected: float | None) -> None:
    assert language_consistency([""], [text], language=language) == pytest.approx([expected])


def test_language_rows() -> None:
    asked = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "一加一？"}]
    prompts = ["How many ducks?", asked, "1 + 1", "How many ducks?"]
    completions = ["Two ducks", said("是 two", reasoning_content="想"), "Two", "2"]
    assert language_consistency(prompts, completions) == [1.0, pytest.approx(2 / 3), None, None]
    assert language_consistency(prompts, completions, language="latin") == [1.0, pytest.approx(1 / 3), 1.0, None]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("漢" * 9 + "の", "japanese"),  # a tenth of kana
        ("漢" * 10 + "の", "han"),
        ("漢" * 9 + "々の", "han"),
        ("カタ word", "japanese"),
        ("да abc", "cyrillic"),  # the first of a tie
        ("да abc def", "latin"),
        ("1 + 1", None),
    ],
)
def test_the_language_of_a_text(text: str, language: str | None) -> None:
    assert language_of(text) == language
    assert {"auto", "latin", "han", "cyrillic", "arabic"} < set(LANGUAGES)
