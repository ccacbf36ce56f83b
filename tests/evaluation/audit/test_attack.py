"""Right answers in every format, degenerate ones against them row by row by hand, and what to type against holes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlhf_cli.evaluation.audit.attack import AuditPlan, GoldRow, _best_paid, _danger, attack, compared, main_component
from rlhf_cli.evaluation.audit.audit_result import HINTS, AuditResult, Contribution, KindResult, with_advice
from rlhf_cli.evaluation.audit.degenerate_answers import KINDS, AttackInputs, AttackKind
from rlhf_cli.evaluation.audit.trial import AnswerFormat, ways_to_write
from rlhf_cli.numerics.intervals import wilson
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from tests.support.planted_holes import SUMS


def test_no_degenerate_answer_is_the_right_one() -> None:
    """A text equal to the right answer is not an attack, formatted or not."""
    for gold, others in (("22", ["7", "31"]), ("B", ["A", "C"]), ("the mill is sold", ["a flood came"])):
        for way in ways_to_write(["think", "answer"]):
            common = [*others[0].split(), *gold.split()]
            asked = AttackInputs("What is 15+7?", gold, others, common, [gold, *others], way, ["think", "answer"], 200)
            for kind in KINDS:
                assert {gold, way.write(gold)}.isdisjoint(kind.write(asked)), (kind.name, way.name)


BRACKETS = AnswerFormat("brackets", "[{gold}]")
ASKED = AttackInputs(
    "so is it so", "22", ["7", "31", "5"], ["22", "a"], ["22", "7"], BRACKETS, ["think", "answer"], 100, ["yes", "no"]
)
NINE = [f"[{one}]" for one in ("a", "b", "c", "d", "22", "e", "f", "g", "h")]


@pytest.mark.parametrize(
    ("kind", "changed", "last"),
    [
        ("empty", {}, ("<think></think><answer></answer>", "<think>\n</think>", "[]")),
        ("empty", {"way": AnswerFormat("as it is", "{gold}")}, ("<think>\n</think>", None)),
        ("other_gold", {}, ("[7]",)),
        ("other_gold", {"others": []}, (None,)),
        ("many_answers", {}, ("7, 31, 22, 5", "[7]\n[31]\n[22]\n[5]")),
        ("many_answers", {"others": ["7"]}, ("7, 22, 7", "[7]\n[22]\n[7]")),
        ("many_answers", {"others": "abcdefghij"}, ("a, b, c, d, 22, e, f, g, h", "\n".join(NINE))),
        ("many_answers", {"others": []}, (None, None)),
        ("many_answers", {"gold": None}, (None, None)),
        ("many_answers", {"gold": "import os"}, (None, None)),  # several programs are one
        ("part_of_gold", {"gold": "the mills fell"}, ("[the mil]",)),
        ("part_of_gold", {"gold": "a dog"}, ("[a]",)),
        ("part_of_gold", {"gold": "B"}, (None,)),
        ("part_of_gold", {"gold": "b  "}, (None,)),  # its half is the whole
        ("part_of_gold", {"gold": None}, (None,)),
        ("form_only", {}, ("[...]", "<think>This is the think part.</think><answer>This is the answer part.</answer>")),
        ("repetition", {}, (" ".join(50 * ["a"]), "a", " ".join(50 * ["so"]))),
        ("repetition", {"common": ["22"], "prompt": "?"}, (" ".join(50 * ["the"]), "the", " ".join(50 * ["the"]))),
        ("common_answer", {}, ("[7]",)),
        ("common_answer", {"most_common": ["22"]}, (None,)),
        ("keywords", {}, ("is it so", "yes no")),
        ("keywords", {"reward_words": []}, ("is it so", None)),
    ],
)
def test_degenerate_answers(kind: str, changed: dict[str, Any], last: tuple[str | None, ...]) -> None:
    """The last variants of a kind; None if the row gives nothing to make one from."""
    (write,) = [one.write for one in KINDS if one.name == kind]
    assert write(replace(ASKED, **changed))[-len(last) :] == last


def test_filler_fills_the_limit() -> None:
    (kind,) = [one for one in KINDS if one.is_cut]
    for size in (1, 100, 1000):
        (text,) = kind.write(replace(ASKED, longest_characters=size))
        assert len(text or "") == size


def polite(completions: Sequence[str], **kwargs: object) -> list[float]:
    return [float("please" in text) for text in completions]


def constant(completions: Sequence[str], **kwargs: object) -> list[float]:
    return [0.25] * len(completions)


GROWS = "rewards.polite.weight={start: 3, end: 4, steps: 9}"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("has_right", [True, False])
def test_a_reward_for_words_beside_one_for_the_answer_is_a_hole(has_right: bool) -> None:
    """Being right is worth 1, saying please 3: the word alone beats the right answer, which does not say it.

    Ten formats are tried on 16 of 20 rows, one is taken, and four texts are attacks on each row. Without the reward for
    the answer no format pays more than another, and nothing recognises an answer.
    """
    rewards = [f"rewards.polite={{fn: '{__name__}:polite', weight: 3}}", f"rewards.same.fn={__name__}:constant"]
    rewards += ["rewards.right.fn=tests.support.planted_holes:right_sum"] * has_right
    asked = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment
    kinds = (
        AttackKind("none", "", lambda asked: (None,)),
        AttackKind("wrong", "", lambda asked: ("no", "none")),
        AttackKind("word", "", lambda asked: ("no", "please")),
    )
    found = attack(asked, AuditPlan(2 * SUMS, kinds), left_out={})
    assert [(kind.name, kind.let_in, kind.margin, kind.mean_total) for kind in found.kinds] == [
        ("word", "polite", 3.0 - has_right, 3.25),
        ("wrong", None, -float(has_right), 0.25),
    ]
    scores = {"polite": 0.0, "same": 0.25, **({"right": 1.0} if has_right else {})}
    assert replace(found, kinds=()) == AuditResult(
        **{"rows": 20, "texts": 10 * 16 + 20 + 4 * 20, "gold_source": "column answer", "gold_way": "as it is"},
        **{"gold_text": "22", "gold_total": 0.25 + has_right, "gold_contributions": scores, "gold_raw": scores},
        **{"main": "right" if has_right else None, "num_unrecognised": 0 if has_right else 20},
        **{"unrecognised": not has_right, "blind": ("same",), "kinds": (), "left_out": {}},
    )
    assert (found.holes, found.near, found.is_sound) == ([found.kinds[0]], [], False)
    grows = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards, GROWS]).experiment
    assert attack(grows, AuditPlan(SUMS, kinds), left_out={}).notes == (
        "rewards.polite.weight is that of the first step, 3",
    )
    nothing_tried = attack(asked, AuditPlan(SUMS, kinds[:1]), left_out={})
    assert (nothing_tried.kinds, nothing_tried.num_unrecognised) == ((), 10), "compared with no other answer"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("is_built", [True, False])
def test_what_answers_to_a_row_are_made_of(is_built: bool) -> None:
    """Right answers are compared without case; a token of a model with a vocabulary has four characters."""
    words = ["trainer=grpo", "model=tiny", "data=toy_sums", "trainer.args.max_completion_length=33"]
    asked = prepare([*words, f"rewards.polite.fn={__name__}:polite"]).experiment
    if not is_built:
        asked = asked.model_copy(update={"model": asked.model.model_copy(update={"build": None})})
    answers = ["a red", "So. #### Blue", None, "blue", "a red", "one two three four five"]
    chat = [{"role": "user", "content": "first"}, {"role": "user", "content": "last"}]
    rows = [{"prompt": "text" if place else chat, "answer": answer} for place, answer in enumerate(answers)]
    seen: list[AttackInputs] = []

    def write(inputs: AttackInputs) -> tuple[str]:
        seen.append(inputs)
        return ("please",)

    attack(asked, AuditPlan(rows, (AttackKind("seen", "what was given", write),)), left_out={})
    assert [(one.gold, one.others[:3]) for one in seen] == [
        ("a red", ["Blue", "blue", answers[-1]]),
        ("Blue", ["a red", answers[-1]]),
        (None, ["a red", answers[-1], "Blue"]),
        ("blue", [answers[-1], "a red"]),
        ("a red", ["Blue", "blue", answers[-1]]),
        (answers[-1], ["a red", "Blue", "blue"]),
    ]
    (first, second, *_) = seen
    assert (first.prompt, second.prompt) == ("last", "text")
    assert first.common == ["a", "red", "Blue", "blue", "one", "two", "three", "four"]
    assert first.most_common == ["a red", "Blue", "blue"]
    assert (first.longest_characters, first.reward_words) == (33 if is_built else 4 * 33, ["please"])


KIND = AttackKind("some", "some answer", lambda asked: ("",))


def row(**rewards: float | None) -> ScoredRow:
    """A row whose total is the sum of its rewards; None if one of them is None, which has failed."""
    held = {
        name: ScoredReward(value, value, value, open=True, error="failed" if value is None else None)
        for name, value in rewards.items()
    }
    return ScoredRow(None if None in rewards.values() else sum(rewards.values()), held)


def golds(*rows: ScoredRow, floor: float = 0.0, usual: float = 0.0) -> dict[int, GoldRow]:
    return {number: GoldRow(one, floor, usual) for number, one in enumerate(rows)}


def attacks(*rows: ScoredRow) -> dict[int, tuple[str, ScoredRow]]:
    return {number: (f"text {number}", one) for number, one in enumerate(rows)}


def test_beats_ties_margin_and_who_let_it_in() -> None:
    """Gold gets 1 + 0. 0.5 + 0 loses by 0.5, None loses, 1 + 0 ties, 0 + 2 beats it by 1, let in by b, three times.

    The last gold answer has no total, so no attack is compared with it. Two rows have no gold or no attack at all.
    """
    four = [row(a=0.5, b=0.0), row(a=None, b=0.0), row(a=1.0, b=0.0), row(a=0.0, b=2.0)]
    gold = golds(*[row(a=1.0, b=0.0)] * 12, row(a=None, b=1.0), row(a=0.0, b=9.0))
    del gold[13]
    gold[14] = gold[0]
    assert compared(KIND, attacks(*four, *four, *four, row(a=0.0, b=2.0), row(a=0.0, b=5.0)), gold, main=None) == (
        KindResult(
            **{"name": "some", "caption": "some answer", "text": "text 3", "shown_row": 3, "errors": {"a": "failed"}},
            **{"rows": 13, "beats": 3, "ties": 3, "share": wilson(6, 13), "is_hole": True, "is_near": False},
            **{"mean_total": (3 * (0.5 + 1 + 2) + 2 + 5) / 11, "margin": 3 * (-0.5 + 0 + 1) / 9, "let_in": "b"},
            contributions={"a": Contribution(0.5, 1.0), "b": Contribution(1.0, 0.0)},
        )
    )


def test_who_let_in_what_has_no_gold_answer() -> None:
    """With or without an answer to compare with: of the latter the component that pays most."""
    for paid, best in (
        ({"a": (0.5, 1.0), "b": (0.25, 0.0)}, "b"),
        ({"a": (0.1 + 0.2, None), "b": (0.5, 0.2)}, "b"),  # 0.3 more, up to rounding: the one that pays more at all
        *(({"a": (0.0, -1.0)}, "a"), ({"a": (0.5, 0.5)}, "a")),
        *(({"a": (0.0, 1.0)}, None), ({"a": (0.0, 0.0)}, None)),
    ):
        assert _best_paid({name: Contribution(*pair) for name, pair in paid.items()}) == best, paid


def test_the_worst_kind_is_first() -> None:
    """A hole before what is near, then the share of rows, then the margin; without gold answers the mean total."""
    one = compared(KIND, attacks(row(a=0.5)), golds(row(a=1.0)), main=None)

    def kind(name: str, beats: int, ties: int, margin: float | None, mean: float | None, **named: Any) -> KindResult:
        found = replace(one, name=name, rows=8, beats=beats, ties=ties, margin=margin, mean_total=mean)
        return replace(found, **named)

    kinds = [
        *(kind("f", 0, 1, -0.5, 1.5), kind("e", 0, 1, 0.0, -3.0), kind("g", 0, 0, None, 2.0, rows=0)),
        *(kind("c", 2, 1, -3.0, 5.0, rows=4), kind("d", 1, 2, -4.0, None)),
        *(kind("b", 0, 0, -9.0, -1.0, is_near=True), kind("a", 0, 1, 0.0, 4.0, is_hole=True)),
    ]
    assert [one.name for one in sorted(kinds, key=_danger, reverse=True)] == list("abcdefg")
    without = compared(KIND, attacks(row(a=0.5)), {}, main=None)
    alone = [replace(without, mean_total=mean) for mean in (1.0, None, 2.0)]
    assert [one.mean_total for one in sorted(alone, key=_danger, reverse=True)] == [2.0, 1.0, None]


def nine(one: ScoredRow, gold: ScoredRow, main: str | None = None, **known: float) -> KindResult:
    """Compare nine equal attacks with nine equal gold answers."""
    return compared(KIND, attacks(*[one] * 9), golds(*[gold] * 9, **known), main=main)


def test_large_totals_tie_up_to_their_rounding() -> None:
    """A billionth of the total: 5e-4 of 1e6, not 5e-3; of a total below 1, a billionth itself."""
    for size, difference, ties in [
        (1e6, 5e-4, 9),
        (1e6, 5e-3, 0),
        (0.5, 9e-10, 9),
        (0.5, 2e-9, 0),
        (1.0, -1e-9, 9),
        (1.0, 1e-9, 9),
    ]:
        assert nine(row(a=size - difference), row(a=size)).ties == ties


def test_few_rows_are_no_proof() -> None:
    """3 of 10 tie, more than a fifth, and the interval begins at 10.8 %, below it. 5 of 10: at 23.7 %, above."""
    for ties, low, is_hole in ((3, 0.1078, False), (5, 0.2366, True)):
        tying = attacks(*[row(a=float(number < ties)) for number in range(10)])
        found = compared(KIND, tying, golds(*[row(a=1.0)] * 10), main=None)
        assert (found.share.low, found.is_hole) == (pytest.approx(low, abs=1e-4), is_hole)


def test_an_unrecognised_gold_answer_can_be_beaten_but_not_tied() -> None:
    tied, beaten = (nine(row(a=paid), row(a=0.5), floor=0.5) for paid in (0.5, 0.6))
    level = nine(row(a=0.5), row(a=0.5), floor=0.5, usual=0.5)
    assert (tied.ties, tied.is_hole, level.is_near, beaten.beats, beaten.is_hole) == (0, False, False, 9, True)


def test_the_variant_that_comes_near_is_shown_before_one_that_is_paid_more() -> None:
    """Short and wrong loses 1; a list of guesses loses 1.5, and gets the main component's reward of the gold answer."""
    variants = row(a=0.0, b=1.0), row(a=1.0, b=-0.5)
    short, guesses = (nine(one, row(a=1.0, b=1.0), "a", floor=0.0, usual=0.2) for one in variants)
    assert (short.is_near, guesses.is_near, short.margin, guesses.margin) == (False, True, -1.0, -1.5)
    assert max(short, guesses, key=_danger) is guesses


def test_all_that_the_main_reward_gives_is_near() -> None:
    """Rows 2 to 8: 1 - 5 is far from gold's 1 + 0, and a is fooled all the same; with b for the main one it is not.

    Four fifths of the way from -1 to 1 are 0.6: row 0 has less, row 1 has more, and is shown if no row is worse.
    """
    gold = golds(*[row(a=1.0, b=0.0)] * 9, floor=-9.0, usual=-1.0)
    rows = attacks(row(a=0.5, b=0.0), row(a=0.5, b=0.2), *[row(a=1.0, b=-5.0)] * 7)
    found, other = (compared(KIND, rows, gold, main=main) for main in "ab")
    assert (found.is_hole, found.is_near, found.let_in, found.text) == (False, True, "a", "text 2")
    assert found.contributions == {"a": Contribution(1.0, 1.0), "b": Contribution(-5.0, 0.0)}
    assert (other.is_near, other.let_in, other.text) == (False, None, "text 1")


@pytest.mark.parametrize(("total", "is_near", "let_in"), [(0.81, True, "a"), (0.79, False, None)])
def test_an_answer_is_near_from_four_fifths_of_the_gap(total: float, is_near: bool, let_in: str | None) -> None:
    found = nine(row(a=total), row(a=1.0), floor=-9.0, usual=0.0)
    assert (found.is_near, found.let_in) == (is_near, let_in)


def test_the_main_reward_is_the_one_that_the_fewest_reach() -> None:
    """b pays gold more than the usual answer, but two of three reach it; of a one does. Of equals the larger gain."""
    gold = {0: row(a=1.0, b=5.0)}
    tried = [(0, row(a=a, b=b)) for a, b in ((0.0, 5.0), (0.0, 6.0), (1.0, 0.0), (0.0, 0.0))]
    assert (main_component(gold, tried, ["a", "b"]), main_component(gold, tried, ["b"])) == ("a", "b")
    assert main_component(gold, [(0, gold[0])], ["a", "b"]) is main_component({}, [], []) is None
    assert main_component({0: row(a=1.0, b=2.0)}, [(0, row(a=0.0, b=0.0))], ["a", "b"]) == "b"


def test_a_form_reward_is_not_the_main_one_beside_a_reward_that_knows_the_answer() -> None:
    """Most attacks get all of a and 0 of b; the right answer to another row gets all of b and 0 of a."""
    gold, other = {0: row(a=1.0, b=0.5)}, [(0, row(a=0.0, b=0.5))]
    tried = [(0, row(a=1.0, b=0.0)), (0, row(a=1.0, b=0.0)), *other]
    assert main_component(gold, tried, ["a", "b"], others=other) == "a"
    assert main_component(gold, tried, ["a", "b"]) == "b"
    assert main_component(gold, tried, ["b"], others=other) == "b"


FN = "rlhf_cli.rewards"
RIGHT = "rewards.right.fn=tests.support.planted_holes:right_sum"
SHORT = "rewards.short.fn=tests.support.planted_holes:brevity"
LAX = f"rewards.short={{fn: '{FN}.numeric:numeric_answer', args: {{tolerance: 1000}}}}"
NEW = "primary={by: right, at_least: 1.0}"
CITY = {"gold_source": "column city", "gold_text": "22 <answer>Paris</answer>"}


@pytest.mark.parametrize(
    ("rewards", "changes", "words"),
    [
        ([RIGHT, SHORT], {}, ("rewards.short.gate={by: right, at_least: 0.125}",)),
        ([RIGHT, SHORT, "rewards.short.gate={by: right, at_least: 1}"], {}, ()),
        ([RIGHT, SHORT], {"gold_raw": {"right": None}}, ()),
        ([RIGHT, SHORT], {"main": None}, ()),
        ([RIGHT, SHORT], {"main": "short"}, (f"rewards.short.fn={FN}.numeric:numeric_answer",)),
        ([SHORT], {"main": "short", **CITY}, ("data.rename.answer=city", f"rewards.short.fn={FN}.match:exact_match")),
        ([RIGHT, SHORT], {"main": "short", "gold_source": "--gold '{a}'"}, ()),
        # A reward is not told to be what it is.
        ([LAX], {"main": "short"}, ("reward@rewards.right=numeric_answer", NEW)),
        ([LAX, RIGHT], {"main": "short"}, ()),
        (["rewards.short.model=x"], {"main": "short"}, ("reward@rewards.right=numeric_answer", NEW)),
        ([SHORT], {"main": None, **CITY}, ("data.rename.answer=city", "reward@rewards.right=exact_match", NEW)),
        ([SHORT], {"main": None, "gold_source": None, "gold_text": None}, ()),
        ([RIGHT], {}, ()),  # what a truncation policy pays is no reward
    ],
)
@pytest.mark.usefixtures("place")
def test_what_to_type(rewards: list[str], changes: dict[str, Any], words: tuple[str, ...]) -> None:
    """A gate by the reward that knows the answer; if that one is fooled itself, one that reads the answer."""
    hole = replace(compared(KIND, attacks(row(a=0.5)), golds(row(a=1.0)), main=None), let_in="short")
    kinds = (
        replace(hole, name="opener", is_near=True),
        replace(hole, name="longest"),
        replace(hole, name="keywords", is_hole=True, let_in=None),
        replace(hole, name="empty", is_hole=True),
    )
    found = AuditResult(
        **{"rows": 1, "texts": 1, "gold_source": "column answer", "gold_way": "", "gold_text": "<answer>22</answer>."},
        **{"gold_total": 1.0, "gold_contributions": {}, "gold_raw": {"right": 0.125, "short": 0.5}, "main": "right"},
        **{"num_unrecognised": 0, "unrecognised": False, "blind": (), "kinds": kinds, "left_out": {}},
    )
    asked = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment
    (advice,) = with_advice(replace(found, **changes), asked).advice
    assert (advice.kinds, advice.words, advice.reason == HINTS["empty"]) == (("empty", "opener"), words, words == ())
