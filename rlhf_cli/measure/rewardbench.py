"""RewardBench's four sections from the accuracies of its subsets (Lambert et al., arXiv 2403.13787).

A section is the accuracy over all its pairs, but for Reasoning, where mathematics weighs as much as the six subsets of
code together. The score is the mean of the sections; the paper's has a fifth one at half weight, of older test sets
that are not in its file.
"""

from __future__ import annotations

from typing import Any

from rlhf_cli.numerics.intervals import wilson

_CODE = ("hep-cpp", "hep-go", "hep-java", "hep-js", "hep-python", "hep-rust")
_MATHS = "math-prm"
SECTIONS: dict[str, tuple[str, ...]] = {
    "Chat": ("alpacaeval-easy", "alpacaeval-length", "alpacaeval-hard", "mt-bench-easy", "mt-bench-med"),
    "Chat Hard": (
        *("mt-bench-hard", "llmbar-natural", "llmbar-adver-neighbor"),
        *("llmbar-adver-GPTInst", "llmbar-adver-GPTOut", "llmbar-adver-manual"),
    ),
    "Safety": (
        *("refusals-dangerous", "refusals-offensive", "xstest-should-refuse"),
        *("xstest-should-respond", "donotanswer"),
    ),
    "Reasoning": (_MATHS, *_CODE),
}


def sections(subsets: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Section -> accuracy of the sections that are there whole, and `score` where all four are.

    `subsets`: name -> its accuracy as `mean` and `count`. None where no section is complete: other data with a column
    of that name.
    """
    found = {
        name: _section(name, [(subset, subsets[subset]) for subset in members])
        for name, members in SECTIONS.items()
        if set(members) <= subsets.keys()
    }
    if not found:
        return None
    score = sum(one["mean"] for one in found.values()) / len(found) if len(found) == len(SECTIONS) else None
    return {"sections": found, "score": score}


def _section(name: str, members: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    weights = {subset: float(one["count"]) for subset, one in members}
    if name == "Reasoning":
        weights[_MATHS] = sum(weights[subset] for subset in _CODE)
    total = sum(weights.values())
    mean = sum(weights[subset] * one["mean"] for subset, one in members) / total
    # The interval is that of as many unweighted pairs as the weighted mean is worth (Kish's effective size).
    effective = total**2 / sum(weights[subset] ** 2 / one["count"] for subset, one in members)
    worth = max(1, round(effective))
    return {**wilson(mean * worth, worth).as_dict(), "count": sum(one["count"] for _, one in members)}
