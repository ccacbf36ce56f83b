"""The mean reward that `offset: auto` takes, from the files of evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.measure.evaluation_files import evaluation_json
from rlhf_cli.measure.measured_mean import mean_reward
from rlhf_cli.measure.reward_model_results import RewardDistribution
from tests.support import measured


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
