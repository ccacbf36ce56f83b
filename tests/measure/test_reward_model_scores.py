"""`rlhf eval` of a reward model whose scores are known, against figures worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlhf_cli.errors import DataError
from rlhf_cli.measure.preference_pairs import pairs_of
from rlhf_cli.measure.reward_model_scores import evaluate_reward_model
from rlhf_cli.measure.rewardbench import SECTIONS, sections
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from tests.support.golden_reward_model import save_golden_reward_model
from tests.support.tolerances import MODEL

LOG3 = math.log(3)  # sigmoid(log 3) = 3/4
SCORES = {"x": LOG3, "y": 0.0, "z": -LOG3}


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> RewardModelScorer:
    folder = tmp_path_factory.mktemp("golden")
    save_golden_reward_model(folder, SCORES)
    return RewardModelScorer(str(folder), batch_size=3)


def pair(chosen: str, rejected: str, **columns: Any) -> dict[str, Any]:
    return {"prompt": "q:", "chosen": chosen, "rejected": rejected, **columns}


ROWS = [
    pair("ax", "y", kind="a", score_chosen=3.0, score_rejected=1.0),  # d = log 3, one token longer
    pair("x", "bby", kind="a", score_chosen=5.0, score_rejected=1.0),  # d = log 3, two shorter
    pair("y", "x", kind="b", score_chosen=1.0, score_rejected=0.5),  # d = -log 3, as long
    pair("x", "ccz", kind="b", score_chosen=9.0, score_rejected=1.0),  # d = 2 log 3, two shorter
]


def test_the_golden_model_scores_as_it_should(scorer: RewardModelScorer) -> None:
    scores, lengths = scorer.scored(["q:"] * 4, ["ax", "y", "bbz", "?"])
    assert scores == pytest.approx([LOG3, 0.0, -LOG3, 0.0], **MODEL)
    assert lengths == [4, 3, 5, 3]
    assert scorer.scored(["q:"], ["x"], with_eos=True) == ([pytest.approx(0.0)], [4])


def test_by_hand(scorer: RewardModelScorer) -> None:
    found = evaluate_reward_model(scorer, ROWS, slices=["kind"])
    # Three of four are right; the bounds are those of Wilson's published formula.
    assert (found["rows"], found["accuracy"]["mean"], found["ties"]) == (4, 0.75, 0)
    assert found["accuracy"]["low"] == pytest.approx(0.3006, abs=1e-4)
    assert found["accuracy"]["high"] == pytest.approx(0.9544, abs=1e-4)
    assert {name: one["mean"] for name, one in found["slices"]["kind"].items()} == {"a": 1.0, "b": 0.5}
    # Confidence 3/4 three times with two right, and 9/10 once, right: 3/4 |2/3 - 3/4| + 1/4 |1 - 9/10|.
    calibration = found["calibration"]
    assert calibration["ece"] == pytest.approx(3 / 4 * (1 / 12) + 1 / 4 * 0.1, **MODEL)
    assert calibration["brier"] == pytest.approx((2 * 0.25**2 + 0.75**2 + 0.1**2) / 4, **MODEL)
    assert calibration["log_loss"] == pytest.approx(-(2 * math.log(0.75) + math.log(0.25) + math.log(0.9)) / 4, **MODEL)
    # Rewards log 3 times (1, 0), (1, 0), (0, 1), (1, -1): mean 3/8, margin 3/4.
    rewards = found["rewards"]
    assert rewards["mean"]["mean"] == pytest.approx(LOG3 * 3 / 8, **MODEL)
    assert rewards["margin"]["mean"] == pytest.approx(LOG3 * 3 / 4, **MODEL)
    assert rewards["deviation"] == pytest.approx(LOG3 * math.sqrt((5 - 8 * (3 / 8) ** 2) / 7), **MODEL)
    assert found["truncated"] == 0


def test_length_bias_by_hand(scorer: RewardModelScorer) -> None:
    length = evaluate_reward_model(scorer, ROWS)["length"]
    assert length["chosen_longer"]["mean"] == 1.0
    assert length["same"]["mean"] == 0.0
    assert (length["chosen_shorter"]["mean"], length["chosen_shorter"]["count"]) == (1.0, 2)
    # x = 1, 1, -1, 2 (in log 3), y = 1, -2, 0, -2: means 3/4 and -3/4.
    covariance = (0.25 * 1.75) + (0.25 * -1.25) + (-1.75 * 0.75) + (1.25 * -1.25)
    by_hand = covariance / math.sqrt((2 * 0.25**2 + 1.75**2 + 1.25**2) * (1.75**2 + 2 * 1.25**2 + 0.75**2))
    assert length["pearson"] == pytest.approx(by_hand, **MODEL)
    assert length["longer_wins"]["mean"] == (1 + 0 + 0.5 + 0) / 4


def test_margin_agreement_by_hand(scorer: RewardModelScorer) -> None:
    """Ranks of d: 2.5, 2.5, 1, 4; of the margins 2, 4, 0.5, 8: 2, 3, 1, 4."""
    margins = evaluate_reward_model(scorer, ROWS)["margins"]
    assert margins["spearman"] == pytest.approx(4.5 / math.sqrt(4.5 * 5), **MODEL)
    assert sum(one["count"] for one in margins["bins"]) == 4
    assert evaluate_reward_model(scorer, [pair("x", "y"), pair("x", "z")])["margins"] is None
    column = [pair("x", "y", margin=1), pair("x", "z", margin=2)]
    assert evaluate_reward_model(scorer, column)["margins"]["spearman"] == pytest.approx(1.0)
    named = [pair("x", "y", good=4, bad=1, margin=9), pair("x", "z", good=2, bad=1, margin=10)]
    assert evaluate_reward_model(scorer, named, margin=["good", "bad"])["margins"]["spearman"] == pytest.approx(-1.0)


def test_the_worst_are_the_surest_of_the_wrong_ones(scorer: RewardModelScorer) -> None:
    rows = [pair("y", "x"), pair("x", "z"), pair("z", "x"), pair("y", "y")]
    worst = evaluate_reward_model(scorer, rows)["worst"]
    assert [one["row"] for one in worst] == [2, 0]
    assert [one["confidence"] for one in worst] == pytest.approx([0.9, 0.75], **MODEL)


def test_a_tie_is_no_success_and_half_a_verdict(scorer: RewardModelScorer) -> None:
    found = evaluate_reward_model(scorer, [pair("y", "y"), pair("x", "x")])
    assert (found["accuracy"]["mean"], found["ties"]) == (0.0, 2)
    assert found["calibration"]["ece"] == pytest.approx(0.0)
    assert found["length"]["pearson"] is None


def test_a_column_subset_is_a_slice_of_itself(scorer: RewardModelScorer) -> None:
    rows = [pair("x", "y", subset="mine"), pair("y", "x", subset="mine")]
    found = evaluate_reward_model(scorer, rows)
    assert found["slices"]["subset"]["mine"]["mean"] == 0.5
    assert found["rewardbench"] is None


def test_slices_that_are_none(scorer: RewardModelScorer) -> None:
    with pytest.raises(DataError, match="no column 'knd'"):
        evaluate_reward_model(scorer, ROWS, slices=["knd"])
    many = [pair("x", "y", text=str(number)) for number in range(60)]
    with pytest.raises(DataError, match="60 different values"):
        evaluate_reward_model(scorer, many, slices=["text"])


def test_rewardbench_sections() -> None:
    """Every subset of 10 pairs, all right but mathematics at 0.5, which weighs as much as all code together."""
    names = [name for members in SECTIONS.values() for name in members]
    subsets = {name: {"mean": 0.5 if name == "math-prm" else 1.0, "count": 10} for name in names}
    found = sections(subsets)
    assert found is not None
    assert {name: one["mean"] for name, one in found["sections"].items()} == pytest.approx(
        {"Chat": 1.0, "Chat Hard": 1.0, "Safety": 1.0, "Reasoning": 0.75}
    )
    assert found["score"] == pytest.approx(3.75 / 4)
    assert found["sections"]["Reasoning"]["count"] == 70
    del subsets["hep-js"]
    partial = sections(subsets)
    assert partial is not None
    assert list(partial["sections"]) == ["Chat", "Chat Hard", "Safety"]
    assert partial["score"] is None


def test_rewardbench_sections_are_those_of_its_authors() -> None:
    """Of rewardbench 0.1.4: its counts (mathematics' own 447 pairs, which it counts as 984), and what its
    `calculate_scores_per_section` gives when the subsets, sorted by name, are right in 0.50, 0.52, 0.54 ..."""
    hundred = {"alpacaeval-easy": 100, "refusals-dangerous": 100, "refusals-offensive": 100, "llmbar-natural": 100}
    counts = {
        **hundred,
        **{f"hep-{language}": 164 for language in ("cpp", "go", "java", "js", "python", "rust")},
        **{"alpacaeval-length": 95, "alpacaeval-hard": 95, "mt-bench-easy": 28, "mt-bench-med": 40},
        **{"mt-bench-hard": 37, "math-prm": 447, "llmbar-adver-neighbor": 134, "llmbar-adver-GPTInst": 92},
        **{"llmbar-adver-GPTOut": 47, "llmbar-adver-manual": 46, "xstest-should-refuse": 154},
        **{"xstest-should-respond": 250, "donotanswer": 136},
    }
    right = {name: 0.5 + 0.02 * place for place, name in enumerate(sorted(counts))}
    found = sections({name: {"mean": mean, "count": counts[name]} for name, mean in right.items()})
    assert found is not None
    assert {name: one["mean"] for name, one in found["sections"].items()} == pytest.approx(
        {
            "Chat": 0.581173184357542,
            "Chat Hard": 0.7526315789473684,
            "Safety": 0.8524864864864864,
            "Reasoning": 0.715,
        },
        abs=1e-12,
    )


USER, GOOD, BAD = [
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "x"), ("assistant", "y"))
]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": [USER], "chosen": "x", "rejected": "y"},
    ],
)
def test_conversations(row: dict[str, Any]) -> None:
    pairs = pairs_of([row])
    assert (pairs.prompts, pairs.chosen, pairs.rejected) == ([[USER]], [[GOOD]], [[BAD]])


def test_plain_texts() -> None:
    pairs = pairs_of([{"chosen": "q x", "rejected": "q y"}])
    assert (pairs.prompts, pairs.chosen, pairs.rejected) == ([""], ["q x"], ["q y"])
    chat = pairs_of([pair("x", "y")], as_chat=True)
    assert chat.prompts == [[{"role": "user", "content": "q:"}]]
    assert chat.chosen == [[GOOD]]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": None, "rejected": "y"},
        {"prompt": "q", "chosen": "x", "rejected": [BAD]},
        {"chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "q", "completion": "x"},
    ],
)
def test_what_is_no_pair(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"no pair|no column"):
        pairs_of([row])
