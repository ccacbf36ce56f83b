"""`rlhf check` accepts every project that `rlhf init` can make; columns of own rows are found by names and types."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import DataError, UserError
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.project.own_rows import TRAININGS, OwnRows, read_own_rows
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


def test_names_survive_yaml() -> None:
    for text in ("data/rows.jsonl", "yes", "5", "a: b", "# x", 'say "x"', "Lösung", "~", "*.csv"):
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


Write = Callable[[str, str], Path]


def looked_at(write: Write, trains: str, row: dict[str, object], **typed: str) -> OwnRows:
    write("rows.jsonl", json.dumps(row) + "\n")
    return read_own_rows("rows.jsonl", TRAININGS[trains], typed)


@pytest.mark.parametrize(
    ("trains", "row", "rename"),
    [
        ("grpo", {"question": "a", "solution": 3}, {"prompt": "question", "answer": "solution"}),
        # GSM8K on the hub.
        ("grpo", {"question": "a", "answer": "#### 2"}, {"prompt": "question"}),
        # Upper and lower case are equal, and a number cannot be a prompt.
        ("grpo", {"Prompt": 7, "Question": "a", "Final Answer": "b"}, {"prompt": "Question", "answer": "Final Answer"}),
        # Alpaca; pairs; single answers, whose `label` must be true or false.
        ("sft", {"instruction": "a", "output": "b"}, {"prompt": "instruction", "completion": "output"}),
        ("dpo", {"chosen": "b", "rejected": "c"}, {}),
        ("dpo", {"preferred_output": "b", "Loser": "c"}, {"chosen": "preferred_output", "rejected": "Loser"}),
        ("grpo", {"prompt": "a", "solution": "b", "ground_truth": "c"}, {"answer": "ground_truth"}),
        ("kto", {"prompt": "a", "answer": "b", "label": "x", "good": True}, {"completion": "answer", "label": "good"}),
        ("sft", {"query": "a", "answers": "[]", "tools": "[]"}, {"completion": "answers"}),  # xLAM: the prompt is made
        # Columns that TRL reads without renaming.
        ("sft", {"messages": [{"role": "user", "content": "a"}]}, {}),
        ("kto", {"prompt": "a", "chosen": "b", "rejected": "c"}, {}),
    ],
)
def test_columns_are_identified(write: Write, trains: str, row: dict[str, object], rename: dict[str, str]) -> None:
    assert looked_at(write, trains, row).rename == rename


def test_a_typed_column_is_used_and_one_of_two_kinds_matters_only_then(write: Write) -> None:
    found = looked_at(write, "sft", {"prompt": "a", "question": "b"}, completion="prompt")
    assert found.rename == {"prompt": "question", "completion": "prompt"}
    rows = [{"prompt": "a", "answer": "b", "meta": meta} for meta in ("x", 1)]
    write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert read_own_rows("rows.jsonl", TRAININGS["grpo"], {}).rename == {}
    with pytest.raises(DataError) as caught:
        read_own_rows("rows.jsonl", TRAININGS["grpo"], {"answer": "meta"})
    assert caught.value.where == "rows.jsonl:2"


def test_an_ambiguous_or_missing_column_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="which column is the prompt") as wrong:
        looked_at(write, "grpo", {"question text": "a", "question title": "b"})
    assert wrong.value.got == "columns question text (text), question title (text)"
    assert wrong.value.hint == "--column prompt=NAME"
    for typed, said in (({"prompt": "c"}, "no column 'c'"), ({"chosen": "a"}, "grpo reads no column 'chosen'")):
        with pytest.raises(DataError, match=said):
            looked_at(write, "grpo", {"a": "x"}, **typed)


@pytest.mark.parametrize(
    ("is_number", "answers"),
    [
        (True, ["22", 22, "She has 3 left.\n#### 1,234", "5.5 m"]),
        (False, ["Paris", "2 of them were in Paris and London", ""]),
    ],
)
def test_an_answer_that_ends_with_a_number_is_one(write: Write, is_number: bool, answers: list[object]) -> None:
    for answer in answers:
        assert looked_at(write, "grpo", {"prompt": "a", "answer": answer}).answer_is_number is is_number, answer
