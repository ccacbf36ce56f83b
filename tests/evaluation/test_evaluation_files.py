"""Evaluations as the JSON of their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.evaluation.evaluation_files import (
    Evaluation,
    evaluation_json,
    evaluation_of_json,
    measured_json,
    read_evaluation,
)
from tests.support import measured

EVALUATIONS = {
    "reward model": measured.headed(measured.reward_model(), path="/runs/model", warnings=["small"]),
    "subsets": measured.headed(measured.with_subsets(), path="/runs/model"),
    "policy": measured.headed(measured.policy(settings={"temperature": 0.5, "seed": 1}), path="/runs/model"),
    "policy in training": measured.headed(measured.policy(), name="step-3", step=3),
}


@pytest.mark.parametrize("evaluation", EVALUATIONS.values(), ids=EVALUATIONS)
def test_there_and_back(evaluation: Evaluation, tmp_path: Path) -> None:
    file = tmp_path / "held_out.json"
    file.write_text(json.dumps(evaluation_json(evaluation)))
    assert read_evaluation(file) == evaluation


def test_the_figures_that_runs_are_compared_by() -> None:
    """Of the numbers of samples the largest, in the order of the table."""
    policy = {name: figure.mean for name, figure in EVALUATIONS["policy"].figures()}
    assert list(policy.items()) == [
        *(("greedy/total", 0.75), ("greedy/correct", 0.5), ("greedy/truncated", 0.125), ("greedy/tokens", 5.5)),
        *(("sampled/total", 0.5), ("sampled/correct", 0.25), ("sampled/truncated", 0.125), ("sampled/tokens", 5.5)),
        *(("pass@2/correct", 0.375), ("maj@2/correct", 0.3125)),
    ]
    assert [name for name, _ in EVALUATIONS["reward model"].figures()] == ["accuracy"]


def test_the_heading_comes_first_without_empty_keys() -> None:
    by_hand = evaluation_json(EVALUATIONS["policy"])
    assert list(by_hand)[:8] == ["kind", "name", "model", "path", "data", "time", "warnings", "rows"]
    in_training = evaluation_json(EVALUATIONS["policy in training"])
    assert list(in_training)[:8] == ["name", "step", "model", "data", "time", "warnings", "kind", "rows"]
    assert "settings" not in in_training


def test_a_pair_has_a_subset_only_if_the_data_has_the_column() -> None:
    without, with_them = measured_json(measured.reward_model()), measured_json(measured.with_subsets())
    assert "subset" not in without["worst"][0]
    assert with_them["worst"][0]["subset"] == "mt-bench-easy"
    assert measured_json(measured.reward_model(slices={"subset": {}}))["worst"][0]["subset"] is None


def test_keys_of_other_versions() -> None:
    """More than is known here is left out; what was added since then has a default."""
    content = evaluation_json(EVALUATIONS["reward model"])
    del content["with_eos"], content["warnings"]
    content["novelty"] = content["length"]["novelty"] = {"a": 1}
    evaluation = evaluation_of_json(content)
    assert evaluation.measured == EVALUATIONS["reward model"].measured
    assert evaluation.heading.warnings == []


@pytest.mark.parametrize("content", [{}, {"kind": "weather"}, {"kind": ["policy"]}, {"kind": "policy", "rows": 3}])
def test_invalid_evaluation(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kind is|Field required"):
        evaluation_of_json(content)
