"""`rlhf eval` of reward models, `offset: auto`, and refusals."""

from __future__ import annotations

import errno
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers.utils import logging as transformers_logging

from rlhf_cli.cli import main
from rlhf_cli.config.origins import Origins
from rlhf_cli.errors import DataError, RunError
from rlhf_cli.evaluation import evaluation_run, targets
from rlhf_cli.plan.prepare import prepare, prepare_from
from rlhf_cli.runs.reward_records import write_text_endings
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.services import hub_lookup
from rlhf_cli.services.hub_lookup import HubAnswer
from tests.support.golden_reward_model import save_golden_reward_model
from tests.support.model_copies import model_copy
from tests.support.tolerances import MODEL

Said, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
ROWS = [
    {"prompt": "q:", "chosen": "x", "rejected": "y", "subset": "a"},
    {"prompt": "q:", "chosen": "y", "rejected": "x", "subset": "b"},
    {"prompt": "q:", "chosen": "xx", "rejected": "z", "subset": "b"},
]


def write_rows(name: str, rows: list[dict[str, str]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def run(place: Path) -> Path:
    """Return a finished run of a reward model that scores x 2, y 0.5 and z -1, with its held-out rows in a file."""
    folder = place / "runs" / "rm" / "one"
    save_golden_reward_model(folder / "model", {"x": 2.0, "y": 0.5, "z": -1.0})
    write_rows("pairs.jsonl", ROWS)
    config: dict[str, Any] = {
        "seed": 0,
        "trainer": {"name": "reward", "trl": "RewardTrainer"},
        "model": {"path": "x"},
        "data": {"world": "toy_preferences", "eval": {"path": str(place / "pairs.jsonl")}},
        **{name: {} for name in ("launch", "track", "run")},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "status.json").write_text(json.dumps({"state": "finished", "updated_at": 1.0}))
    return folder


def reconfigured(run: Path, **sections: dict[str, Any]) -> None:
    """Change keys of sections in a run's configuration."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    for name, changed in sections.items():
        config[name] |= changed
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def evaluated(*words: str, to: str = "runs/rm/one/eval/held_out") -> dict[str, Any]:
    """Evaluate, and return what the file of that name says."""
    assert main(["eval", *words]) == 0
    found: dict[str, Any] = json.loads(Path(f"{to}.json").read_text())
    return found


@pytest.mark.parametrize("named", ["run:rm", "runs/rm/one", "runs/rm/one/model"])
def test_a_run(run: Path, named: str, capsys: Said) -> None:
    transformers_logging.enable_progress_bar()
    found = evaluated(named)
    said, beside = capsys.readouterr()
    assert "Loading weights" not in beside  # transformers' own bar
    for text in ("reward model rm/one", "subset=a", "0.667 [0.208, 0.939]", "worst disagreements", "held_out.json"):
        assert text in said, text
    assert (found["kind"], found["rows"], "pairs.jsonl" in found["data"]) == ("reward_model", 3, True)
    assert found["rewards"]["mean"]["mean"] == pytest.approx((2 * 3 + 0.5 * 2 - 1) / 6, **MODEL)
    assert found["slices"]["subset"]["b"]["mean"] == 0.5
    rewards = prepare(["+exp=quickstart", "rewards.it.model=run:rm", "rewards.it.offset=auto"]).experiment.rewards
    assert rewards["it"].offset == pytest.approx(1.0, **MODEL)


def test_a_folder_that_cannot_be_written(run: Path, monkeypatch: Patch, capsys: Said) -> None:
    """The work is not begun for a folder that takes no files, and a disk that is full at its end is no crash."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert main(["eval", "run:rm", "--out", "/proc"]) == 2
    said = capsys.readouterr()
    assert "/proc" in said.err
    assert "scoring" not in said.out + said.err
    monkeypatch.setattr(evaluation_run, "write_json", full)
    assert main(["eval", "run:rm"]) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_a_data_file_that_is_not_there_is_looked_for_on_the_hub(run: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(hub_lookup, "look_up", lambda questions: [HubAnswer("missing")])
    with pytest.raises(DataError) as caught:
        targets.renames_in("me/rows", {}, name="--data")
    assert (caught.value.where, "--data FILE" in str(caught.value.hint)) == ("--data", True)


def test_pairs_with_prompts_of_the_training_are_a_slice(run: Path, capsys: Said) -> None:
    """Two of four prompts were trained on; x beats y in one of them and in both others."""
    trained = [{"prompt": prompt, "chosen": "x", "rejected": "y"} for prompt in ("a:", "b:")]
    rows = [*trained, *({**trained[0], "prompt": prompt} for prompt in ("c:", "d:"))]
    rows[1] = {**rows[1], "chosen": "y", "rejected": "x"}
    for name, those in (("trained", trained), ("pairs", rows), ("new", rows[2:3])):
        write_rows(f"{name}.jsonl", those)
    reconfigured(run, data={"path": str(Path("trained.jsonl").resolve()), "world": None})
    found = evaluated("run:rm")
    assert "prompt_was=seen" in capsys.readouterr().out
    assert found["trained_on"] == 2
    assert {name: part["mean"] for name, part in found["slices"]["prompt_was"].items()} == {"seen": 0.5, "unseen": 1.0}
    assert evaluated("run:rm", "--data", "trained.jsonl", to="runs/rm/one/eval/trained")["trained_on"] == 2
    found = evaluated("run:rm", "--data", "new.jsonl", to="runs/rm/one/eval/new")
    assert (found["trained_on"], found["slices"]) == (0, {}), "no slice without a prompt of the training"
    reconfigured(run, data={"eval": {"path": str(Path("trained.jsonl").resolve())}})
    found = evaluated("run:rm", "--slice", "chosen", to="runs/rm/one/eval/training_rows")
    assert found["trained_on"] == 2, "training rows are not called held_out"


def test_a_model_folder_without_a_run(run: Path, place: Path, capsys: Said) -> None:
    (run / "model").rename(place / "rm")
    assert main(["eval", "rm"]) == 2
    assert "rlhf eval" in capsys.readouterr().err
    assert evaluated("rm", "--data", "pairs.jsonl", "--chat", to="rm/eval/pairs_chat")["accuracy"]["count"] == 3
    words = ("data.eval.world=toy_preferences", "--rows", "4")
    assert evaluated("rm", *words, to="rm/eval/other_rows_4_rows_world_toy_preferences")["rows"] == 4
    model_copy(place / "policy")  # which has to stand behind its run: `rlhf eval policy ...` was advised and refused
    assert main(["eval", "policy"]) == 2
    assert "rlhf eval run:EXPERIMENT model.path=policy\n" in capsys.readouterr().err


def test_texts_end_as_in_training_or_a_warning_is_given(run: Path, capsys: Said) -> None:
    """The model is trained on texts with an end-of-sequence token, which the golden model scores 0."""

    def scored(*words: str) -> Any:
        return prepare(["+exp=quickstart", "rewards.learnt.model=run:rm", *words]).experiment.rewards["learnt"]

    auto, without = "rewards.learnt.offset=auto", "rewards.learnt.with_eos=false"
    write_text_endings(run / "model", with_eos=True)
    found = evaluated("run:rm")
    said = capsys.readouterr().out
    assert ("plain texts end with the end-of-sequence token" in said, "warning" in said) == (True, False)
    assert (found["with_eos"], scored().with_eos) == (True, True)
    assert scored(auto).offset == found["rewards"]["mean"]["mean"] == 0.0
    with pytest.raises(RunError, match="rlhf eval runs/rm/one --no-eos"):
        scored(auto, without)
    assert evaluated("run:rm", "--no-eos", to="runs/rm/one/eval/held_out_no_eos")["with_eos"] is False
    assert "warning: the texts end without the end-of-sequence token" in capsys.readouterr().out
    other = scored(auto, without)
    assert (other.with_eos, other.offset) == (False, pytest.approx(1.0, **MODEL))
    for words, what in (([], ", texts end with eos, cut off or not"), ([without], "unlike in its training")):
        assert main(["check", "+exp=quickstart", "rewards.learnt.model=run:rm", *words]) == 0
        assert what in " ".join(capsys.readouterr().out.replace("│", "").split())


@pytest.mark.parametrize("word", ["model.path=other", "model={path: ./other}", "model={path: ./other, dtype: auto}"])
def test_a_model_is_set_by_any_word(run: Path, place: Path, word: str) -> None:
    """A model that gives every pair the same score is not reported under the run's name, with the run's numbers."""
    save_golden_reward_model(place / "other", {"x": 3.0, "y": 3.0, "z": 3.0})
    build = {"hidden_size": 4, "num_layers": 1, "num_heads": 1, "context_tokens": 9}
    reconfigured(run, model={"path": None, "build": build})
    assert main(["eval", "run:rm", word, "--out", "out"]) == 0
    for built in ("model=tiny_untrained", "model.build.seed=3"):
        assert main(["eval", "run:rm", built, "--out", "out"]) == 2
    (file,) = Path("out").iterdir()
    found = json.loads(file.read_text())
    assert found["model"].startswith("other by ")
    assert found["rewards"]["mean"]["mean"] == pytest.approx(3.0, **MODEL)


@pytest.mark.parametrize(
    ("words", "revision", "tokenizer"),
    [
        ([], "abc", "owner/tok"),
        (["model.path=owner/base"], "abc", "owner/tok"),
        (["model.path=owner/other"], None, None),
        (["model={path: owner/other, revision: v1}"], "v1", None),
        (["model.path=owner/other", "model.tokenizer=owner/tok"], None, "owner/tok"),
        (["model.tokenizer=owner/mine"], None, "owner/mine"),
    ],
)
def test_another_model_has_its_own_revision_and_tokenizer(
    run: Path, words: list[str], revision: str | None, tokenizer: str | None, monkeypatch: Patch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(evaluation_run, "RewardModelScorer", lambda *path, **given: asked.append((path, given)))
    monkeypatch.setattr(targets, "require_on_hub", lambda *_, **__: None)
    reconfigured(run, model={"path": "owner/base", "revision": "abc", "tokenizer": "owner/tok"})
    prepared = prepare_from(RunFolder(run), words, adjust=partial(targets.set_rows, targets.find_target(run), None))
    found = prepared.experiment.model
    assert (found.revision, found.tokenizer) == (revision, tokenizer)
    assert main(["eval", "run:rm", *words, "--batch-size", "3"]) == 1  # this scorer cannot score
    ((path,), given) = asked[0]
    assert given["batch_size"] == 3
    assert (given["revision"], given["tokenizer"]) == ((revision, tokenizer) if words else (None, None)), path


def test_other_rows_are_not_asked_for_the_metric_of_a_set_of_the_training(run: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_easy_accuracy"}
    reconfigured(run, trainer={"args": best})
    write_rows("rows.jsonl", [{"chosen": "a", "rejected": "b"}])
    rows = partial(targets.set_rows, targets.find_target(run), "rows.jsonl")
    assert not best.keys() & prepare_from(RunFolder(run), [], adjust=rows).experiment.trainer.args.keys()


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        ({"rename": {"chosen": "good"}, "path": "all.jsonl"}, {"rename": {"chosen": "good"}, "path": "all.jsonl"}),
        ({"easy": {"path": "easy.jsonl"}, "hard": {"path": "hard.jsonl"}}, {"path": "easy.jsonl"}),
    ],
)
def test_the_rows_of_a_model_without_a_run_stand_for_those_of_its_training(rows: Any, read: Any) -> None:
    target = targets.Target(targets.REWARD_MODEL, Path("rm"), "rm", Path("rm"))
    tree = {"model": {"path": "base"}, "data": {"path": "pairs.jsonl", "eval": rows}}
    targets.set_rows(target, None, tree, Origins())
    assert tree["data"] == {**read, "eval": rows}
    for wrong in ({"model": {"path": "base"}, "data": 1}, {"model": 1, "data": {}}):
        targets.set_rows(target, None, (kept := {**wrong}), Origins())
        assert kept == wrong


def test_a_folder_is_a_run_if_it_has_its_configuration_and_no_model_if_it_has_neither(run: Path, place: Path) -> None:
    shutil.copy(run / "model" / "config.json", run)
    assert targets.find_target(run).run == RunFolder(run)
    (place / "empty").mkdir()
    with pytest.raises(RunError) as caught:
        targets.find_target(place / "empty")
    assert str(place / "empty") in str(caught.value)


def test_a_typed_tokenizer_reads_the_texts(run: Path, place: Path) -> None:
    """It swaps x and z, so the model, which scores them 2 and -1, takes each for the other."""
    shutil.copytree(run / "model", place / "swapped")
    file = place / "swapped" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["x"], vocab["z"] = vocab["z"], vocab["x"]
    file.write_text(json.dumps(tokenizer))
    for words, name, mean in (
        ([], "held_out", (2 + 0.5 + 2) / 3),
        (["model.tokenizer=swapped"], "held_out_tokenizer_swapped", (-1 + 0.5 - 1) / 3),
    ):
        found = evaluated("run:rm", *words, "--out", "out", to=f"out/{name}")
        assert found["model"] == "rm/one"
        assert found["rewards"]["chosen"]["mean"] == pytest.approx(mean, **MODEL)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rows", "0"], "expected: 1 or more"),
        (["--eos", "--no-eos"], "--eos and --no-eos exclude each other"),
        (["--samples", "2"], "--samples is for a policy"),
        (["--slice", "nothing"], "no column 'nothing'"),
        (["data.eval=null"], "got:      a run that held out no rows"),
        (["model.path=no/such/name"], "neither a folder nor a valid name"),
    ],
)
def test_refusals_of_eval(run: Path, words: list[str], told: str, capsys: Said) -> None:
    assert main(["eval", "run:rm", *words]) == 2
    assert told in capsys.readouterr().err
