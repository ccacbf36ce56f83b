"""`rlhf check` accepts every project that `rlhf init` can make."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.project.own_rows import TRAININGS, read_own_rows
from rlhf_cli.project.project_files import (
    ProjectChoices,
    StartingModel,
    project_files,
    read_starting_model,
    refuse_file,
    write_project,
)
from rlhf_cli.project.reward_reference import as_yaml
from tests.support.model_copies import model_copy

OWN = {
    "prompts": {"question": "a", "solution": "b"},
    "pairs": {"better": "a", "worse": "b"},
    "judged": {"prompt": "a", "response": "b", "liked": True},
    "demonstrations": {"instruction": "a", "output": "b"},
}


def made(name: str, model: StartingModel, rows: str | None) -> Experiment:
    """Make a project in the current folder and return its experiment."""
    training = TRAININGS[name]
    own = read_own_rows(rows, training, {}) if rows is not None else None
    write_project(Path(), project_files(ProjectChoices(training, model, own), "mine"))
    prepared = prepare(["+exp=first"])
    preflight(prepared.experiment, prepared.composed)  # as `rlhf check` does
    return prepared.experiment


@pytest.mark.parametrize("name", TRAININGS)
def test_check_accepts_the_sample(name: str, place: Path) -> None:
    experiment = made(name, StartingModel(None, 512), None)
    assert experiment.trainer.name == name
    assert (place / str(experiment.data.path)).is_file()
    assert bool(experiment.rewards) == (place / "rewards.py").is_file() == TRAININGS[name].generates


@pytest.mark.parametrize("name", ["ppo", "sft", "kto"])
def test_check_accepts_own_rows_and_model(name: str, write: Callable[[str, str], Path]) -> None:
    write("my rows.jsonl", (json.dumps(OWN[TRAININGS[name].rows]) + "\n") * 9)
    model_copy(Path("my model"))
    experiment = made(name, StartingModel("./my model", 64, is_folder=True), "my rows.jsonl")
    assert (experiment.model.path, experiment.data.path) == ("./my model", "my rows.jsonl")
    # Nine rows are too few to hold some out; of 64 tokens of context, half are for the answer.
    assert experiment.data.eval is None
    args = experiment.trainer.args
    assert args.get("max_completion_length", args.get("max_length")) == (32 if TRAININGS[name].generates else 64)


@pytest.mark.parametrize("text", ["data/rows.jsonl", "yes", "5", "a: b", "# x", 'say "x"', "Lösung", "~", "*.csv"])
def test_names_survive_yaml(text: str) -> None:
    assert yaml.safe_load(f"path: {as_yaml(text)} # why") == {"path": text}


def test_the_context_of_a_model_that_sees_images_is_that_of_its_language_model(place: Path) -> None:
    model_copy(Path("my model"))
    file = place / "my model" / "config.json"
    config = json.loads(file.read_text())
    length = config.pop("max_position_embeddings")
    assert read_starting_model("./my model").context_tokens == length
    file.write_text(json.dumps({**config, "text_config": {"max_position_embeddings": length}}))
    assert read_starting_model("./my model").context_tokens == length


def test_a_project_that_cannot_be_written_is_refused(place: Path) -> None:
    (place / "data").write_text("a file instead of a folder")
    with pytest.raises(UserError, match="cannot be written"):
        write_project(place, {"README.md": "", "data/rows.jsonl": "{}"})
    assert not (place / "README.md").exists(), "the next `rlhf init` would keep it"
    with pytest.raises(UserError, match="a project is a folder"):
        refuse_file(place / "data" / "g")
