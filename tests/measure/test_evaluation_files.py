"""Evaluations as the JSON of their files, and the mean reward that `offset: auto` takes from them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.measure.evaluation_files import (
    Evaluation,
    evaluation_json,
    evaluation_of_json,
    mean_reward,
    measured_json,
    read_evaluation,
)
from rlhf_cli.measure.scored_pairs import RewardDistribution
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.text_endings import write_text_endings
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


def test_the_heading_comes_first_and_has_only_what_there_is() -> None:
    by_hand = evaluation_json(EVALUATIONS["policy"])
    assert list(by_hand)[:8] == ["kind", "name", "model", "path", "data", "time", "warnings", "rows"]
    in_training = evaluation_json(EVALUATIONS["policy in training"])
    assert list(in_training)[:8] == ["name", "step", "model", "data", "time", "warnings", "kind", "rows"]
    assert "settings" not in in_training


def test_the_subset_of_a_pair_stands_only_where_there_are_some() -> None:
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
def test_what_is_no_evaluation(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"evaluation is of a reward_model or a policy|Field required"):
        evaluation_of_json(content)


def rewards(mean: float | None) -> RewardDistribution:
    one = measured.sure(mean)
    return RewardDistribution(mean=one, deviation=1.0, chosen=one, rejected=one, margin=one, min=0.0, max=1.0)


def write(folder: Path, name: str, mean: float | None, time: float, **changes: Any) -> None:
    evaluation = measured.headed(measured.reward_model(rewards=rewards(mean), **changes), name=name, time=time)
    (folder / "eval").mkdir(exist_ok=True)
    (folder / "eval" / f"{name}.json").write_text(json.dumps(evaluation_json(evaluation)))


def test_the_held_out_rows_come_before_newer_ones(tmp_path: Path) -> None:
    write(tmp_path, "other", 2.0, 5.0)
    write(tmp_path, "newest", 3.0, 6.0)
    assert mean_reward(str(tmp_path), where="here") == 3.0
    write(tmp_path, "held_out", 1.0, 4.0)
    assert mean_reward(str(tmp_path), where="here") == 1.0


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "held_out", None, 9.0)
    write(tmp_path, "ended", 7.0, 9.0, with_eos=True)
    write(tmp_path, "other", 2.0, 5.0)
    for name, content in {
        "list": [1],
        "empty": {},
        "policy": evaluation_json(measured.headed(measured.policy(), time=9.0)),
    }.items():
        (tmp_path / "eval" / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "eval" / "broken.json").write_text("{")
    assert mean_reward(str(tmp_path), where="here") == 2.0
    assert mean_reward(str(tmp_path), with_eos=True, where="here") == 7.0


def test_none_is_refused_with_the_command(tmp_path: Path) -> None:
    write(tmp_path, "held_out", 1.0, 5.0)
    (tmp_path / "model.safetensors").write_bytes(b"")  # written now, and 5 s is in 1970
    with pytest.raises(RunError, match=r"has not been measured(.|\n)*since the model was written(.|\n)*--data FILE"):
        mean_reward(str(tmp_path), where="here")


def test_what_was_measured_in_the_second_that_the_newest_weights_are_of_counts(tmp_path: Path) -> None:
    """Of two files of weights the newer one; at 100 s the evaluation is as new, a second earlier it is of others."""
    for name, written_at_s in (("model-1", 50.0), ("model-2", 100.0)):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
        os.utime(tmp_path / f"{name}.safetensors", (written_at_s, written_at_s))
    write(tmp_path, "held_out", 1.0, 99.0)
    with pytest.raises(RunError, match="since the model was written"):
        mean_reward(str(tmp_path), where="here")
    write(tmp_path, "other", 2.0, 100.0)
    assert mean_reward(str(tmp_path), where="here") == 2.0


@pytest.mark.parametrize(
    ("trained", "asked", "option"),
    [
        *((None, False, ""), (None, True, " --eos"), (True, True, ""), (True, False, " --no-eos")),
        *((False, False, ""), (False, True, " --eos")),
    ],
)
def test_the_command_says_how_texts_end_where_they_end_otherwise_than_in_training(
    tmp_path: Path, trained: bool | None, asked: bool, option: str
) -> None:
    if trained is not None:
        write_text_endings(tmp_path, with_eos=trained)
    with pytest.raises(RunError) as caught:
        mean_reward(str(tmp_path), with_eos=asked, where="rewards.a.offset")
    error = caught.value
    assert error.hint == f"rlhf eval {os.path.relpath(tmp_path)} --data FILE{option}"
    assert (error.where, error.expected) == ("rewards.a.offset", "what `rlhf eval` writes, or a number")
    assert error.got == f"offset: auto, and no evaluation in {tmp_path.resolve() / 'eval'}"


def test_of_a_runs_model_the_run_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.model.mkdir()
    run.config.write_text("")
    with pytest.raises(RunError) as caught:
        mean_reward(str(run.model), where="here")
    assert caught.value.hint == f"rlhf eval {run.shown}"
    with pytest.raises(RunError) as caught:
        mean_reward("no/such/model", where="here")
    assert caught.value.hint == "rlhf eval FOLDER --data FILE"
