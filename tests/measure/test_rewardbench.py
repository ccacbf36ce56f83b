"""RewardBench's sections and score, by hand and against what its authors' code gives."""

from __future__ import annotations

import math

import pytest

from rlhf_cli.measure.reward_model_scores import SECTIONS, sections
from rlhf_cli.numerics.intervals import Estimate


def test_rewardbench_sections() -> None:
    """Every subset of 10 pairs, all right but mathematics at 0.5, which weighs as much as all code together."""
    names = [name for members in SECTIONS.values() for name in members]
    subsets = {name: Estimate(0.5 if name == "math-prm" else 1.0, None, None, 10) for name in names}
    scores = sections(subsets)
    assert scores is not None
    assert {name: one.mean for name, one in scores.sections.items()} == pytest.approx(
        {"Chat": 1.0, "Chat Hard": 1.0, "Safety": 1.0, "Reasoning": 0.75}
    )
    assert scores.score == pytest.approx(3.75 / 4)
    assert scores.sections["Reasoning"].count == 70
    del subsets["hep-js"]
    partial = sections(subsets)
    assert partial is not None
    assert list(partial.sections) == ["Chat", "Chat Hard", "Safety"]
    assert partial.score is None


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
    scores = sections({name: Estimate(mean, None, None, counts[name]) for name, mean in right.items()})
    assert scores is not None
    assert {name: one.mean for name, one in scores.sections.items()} == pytest.approx(
        {
            "Chat": 0.581173184357542,
            "Chat Hard": 0.7526315789473684,
            "Safety": 0.8524864864864864,
            "Reasoning": 0.715,
        },
        abs=1e-12,
    )


def test_the_interval_of_a_section_is_that_of_its_weighted_mean() -> None:
    """10 pairs a subset. Mathematics weighs 1/2, each of six code subsets 1/12: the variance of that mean is
    p (1 - p) (1/4 + 6/144) / 10 = p (1 - p) / 34.3, as of 34 pairs. Chat weighs its 50 pairs alike. The bounds b of
    Wilson's interval solve |p - b| = z sqrt(b (1 - b) / n).
    """
    names = [name for members in SECTIONS.values() for name in members]
    right = {"math-prm": 0.5, "mt-bench-easy": 0.0, "mt-bench-med": 0.5}
    scores = sections({name: Estimate(right.get(name, 1.0), None, None, 10) for name in names})
    assert scores is not None
    for section, mean, worth, count in (("Reasoning", 0.75, 34, 70), ("Chat", 0.7, 50, 50)):
        found = scores.sections[section]
        assert (found.mean, found.count) == (pytest.approx(mean), count)
        assert found.low is not None
        assert found.high is not None
        assert found.low < mean < found.high
        for bound in (found.low, found.high):
            assert abs(mean - bound) == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / worth), rel=1e-5)
