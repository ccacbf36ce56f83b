"""Right answers in every format, degenerate ones against them row by row by hand, and what to type against holes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import DataError
from rlhf_cli.evaluation.audit.attack import AuditPlan, GoldRow, attack, compared, main_component
from rlhf_cli.evaluation.audit.audit_result import AuditResult, with_advice
from rlhf_cli.evaluation.audit.degenerate_answers import KINDS, AttackInputs, AttackKind
from rlhf_cli.evaluation.audit.trial import AnswerFormat, answer_of, find_gold, open_trial, reward_words, ways_to_write
from rlhf_cli.numerics.intervals import wilson
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from tests.support.planted_holes import SUMS


def test_the_column_that_a_reward_reads_comes_first() -> None:
    rows = [{"prompt": "p", "answer": "a", "target": "t"}]
    found = [find_gold(rows, required, named=None) for required in ([], ["target"])]
    assert [one.answers if one else None for one in found] == [["a"], ["t"]]
    assert find_gold([{"prompt": "p", "score": 1}], [], named=None) is None


def test_the_only_column_that_rewards_read_is_the_gold_column() -> None:
    rows: list[dict[str, object]] = [{"prompt": "p", "city": "Riga", "country": "Latvia", "a": 1}]
    found = [find_gold(rows, required, named=None) for required in (["city"], ["city", "country"], ["a"], ["prompt"])]
    assert [one.answers if one else None for one in found] == [["Riga"], None, None, None]


def test_a_named_column_and_a_template() -> None:
    rows: list[dict[str, object]] = [{"a": 1, "b": 2}, {"a": None, "b": 3}]
    named, filled = find_gold(rows, [], named="b"), find_gold(rows, [], named="{a} of {b}")
    assert [one.answers if one else None for one in (named, filled)] == [["2", "3"], ["1 of 2", None]]
    with pytest.raises(DataError):
        find_gold(rows, [], named="c")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (" yes ", "yes"),
        (["first", "second"], "first"),
        ([{"role": "user", "content": "?"}, {"role": "assistant", "content": "good"}], "good"),
        (None, None),
        (True, None),
        ("", None),
        ({"a": 1}, None),
    ],
)
def test_what_a_right_answer_may_be(value: object, text: str | None) -> None:
    assert answer_of(value) == text


def test_no_degenerate_answer_is_the_right_one() -> None:
    """A text equal to the right answer is not an attack, formatted or not."""
    for gold, others in (("22", ["7", "31"]), ("B", ["A", "C"]), ("the mill is sold", ["a flood came"])):
        for way in ways_to_write(["think", "answer"]):
            common = [*others[0].split(), *gold.split()]
            asked = AttackInputs(
                "What is 15 + 7?", gold, others, common, [gold, *others], way, ["think", "answer"], 200
            )
            for kind in KINDS:
                assert {gold, way.write(gold)}.isdisjoint(kind.write(asked)), (kind.name, way.name)


BRACKETS = AnswerFormat("brackets", "[{gold}]")
ASKED = AttackInputs(
    "so is it so", "22", ["7", "31", "5"], ["22", "a"], ["22", "7"], BRACKETS, ["think", "answer"], 100, ["yes", "no"]
)


@pytest.mark.parametrize(
    ("kind", "changed", "last"),
    [
        ("empty", {}, ("<think></think><answer></answer>", "<think>\n</think>", "[]")),
        ("empty", {"way": AnswerFormat("as it is", "{gold}")}, ("<think>\n</think>", None)),
        ("other_gold", {}, ("[7]",)),
        ("other_gold", {"others": []}, (None,)),
        ("many_answers", {}, ("7, 31, 22, 5", "[7]\n[31]\n[22]\n[5]")),
        ("many_answers", {"others": ["7"]}, ("7, 22, 7", "[7]\n[22]\n[7]")),
        (
            *("many_answers", {"others": "abcdefghij"}),
            ("a, b, c, d, 22, e, f, g, h", "[a]\n[b]\n[c]\n[d]\n[22]\n[e]\n[f]\n[g]\n[h]"),
        ),
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


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_filler_fills_the_limit(size: int) -> None:
    (kind,) = [one for one in KINDS if one.is_cut]
    (text,) = kind.write(replace(ASKED, longest_characters=size))
    assert text is not None
    assert len(text) == size


POLITE = ("please", "thank you")


def polite(completions: Sequence[str], **kwargs: object) -> list[float]:
    """This docstring is no word that it looks for."""
    return [float(_has(text) or "kindly" in text) for text in completions]


def _has(text: str) -> bool:
    return any(word in text for word in POLITE)


def matching(completions: Sequence[str], *, phrases: Sequence[str], pattern: str = r"\\d+") -> list[float]:
    return [float(all(phrase in text for phrase in phrases)) for text in completions]


def test_constants_globals_and_arguments() -> None:
    assert set(reward_words([polite])) == {"please", "thank you", "kindly"}
    assert reward_words([functools.partial(matching, phrases=["as asked", r"\\d{3}", "<tag>"])]) == ["as asked"]
    assert reward_words([len]) == []


@pytest.mark.usefixtures("place")
def test_a_reward_for_words_beside_one_for_the_answer_is_a_hole() -> None:
    """Being right is worth 1, saying please 3: the word alone beats the right answer, which does not say it."""
    rewards = [
        "rewards.right.fn=tests.support.planted_holes:right_sum",
        f"rewards.polite={{fn: '{__name__}:polite', weight: 3}}",
    ]
    experiment = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment
    found = attack(experiment, AuditPlan(SUMS), left_out={})
    assert [(kind.name, kind.let_in) for kind in found.holes] == [("keywords", "polite")]
    assert found.kinds[0].margin == 3.0 - 1.0


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
    assert first.longest_characters == (33 if is_built else 4 * 33)
    assert set(first.reward_words) == {"please", "thank you", "kindly"}


@pytest.mark.usefixtures("place")
def test_rewards_that_are_skipped_and_what_others_lose_by_it() -> None:
    second = (
        f"{{fn: '{__name__}:polite', normalize: batch, gate: [{{by: first, at_least: 1}}, {{by: third, at_least: 1}}]}}"
    )
    rewards = [f"rewards.first.fn={__name__}:polite", f"rewards.second={second}"]
    rewards += [f"rewards.third={{fn: '{__name__}:polite', on_error: 0.5}}"]
    asked = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment
    with open_trial(asked, SUMS, left_out={"first": "no server"}, gold=None) as trial:
        second_tried, third = trial.experiment.rewards.values()
        assert (second_tried.on_error, second_tried.normalize) == ("exclude", "none")
        assert [gate.by for gate in second_tried.gates] == ["third"]
        assert third == asked.rewards["third"]
        assert len(trial.notes) == 2


KIND = AttackKind("some", "some answer", lambda asked: ("",))


def row(**rewards: float | None) -> ScoredRow:
    """A row whose total is the sum of its rewards; None if one of them is None."""
    held = {
        name: ScoredReward(raw=value, effective=value, weighted=value, open=True, error=None)
        for name, value in rewards.items()
    }
    values = list(rewards.values())
    return ScoredRow(None if None in values else sum(value or 0.0 for value in values), held)


def golds(*rows: ScoredRow, floor: float = 0.0, usual: float = 0.0) -> dict[int, GoldRow]:
    return {number: GoldRow(one, floor, usual) for number, one in enumerate(rows)}


def attacks(*rows: ScoredRow) -> dict[int, tuple[str, ScoredRow]]:
    return {number: (f"text {number}", one) for number, one in enumerate(rows)}


def test_beats_ties_margin_and_who_let_it_in() -> None:
    """Gold gets 1 + 0 everywhere. 0 + 2 beats it by 1, let in by b; 1 + 0 ties; 0.5 + 0 loses by 0.5; None loses."""
    gold = golds(*[row(a=1.0, b=0.0)] * 8)
    four = [row(a=0.0, b=2.0), row(a=1.0, b=0.0), row(a=0.5, b=0.0), row(a=None, b=0.0)]
    found = compared(KIND, attacks(*four, *four), gold, main=None)
    assert (found.rows, found.beats, found.ties) == (8, 2, 2)
    assert found.margin == pytest.approx((1.0 + 0.0 - 0.5) / 3)
    assert found.share == wilson(4, 8)
    assert (found.is_hole, found.let_in, found.text) == (True, "b", "text 0")
    assert (found.contributions["a"].attack, found.contributions["b"].attack) == (0.5, 1.0)


def test_large_totals_tie_up_to_their_rounding() -> None:
    """A billionth of the total: 5e-4 of 1e6, not 5e-3; of a total below 1, a billionth itself."""
    for size, difference, ties in [(1e6, 5e-4, 9), (1e6, 5e-3, 0), (0.5, 9e-10, 9), (0.5, 2e-9, 0)]:
        below = attacks(*[row(a=size - difference)] * 9)
        assert compared(KIND, below, golds(*[row(a=size)] * 9), main=None).ties == ties


def test_few_rows_are_no_proof() -> None:
    """3 of 10 tie, more than a fifth, and the interval begins at 10.8 %, below it. 5 of 10: at 23.7 %, above."""
    gold = golds(*[row(a=1.0)] * 10)
    some = [compared(KIND, _tying(ties), gold, main=None) for ties in (3, 5)]
    assert [one.share.low for one in some] == pytest.approx([0.1078, 0.2366], abs=1e-4)
    assert [one.is_hole for one in some] == [False, True]


def _tying(ties: int) -> dict[int, tuple[str, ScoredRow]]:
    return attacks(*[row(a=float(number < ties)) for number in range(10)])


def test_an_unrecognised_gold_answer_can_be_beaten_but_not_tied() -> None:
    gold = golds(*[row(a=0.5)] * 9, floor=0.5)
    tied = compared(KIND, attacks(*[row(a=0.5)] * 9), gold, main=None)
    beaten = compared(KIND, attacks(*[row(a=0.6)] * 9), gold, main=None)
    level = compared(KIND, attacks(*[row(a=0.5)] * 9), golds(*[row(a=0.5)] * 9, floor=0.5, usual=0.5), main=None)
    assert (tied.ties, tied.is_hole, level.is_near) == (0, False, False)
    assert (beaten.beats, beaten.is_hole) == (9, True)


def test_all_that_the_main_reward_gives_is_near() -> None:
    """1 - 5 is far from gold's 1 + 0, and a is fooled all the same; with b for the main one it is not."""
    gold = golds(*[row(a=1.0, b=0.0)] * 9, floor=-9.0, usual=-1.0)
    found = compared(KIND, attacks(*[row(a=1.0, b=-5.0)] * 9), gold, main="a")
    assert (found.is_hole, found.is_near, found.let_in) == (False, True, "a")
    assert not compared(KIND, attacks(*[row(a=1.0, b=-5.0)] * 9), gold, main="b").is_near


@pytest.mark.parametrize(("total", "is_near"), [(0.81, True), (0.79, False)])
def test_an_answer_is_near_from_four_fifths_of_the_gap(total: float, is_near: bool) -> None:
    gold = golds(*[row(a=1.0)] * 9, floor=-9.0, usual=0.0)
    assert compared(KIND, attacks(*[row(a=total)] * 9), gold, main=None).is_near is is_near


def test_the_main_reward_is_the_one_that_the_fewest_reach() -> None:
    """b gives gold more beyond the usual answer, but two of three answers get as much of it; of a one does."""
    gold = {0: row(a=1.0, b=5.0)}
    others = [(0, row(a=0.0, b=5.0)), (0, row(a=0.0, b=6.0)), (0, row(a=1.0, b=0.0)), (0, row(a=0.0, b=0.0))]
    assert main_component(gold, others, ["a", "b"]) == "a"
    assert main_component(gold, others, ["b"]) == "b"
    assert main_component(gold, [(0, row(a=1.0, b=5.0))], ["a", "b"]) is None
    assert main_component({}, [], []) is None


def test_a_form_reward_is_not_the_main_one_beside_a_reward_that_knows_the_answer() -> None:
    """Most attacks get all of a and 0 of b; the right answer to another row gets all of b and 0 of a."""
    gold = {0: row(a=1.0, b=0.5)}
    hacked = [(0, row(a=1.0, b=0.0)), (0, row(a=1.0, b=0.0))]
    other = [(0, row(a=0.0, b=0.5))]
    assert main_component(gold, [*hacked, *other], ["a", "b"], others=other) == "a"
    assert main_component(gold, [*hacked, *other], ["a", "b"]) == "b"
    assert main_component(gold, [*hacked, *other], ["b"], others=other) == "b"


HOLES = "tests.support.planted_holes"
pytestmark = pytest.mark.usefixtures("place")


def experiment() -> Experiment:
    """Brevity pays more for nothing than the right answer gets: an empty answer beats it."""
    rewards = [f"rewards.right={{fn: '{HOLES}:right_sum', weight: 0.3}}", f"rewards.short.fn={HOLES}:brevity"]
    return prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment


def audit() -> AuditResult:
    return attack(experiment(), AuditPlan(SUMS), left_out={})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ("rewards.short.gate={by: right, at_least: 1}",)),
        ({"main": "short"}, ("rewards.short.fn=rlhf_cli.rewards.numeric:numeric_answer",)),
        (
            {"main": "short", "gold_source": "column city", "gold_text": "<answer>Paris</answer>"},
            ("data.rename.answer=city", "rewards.short.fn=rlhf_cli.rewards.match:exact_match"),
        ),
        ({"main": None}, ()),
    ],
)
def test_what_to_type(changes: dict[str, str | None], words: tuple[str, ...]) -> None:
    """A gate by the reward that knows the answer; if that one is fooled itself, one that reads the answer."""
    (advice,) = with_advice(replace(audit(), **changes), experiment()).advice
    assert advice.words == words


def test_a_reward_is_not_told_to_be_what_it_is() -> None:
    rewards = ["rewards.short={fn: 'rlhf_cli.rewards.numeric:numeric_answer', args: {tolerance: 1000}}"]
    lax = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment
    (advice,) = with_advice(replace(audit(), main="short"), lax).advice
    assert advice.words == ("reward@rewards.right=numeric_answer", "primary={by: right, at_least: 1.0}")
