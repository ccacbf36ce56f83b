"""Checks of row contents before a run use the same messages as the run itself."""

from __future__ import annotations

import json

import pytest

from tests.support.planning import MINE, ROWS, Refused, Write, planned

PAIRS = ("data=file", "data.path=pairs.jsonl", "~data.eval", "trainer.args.eval_strategy=no", "launch=cpu")


def lines(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def pair(**columns: object) -> dict[str, object]:
    return {"prompt": "1+1=", "chosen": "2", "rejected": "3", **columns}


class TestPairs:
    def test_negative_control_sound_pairs(self, write: Write) -> None:
        write("pairs.jsonl", lines(*(pair(margin=number) for number in range(80))))
        assert planned("exp=toy_reward", "reward_model.margin.column=margin", *PAIRS).num_rows == 80
        assert planned("exp=toy_dpo", *PAIRS).num_rows == 80

    def test_what_is_left_out_is_not_held_against_the_data(self, write: Write, refused: Refused) -> None:
        leave = "reward_model.on_bad_pair=drop"
        write("pairs.jsonl", lines(pair(), pair(rejected="2"), pair(chosen="")))
        assert planned("exp=toy_reward", leave, *PAIRS).num_rows == 3
        write("pairs.jsonl", lines(pair(rejected="2"), pair(chosen="")))
        error = refused("exp=toy_reward", leave, *PAIRS)
        assert error.got == "1 with empty answers, 1 with identical answers"


class TestPrompts:
    def test_an_empty_one_is_named_by_its_row(self, write: Write, refused: Refused) -> None:
        write("rows.jsonl", ROWS + lines({"prompt": " ", "a": 1, "b": 1}))
        error = refused(*MINE)
        assert "row 21" in str(error.where)


class TestHeldOut:
    EVALUATED = ("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=60")

    def test_a_fraction_is_held_out_by_prompt_and_counted(self, write: Write) -> None:
        """20 rows of 20 prompts; a fifth is 4. Of 10 prompts that stand there twice each, a quarter is 2.5 prompts, and
        a prompt is not divided: 3 prompts, 6 rows.
        """
        write("rows.jsonl", ROWS)
        assert planned(*MINE, "data.eval.fraction=0.2", *self.EVALUATED).num_rows == 16
        half = "".join(ROWS.splitlines(keepends=True)[:10])
        write("rows.jsonl", half + half)
        assert planned(*MINE, "data.eval.fraction=0.25", *self.EVALUATED).num_rows == 14

    @pytest.mark.parametrize(
        ("words", "train", "held"),
        [
            (MINE, {"prompt": "1+1=", "a": 1, "b": 1}, {"prompt": "1+2=", "a": 1, "b": 2}),
            (("exp=toy_sft",), {"prompt": "1+1=", "completion": "2"}, {"prompt": "1+2=", "completion": "3"}),
            (
                ("exp=toy_reward",),
                {"prompt": "1+1=", "chosen": "2", "rejected": "3", "score_chosen": 1, "score_rejected": 0},
                {"prompt": "1+2=", "chosen": "3", "rejected": "4", "score_chosen": 1, "score_rejected": 0},
            ),
        ],
        ids=["policy", "demonstrations", "pairs"],
    )
    def test_prompts_that_are_also_trained_on_are_counted(
        self, write: Write, words: tuple[str, ...], train: dict[str, object], held: dict[str, object]
    ) -> None:
        write("rows.jsonl", lines(*[train] * 20))
        for shared, text in ((2, "2 of 3 evaluation rows"), (3, "all 3 evaluation rows"), (0, None)):
            write("held.jsonl", lines(*[train] * shared, *[held] * (3 - shared)))
            plan = planned(*words, "data=file", "data.path=rows.jsonl", "data.eval.path=held.jsonl", *self.EVALUATED)
            notices = [notice.text for notice in plan.notices if notice.subject == "data.eval"]
            assert len(notices) == (text is not None)
            assert text is None or notices[0].startswith(text)
