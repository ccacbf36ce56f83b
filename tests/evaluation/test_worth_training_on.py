"""Pairs and best answers: which of a prompt's answers they are, and which prompts give none."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_cli.evaluation.best_of_n import SampledAnswer, SampledPrompt, best_answers, preference_pairs


def prompt(*answers: tuple[str, float | None] | tuple[str, float | None, bool], text: object = "q") -> SampledPrompt:
    def made(one: Sequence[object]) -> SampledAnswer:
        completion, score, cut = (*one, False)[:3]
        assert isinstance(completion, str)
        assert score is None or isinstance(score, float)
        return SampledAnswer(completion, {"other": None if score is None else -score}, score, bool(cut))

    return SampledPrompt(text, [made(one) for one in answers])


class TestPairs:
    def test_best_against_worst(self) -> None:
        (row,) = preference_pairs([prompt(("a", 0.5), ("b", 2.0), ("c", -1.0), ("d", 2.0), ("e", -1.0))]).rows
        assert row == {
            "prompt": "q",
            "chosen": "b",
            "rejected": "c",
            "margin": 3.0,
            "score_chosen": 2.0,
            "score_rejected": -1.0,
        }

    def test_what_is_cut_off_is_rejected_and_never_chosen(self) -> None:
        (row,) = preference_pairs([prompt(("a", 3.0, True), ("b", 2.0), ("c", 1.0, True))]).rows
        assert (row["chosen"], row["rejected"]) == ("b", "c")
        made = preference_pairs([prompt(("a", 3.0, True), ("c", 1.0))])
        assert (made.rows, made.left_out) == ([], {"the best finished answer scores no higher than the worst": 1})
        assert preference_pairs([prompt(("a", 3.0, True), ("b", 1.0, True))]).left_out == {"no answer is finished": 1}

    def test_no_pair_without_a_difference(self) -> None:
        made = preference_pairs([prompt(("a", 1.0), ("b", 1.0)), prompt(("a", None), ("b", 1.0))])
        assert made.rows == []
        assert made.left_out == {
            "the best finished answer scores no higher than the worst": 1,
            "fewer than two answers have a score and a text": 1,
        }

    def test_the_least_margin_is_inclusive(self) -> None:
        prompts = [prompt(("a", 1.0), ("b", 0.5)), prompt(("a", 1.0), ("b", 0.6), text="r")]
        made = preference_pairs(prompts, least_margin=0.5)
        assert [row["prompt"] for row in made.rows] == ["q"]
        assert made.left_out == {"the margin is below 0.5": 1}

    def test_an_answer_without_text_is_on_neither_side(self) -> None:
        (row,) = preference_pairs([prompt((" ", 9.0), ("a", 2.0), ("b", 1.0), ("", -9.0))]).rows
        assert (row["chosen"], row["rejected"]) == ("a", "b")

    def test_the_same_pair_once(self) -> None:
        made = preference_pairs([prompt(("a", 0.1), ("b", 0.0))] * 3 + [prompt(("a", 1.0), ("b", 0.0), text="r")])
        assert [row["prompt"] for row in made.rows] == ["q", "r"]
        assert made.left_out == {"a repeated pair": 2}


class TestBestAnswers:
    def test_the_best_different_ones(self) -> None:
        rows = best_answers([prompt(("a", 1.0), ("b", 3.0), ("b", 3.0), ("c", 2.0))], keep=2).rows
        assert rows == [
            {"prompt": "q", "completion": "b", "score": 3.0},
            {"prompt": "q", "completion": "c", "score": 2.0},
        ]

    def test_at_least_and_only_what_ends(self) -> None:
        prompts = [
            prompt(("a", 1.0), ("b", 5.0, True), ("c", 0.0)),
            prompt(("d", 0.5), text="r"),
            prompt(("e", None), text="s"),
        ]
        made = best_answers(prompts, keep=3, at_least=1.0)
        assert [row["completion"] for row in made.rows] == ["a"]
        assert made.left_out == {"no finished answer scores 1 or more": 1, "no answer has a score and a text": 1}

    def test_why_a_prompt_gives_none(self) -> None:
        cut, none, low = prompt(("a", 3.0, True)), prompt((" ", 3.0), ("b", None)), prompt(("a", 0.5), ("b", 9.0, True))
        made = best_answers([cut, cut, none, low], at_least=1.0)
        assert made.rows == []
        assert made.left_out == {
            "no answer is finished": 2,
            "no answer has a score and a text": 1,
            "no finished answer scores 1 or more": 1,
        }

    def test_by_a_reward(self) -> None:
        (row,) = best_answers([prompt(("a", 0.5), ("b", 2.0))], by="other").rows
        assert (row["completion"], row["score"]) == ("a", -0.5)

    def test_a_prompt_that_comes_again_adds_what_is_new(self) -> None:
        made = best_answers([prompt(("a", 1.0), ("b", 0.5)), prompt(("a", 1.0), ("b", 0.5)), prompt(("a", 1.0))])
        assert [row["completion"] for row in made.rows] == ["a", "b"]
        assert made.left_out == {"repeated answers": 1}
