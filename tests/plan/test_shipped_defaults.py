"""Shipped defaults fit each other: every trainer with every embedded model and data set."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.errors import UserError
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.support.planning import Refused, planned

MODELS = ("tiny", "tiny_calls", "tiny_speakers", "tiny_untrained")
DATA = ("toy_demonstrations", "toy_judgements", "toy_preferences", "toy_speakers", "toy_sums")
REWARDED = ("grpo", "gmpo", "ppo", "rloo")
LEARNS_FROM = {
    **dict.fromkeys(REWARDED, DATA),  # they read a prompt, which all have
    **dict.fromkeys(("cpo", "dpo", "orpo", "reward", "tpo"), ("toy_preferences",)),
    "kto": ("toy_judgements", "toy_preferences"),
    "sft": ("toy_demonstrations", "toy_judgements"),
}
"""Every trainer -> the data sets that have the columns of TRL's dataset formats for it."""
TAUGHT = {"distillation", "gkd", "gold", "iw_opd", "sdft"}
"""Those that need a teacher or its hints, which no shipped data has: tests/trainers/test_teachers.py."""


def words(trainer: str, model: str, data: str) -> list[str]:
    reward = ["+reward@rewards.brevity=brevity"] if trainer in REWARDED else []  # it reads no column
    return [f"trainer={trainer}", f"model={model}", f"data={data}", *reward]


def test_nothing_shipped_is_left_out() -> None:
    def shipped(group: str) -> set[str]:
        return {file.stem for file in (shipped_dir() / group).glob("*.yaml")}

    assert shipped("trainer") == set(LEARNS_FROM) | TAUGHT
    assert shipped("model") - {"local", "smollm2", "smollm2_calls"} == set(MODELS)  # these are embedded
    assert {name for name in shipped("data") if name.startswith("toy_")} == set(DATA)


@pytest.mark.whole
@pytest.mark.parametrize("trainer", LEARNS_FROM)
def test_every_combination_is_planned_or_says_which_data_fit(refused: Refused, trainer: str) -> None:
    for data, model in zip(DATA, cycle(MODELS)):
        typed = [*words(trainer, model, data), "data.args.num_rows=256"]  # a check reads all rows
        if data in LEARNS_FROM[trainer]:
            plan = planned(*typed)
            assert (plan.workload.steps or 0) > 0
            assert not plan.notices
        else:
            error = refused(*typed)
            assert isinstance(error, UserError)
            # hh_pairs has pairs for chat models, but no reference as TPO needs it
            has_pairs = "toy_preferences" in LEARNS_FROM[trainer] and trainer != "tpo"
            fits = (*LEARNS_FROM[trainer], "hh_pairs") if has_pairs else LEARNS_FROM[trainer]
            assert error.hint == ", or ".join(f"data={fit}" for fit in fits)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_:FutureWarning")  # of TRL's calls
@pytest.mark.parametrize("trainer", LEARNS_FROM)
def test_every_trainer_takes_two_steps(place: Path, trainer: str) -> None:
    typed = words(trainer, "tiny", LEARNS_FROM[trainer][-1])
    assert main(["train", *typed, "trainer.args.max_steps=2", "run.name=one"]) == 0
    (folder,) = (place / "runs").glob("*/one")
    status = read_status(RunFolder(folder))
    assert (status.state, status.step) == ("finished", 2)
