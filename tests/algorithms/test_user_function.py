"""The function in `advantages.fn`: what it is given, what it may return, and where each mistake is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf_cli.algorithms.own_advantages import OwnAdvantages
from rlhf_cli.algorithms.user_function import AdvantageFunction, Answer, example_round
from rlhf_cli.errors import ConfigError, Problems, RewardError, RewardFailed
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.algorithm import algorithm_of
from tests.support.settled_columns import NAN, Case, Rule, column

SOURCE = """
import numpy as np

SEEN = {}

def sees(totals, rewards, weights, groups, counted, lengths, step, scale=1.0):
    SEEN.update(locals())
    return scale * np.nan_to_num(totals)

def tokens(totals, lengths):
    return [[total] * n for total, n in zip(totals, lengths)]

def wide(totals, rewards, lengths, after=1.0):
    is_token = np.arange(4) < lengths[:, None]
    return np.where(is_token, totals[:, None], after), {"a": np.where(is_token, rewards["a"][:, None], 0)}

def parts(totals, rewards, off=0.0, scale=1.0):
    return totals * scale, {name: values * scale + off for name, values in rewards.items()}

def zeros(totals, rewards):
    return totals * 0, {name: values * 0 for name, values in rewards.items()}

def unknown_part(totals):
    return totals, {"absent": totals}

def short(totals):
    return totals[1:]

def nothing(totals):
    pass

def narrow(totals, lengths):
    return np.zeros((len(totals), max(lengths) - 1))

def infinite(totals):
    return np.full_like(totals, np.inf)

def one_infinite(totals, lengths):
    found = [[1.0] * max(lengths) for _ in totals]
    found[2][1] = np.inf
    return found

def raises(totals):
    raise ValueError("odd")

def words(totals):
    return ["many"] * len(totals)

def no_scores(groups):
    return groups

def needs(totals, threshold):
    return totals

def any_words(totals, **words):
    return totals * words["scale"]
"""


@pytest.fixture
def mine(place: Path) -> Path:
    (place / "mine.py").write_text(SOURCE)
    return place / "mine.py"


def call(name: str, **args: object) -> Answer:
    return AdvantageFunction(f"./mine.py:{name}", args)(example_round(4, {"a": 1.0}))


def test_it_gets_what_it_names(mine: Path) -> None:
    function = AdvantageFunction("./mine.py:sees", {"scale": 2.0})
    answer = function(example_round(4, {"a": 0.5, "b": 0.5}))
    seen = function.function.func.__globals__["SEEN"]
    assert seen["groups"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [np.isnan(seen[name]).tolist() for name in ("totals", "counted")] == [[False] * 7 + [True], [False] * 8]
    assert answer.by_row.tolist() == answer.advantages.tolist() == [0, 2, 0, 2, 0, 2, 0, 0]
    assert not answer.is_by_token
    assert call("any_words", scale=2.0).by_row.tolist() == answer.by_row.tolist()


def test_advantages_of_tokens(mine: Path) -> None:
    """Lengths 1, 2, 3, 1, ...: rows are padded, a row without a total gets 0, and a row's own is the mean."""
    answer = call("tokens")
    assert answer.is_by_token
    assert answer.advantages[:4].tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert answer.advantages[7].tolist() == [0, 0, 0]
    assert answer.by_row.tolist() == [0, 1, 0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("after", [1.0, float("nan")])
def test_what_a_wide_array_holds_after_a_row_counts_nowhere(mine: Path, after: float) -> None:
    """Not in a row's mean, and not in the sum of the parts, which would not add up."""
    answer, narrow = call("wide", after=after), call("tokens")
    assert answer.advantages[:, :3].tolist() == narrow.advantages.tolist()
    assert answer.by_row.tolist() == narrow.by_row.tolist()
    assert list(answer.parts) == ["a"]


def test_a_round_whose_answers_have_no_tokens(mine: Path) -> None:
    given = example_round(4, {"a": 1.0})
    answer = AdvantageFunction("./mine.py:tokens", {})(replace(given, lengths=np.zeros_like(given.lengths)))
    assert answer.by_row.tolist() == [0] * 8


def test_parts_count_only_if_they_add_up(mine: Path) -> None:
    assert list(call("parts").parts) == list(call("parts", off=1e-9).parts) == list(call("zeros").parts) == ["a"]
    wrong = call("parts", off=1e-5)
    assert (wrong.parts, wrong.gave_parts) == ({}, True)
    assert call("parts", off=1e-9, scale=1e-6).parts == {}  # judged by the size of the advantages
    assert not call("sees").gave_parts


@pytest.mark.parametrize(
    ("name", "args", "where", "hint"),
    [
        ("needs", {}, "fn", "advantages.args.threshold=VALUE"),
        ("sees", {"scal": 1}, "args.scal", "advantages.args.scale=1"),
        ("sees", {"totals": 1}, "args.totals", "'~advantages.args.totals'"),
        *((name, {}, "fn", None) for name in ("no_scores", "short", "nothing", "narrow", "unknown_part")),
    ],
)
def test_mistakes(mine: Path, name: str, args: dict[str, object], where: str, hint: str | None) -> None:
    with pytest.raises(RewardError) as caught:
        call(name, **args)
    assert (caught.value.where, caught.value.hint) == (f"advantages.{where}", hint)


def test_functions_that_fail_and_the_first_row_that_is_not_finite_are_named(mine: Path) -> None:
    """Of `one_infinite` only the second token of row 2 is infinite."""
    named = (("raises", RewardFailed, "odd"), ("words", RewardFailed, "many"), ("absent", RewardError, "absent"))
    infinite = (("infinite", RewardError, "for row 0,"), ("one_infinite", RewardError, "for row 2,"))
    for name, error, got in (*named, *infinite):
        with pytest.raises(error) as caught:
            call(name)
        assert caught.value.where == "advantages.fn"
        assert got in f"{caught.value.what} {caught.value.got}"


def test_a_settled_round_as_the_function_sees_it(mine: Path) -> None:
    """Rewards a = 1, 2, -, -, b = 4, -, 6, - with weights 0.5 and 2 in groups of 2: totals 8.5, 1, 12 and none."""
    raw = [column(1, 2, NAN, NAN), column(4, NAN, 6, NAN)]
    settled = Case(raw, [Rule("a"), Rule("b")], [0.5, 2.0], num_generations=2, fill="zero").settle()
    function = AdvantageFunction("./mine.py:sees", {})
    answer = OwnAdvantages(function).answer(settled, torch.tensor([3, 1, 2, 4]), 2, 7)
    seen = function.function.func.__globals__["SEEN"]
    np.testing.assert_equal(seen["totals"], [8.5, 1.0, 12.0, NAN])
    np.testing.assert_equal(seen["rewards"], {"a": np.array([1, 2, NAN, NAN]), "b": np.array([4, NAN, 6, NAN])})
    assert (seen["weights"], seen["step"]) == ({"a": 0.5, "b": 2.0}, 7)
    assert seen["counted"].tolist() == [True, True, True, False]
    assert (seen["groups"].tolist(), seen["lengths"].tolist()) == ([0, 0, 1, 1], [3, 1, 2, 4])
    assert answer.advantages.tolist() == [8.5, 1.0, 12.0, 0.0]


def test_a_loss_of_rows_takes_no_advantages_of_tokens(mine: Path) -> None:
    settled, lengths = Case([column(1, 2)], [Rule("a")], [1.0], num_generations=2).settle(), torch.tensor([1, 2])
    function = AdvantageFunction("./mine.py:tokens", {})
    assert OwnAdvantages(function).answer(settled, lengths, 2, 0).by_row.tolist() == [1, 2]
    with pytest.raises(RewardError) as caught:
        OwnAdvantages(function, "the loss takes one a row").answer(settled, lengths, 2, 0)
    assert caught.value.where == "advantages.fn"


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["trainer=dpo", "data=toy_preferences"], "advantages"),
        (["trainer=ppo"], "advantages"),
        (["trainer.dense=true"], "trainer.dense"),
        (["aggregate=normalize_then_sum"], "aggregate"),
        (["trainer.args.scale_rewards=none"], "trainer.args.scale_rewards"),
        (["trainer=rloo"], "trainer.args.beta"),
        (["trainer=rloo", "trainer.args.normalize_advantages=true"], "trainer.args.normalize_advantages"),
    ],
)
def test_settings_that_need_another_formula_are_refused(place: Path, words: list[str], where: str) -> None:
    with pytest.raises((ConfigError, Problems)) as caught:
        prepare(["+exp=quickstart", "advantages=maxrl", *words])
    problems = caught.value.problems if isinstance(caught.value, Problems) else [caught.value]
    assert any(problem.where.startswith(f"{where} (") or problem.where == where for problem in problems)


def test_only_a_choice_of_the_group_is_taken_back(place: Path) -> None:
    """`~advantages` left a function that was written out, and the same command was refused again."""
    words = ["+exp=quickstart", "aggregate=normalize_then_sum"]
    chosen, written = "advantages=maxrl", "advantages.fn=rlhf_cli.algorithms.published:maxrl"
    for more, hint, has_advice in (
        ([chosen], "aggregate=sum, or '~advantages'", False),
        *((more, "aggregate=sum", True) for more in ([written], [written, "~advantages"])),
    ):
        with pytest.raises(ConfigError) as caught:
            prepare([*words, *more])
        assert (caught.value.hint, caught.value.advice is not None) == (hint, has_advice)
    assert prepare([*words, chosen, "~advantages"]).experiment.advantages is None


def test_rloo_without_a_kl_takes_a_function(place: Path) -> None:
    experiment = prepare(["+exp=quickstart", "advantages=pass_at_k", "trainer=rloo", "trainer.args.beta=0"]).experiment
    assert isinstance(algorithm_of(experiment), OwnAdvantages)
