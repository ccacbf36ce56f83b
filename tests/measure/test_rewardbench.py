"""RewardBench's sections and score, by hand and against what its authors' code gives."""

from __future__ import annotations

import pytest

from rlhf_cli.measure.rewardbench import SECTIONS, sections
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
