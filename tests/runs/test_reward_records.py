"""The mean reward that `offset: auto` subtracts comes from the newest valid evaluation of the reward model."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.logged_run import read_figures
from rlhf_cli.errors import RunError
from rlhf_cli.evaluation.evaluation_results import evaluation_json
from rlhf_cli.evaluation.scored_pairs import RewardDistribution
from rlhf_cli.runs.reward_records import (
    BY_REWARDS_OF,
    failed_rows,
    mean_reward,
    trained_on_conversations,
    write_text_endings,
)
from rlhf_cli.runs.run_folder import RunFolder
from tests.support import measured


def write(
    folder: Path, name: str, mean: float | None, time: float, *, with_eos: bool = False, count: int = 4, **heading: Any
) -> None:
    """Write an evaluation of a reward model with this mean of `count` texts."""
    one = replace(measured.sure(mean), count=count)
    rewards = RewardDistribution(mean=one, deviation=1.0, chosen=one, rejected=one, margin=one, min=0.0, max=1.0)
    model = measured.reward_model(rewards=rewards, with_eos=with_eos)
    (folder / "eval").mkdir(exist_ok=True)
    evaluation = evaluation_json(measured.headed(model, name=name, time=time, **heading))
    (folder / "eval" / f"{name}.json").write_text(json.dumps(evaluation))


def mean_of(folder: Path, **asked: Any) -> float:
    return mean_reward(str(folder), where="rewards.a.offset", **asked)


def refused(folder: Path | str, **asked: Any) -> RunError:
    with pytest.raises(RunError) as caught:
        mean_of(Path(folder), **asked)
    return caught.value


def test_held_out_rows_come_before_newer_ones_and_other_files_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, "held_out", None, 9.0)
    write(tmp_path, "ended", 7.0, 9.0, with_eos=True)
    write(tmp_path, "other", 2.0, 5.0)
    write(tmp_path, "held_out_checkpoint-2", 123.0, 9.0, model=f"checkpoint-2{BY_REWARDS_OF}rm")
    policy = evaluation_json(measured.headed(measured.policy(), time=9.0))
    for name, content in {"list": [1], "empty": {}, "policy": policy}.items():
        (tmp_path / "eval" / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "eval" / "broken.json").write_text("{")
    assert mean_of(tmp_path) == 2.0
    assert mean_of(tmp_path, with_eos=True) == 7.0
    write(tmp_path, "newest", 3.0, 6.0)
    assert mean_of(tmp_path) == 3.0
    write(tmp_path, "held_out", 1.0, 4.0)
    assert mean_of(tmp_path) == 1.0


def test_named_sets_of_held_out_rows_are_one_set(tmp_path: Path) -> None:
    """1.0 of 4 texts and 5.0 of 12 are 4.0 of 16; a part of a set, or rows of others, do not count beside them."""
    run = RunFolder(tmp_path)
    run.model.mkdir()
    run.config.write_text("data: {eval: {easy: {path: a}, hard: {path: b}}}")
    write(tmp_path, "held_out-easy", 1.0, 4.0, count=4)
    write(tmp_path, "held_out-hard", 5.0, 5.0, count=12)
    write(tmp_path, "held_out-hard_2_rows", 77.0, 6.0)
    write(tmp_path, "other", 77.0, 7.0)
    assert mean_of(run.model) == 4.0


def test_an_evaluation_in_the_second_of_the_newest_weights_is_valid(tmp_path: Path) -> None:
    """The newer of two weight files is written at 100 s; an evaluation at 99 s is too old."""
    for name, written_at_s in (("model-1", 50.0), ("model-2", 100.0)):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
        os.utime(tmp_path / f"{name}.safetensors", (written_at_s, written_at_s))
    write(tmp_path, "held_out", 1.0, 99.0)
    assert str(refused(tmp_path).hint).endswith("--data FILE")
    write(tmp_path, "other", 2.0, 100.0)
    assert mean_of(tmp_path) == 2.0


def test_a_copied_run_keeps_its_evaluations(tmp_path: Path) -> None:
    """Its files are newer than the evaluation, which is from after the training; one from before it is too old."""
    run = RunFolder(tmp_path)
    (run.path / "config.yaml").write_text("{}")
    run.status.write_text(json.dumps({"state": "finished", "updated_at": 100.0}))
    run.model.mkdir()
    (run.model / "model.safetensors").write_bytes(b"")
    write(tmp_path, "held_out", 1.0, 99.0)
    write(tmp_path, "checkpoint", 3.0, 99.0, model=f"checkpoint-2{BY_REWARDS_OF}rm")
    refused(run.model)
    assert list(read_figures(run)) == ["checkpoint"]
    write(tmp_path, "held_out", 1.0, 100.0, path="/where/it/was/model")
    assert mean_of(run.model) == 1.0
    assert list(read_figures(run)) == ["held_out", "checkpoint"]


@pytest.mark.parametrize(
    ("trained", "asked", "option"),
    [(None, False, ""), (None, True, " --eos"), (True, True, ""), (True, False, " --no-eos"), (False, True, " --eos")],
)
def test_the_command_has_an_option_if_texts_end_unlike_in_training(
    tmp_path: Path, trained: bool | None, asked: bool, option: str
) -> None:
    if trained is not None:
        write_text_endings(tmp_path, with_eos=trained)
    error = refused(tmp_path, with_eos=asked)
    assert error.hint == f"rlhf eval {os.path.relpath(tmp_path)} --data FILE{option}"
    assert error.where == "rewards.a.offset"
    assert str(tmp_path.resolve() / "eval") in str(error.got)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        *((None, None), ("{", None), ("[1]", None), ("{}", None), ('{"conversations": 1}', None)),
        *(('{"conversations": true}', True), ('{"conversations": false}', False)),
    ],
)
def test_whether_a_model_was_trained_on_conversations(tmp_path: Path, content: str | None, found: bool | None) -> None:
    if content is not None:
        (tmp_path / "training_format.json").write_text(content)
    assert trained_on_conversations(tmp_path) is found


def test_failed_rows_are_counted_by_reward_and_a_cut_line_is_none(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert failed_rows(run) == {}
    run.reward_errors.write_text('{"reward": "a"}\n{"reward": "b"}\n{"reward": "a"}\n[]\n{"rew')
    assert failed_rows(run) == {"a": 2, "b": 1}


def test_the_command_names_the_run_of_the_model(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.model.mkdir()
    run.config.write_text("")
    assert refused(run.model).hint == f"rlhf eval {run.shown}"
    assert refused("no/such/model").hint == "rlhf eval FOLDER --data FILE"
