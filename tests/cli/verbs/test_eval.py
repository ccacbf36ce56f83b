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
from rlhf_cli.errors import DataError, RunError
from rlhf_cli.evaluation import evaluation_run, targets
from rlhf_cli.evaluation.targets import renames_in
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.plan.prepare import prepare, prepare_from
from rlhf_cli.runs.reward_records import write_text_endings
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.services import hub_lookup
from rlhf_cli.services.hub_lookup import HubAnswer
from tests.support.golden_reward_model import save_golden_reward_model
from tests.support.model_copies import model_copy
from tests.support.tolerances import MODEL

Said = pytest.CaptureFixture[str]


ROWS = [
    {"prompt": "q:", "chosen": "x", "rejected": "y", "subset": "a"},
    {"prompt": "q:", "chosen": "y", "rejected": "x", "subset": "b"},
    {"prompt": "q:", "chosen": "xx", "rejected": "z", "subset": "b"},
]


@pytest.fixture
def run(place: Path) -> Path:
    """Return a finished run of a reward model that scores x 2, y 0.5 and z -1, with its held-out rows in a file."""
    folder = place / "runs" / "rm" / "one"
    save_golden_reward_model(folder / "model", {"x": 2.0, "y": 0.5, "z": -1.0})
    (place / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
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


def content(folder: Path, name: str = "held_out") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("named", ["run:rm", "runs/rm/one", "runs/rm/one/model"])
def test_a_run(run: Path, named: str, capsys: Said) -> None:
    transformers_logging.enable_progress_bar()
    assert main(["eval", named]) == 0
    said, beside = capsys.readouterr()
    assert "Loading weights" not in beside  # transformers' own bar
    for text in ("reward model rm/one", "subset=a", "0.667 [0.208, 0.939]", "worst disagreements", "held_out.json"):
        assert text in said, text
    found = content(run / "eval")
    assert (found["kind"], found["rows"]) == ("reward_model", 3)
    assert found["rewards"]["mean"]["mean"] == pytest.approx((2 * 3 + 0.5 * 2 - 1) / 6, **MODEL)
    assert found["slices"]["subset"]["b"]["mean"] == 0.5


def test_a_folder_that_cannot_be_written(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
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


def test_a_policy_without_its_run_is_named_in_the_advice(place: Path, capsys: Said) -> None:
    """The folder stood where its run has to stand: `rlhf eval alone model.path=FOLDER` was refused again."""
    model_copy(place / "alone")
    assert main(["eval", "alone"]) == 2
    assert "rlhf eval run:EXPERIMENT model.path=alone\n" in capsys.readouterr().err


def test_the_size_of_a_batch_is_that_of_a_forward_pass(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Scorer(RewardModelScorer):
        def __init__(self, path: str, *, batch_size: int, **given: Any) -> None:
            sizes.append(batch_size)
            super().__init__(path, batch_size=batch_size, **given)

    monkeypatch.setattr(evaluation_run, "RewardModelScorer", Scorer)
    assert main(["eval", "run:rm", "--batch-size", "3"]) == 0
    assert sizes == [3]


def test_a_data_file_that_is_not_there_is_looked_for_on_the_hub(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_lookup, "look_up", lambda questions: [HubAnswer("missing")])
    with pytest.raises(DataError) as caught:
        renames_in("me/rows", {}, name="--data")
    assert (caught.value.where, "--data FILE" in str(caught.value.hint)) == ("--data", True)


def test_pairs_with_prompts_of_the_training_are_a_slice(run: Path, place: Path, capsys: Said) -> None:
    """Two of four prompts were trained on; x beats y in one of them and in both others."""
    trained = [{"prompt": prompt, "chosen": "x", "rejected": "y"} for prompt in ("a:", "b:")]
    rows = [*trained, *({**trained[0], "prompt": prompt} for prompt in ("c:", "d:"))]
    rows[1] = {**rows[1], "chosen": "y", "rejected": "x"}
    for name, those in (("trained", trained), ("pairs", rows)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in those))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"] = {"path": str(place / "trained.jsonl"), "eval": config["data"]["eval"]}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["eval", "run:rm"]) == 0
    assert "prompt_was=seen" in capsys.readouterr().out
    found = content(run / "eval")
    assert found["trained_on"] == 2
    assert {name: part["mean"] for name, part in found["slices"]["prompt_was"].items()} == {"seen": 0.5, "unseen": 1.0}
    assert main(["eval", "run:rm", "--data", "trained.jsonl"]) == 0
    assert content(run / "eval", "trained")["trained_on"] == 2
    config["data"]["eval"]["path"] = str(place / "trained.jsonl")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["eval", "run:rm", "--slice", "chosen"]) == 0
    assert content(run / "eval", "training_rows")["trained_on"] == 2, "training rows are not called held_out"
    (place / "new.jsonl").write_text(json.dumps(rows[2]) + "\n")
    assert main(["eval", "run:rm", "--data", "new.jsonl"]) == 0
    found = content(run / "eval", "new")
    assert (found["trained_on"], found["slices"]) == (0, {}), "no slice without a prompt of the training"


def test_a_model_folder_without_a_run(run: Path, place: Path, capsys: Said) -> None:
    (run / "model").rename(place / "rm")
    assert main(["eval", "rm"]) == 2
    assert "rlhf eval" in capsys.readouterr().err
    assert main(["eval", "rm", "--data", "pairs.jsonl", "--chat"]) == 0
    assert content(place / "rm" / "eval", "pairs_chat")["accuracy"]["count"] == 3
    assert main(["eval", "rm", "data.eval.world=toy_preferences", "--rows", "4"]) == 0
    assert content(place / "rm" / "eval", "other_rows_4_rows_world_toy_preferences")["rows"] == 4


class TestOffset:
    def offset(self, *words: str) -> Any:
        given = ["+exp=quickstart", "rewards.learnt.model=run:rm", "rewards.learnt.offset=auto", *words]
        return prepare(given).experiment.rewards["learnt"].offset

    def test_auto_is_the_measured_mean(self, run: Path) -> None:
        assert main(["eval", "run:rm"]) == 0
        assert self.offset() == pytest.approx(1.0, **MODEL)


class TestTextEndings:
    """Evaluate a model trained on texts with an end-of-sequence token, which the golden model scores 0."""

    @pytest.fixture(autouse=True)
    def record(self, run: Path) -> None:
        write_text_endings(run / "model", with_eos=True)

    def scored(self, *words: str) -> Any:
        return prepare(["+exp=quickstart", "rewards.learnt.model=run:rm", *words]).experiment.rewards["learnt"]

    def test_texts_end_as_in_training(self, run: Path, capsys: Said) -> None:
        assert main(["eval", "run:rm"]) == 0
        assert "plain texts end with the end-of-sequence token" in (said := capsys.readouterr().out)
        assert "warning" not in said
        found = content(run / "eval")
        assert found["with_eos"] is True
        assert self.scored().with_eos is True
        assert self.scored("rewards.learnt.offset=auto").offset == found["rewards"]["mean"]["mean"] == 0.0

    def test_another_ending_gives_a_warning(self, run: Path, capsys: Said) -> None:
        with pytest.raises(RunError, match="rlhf eval runs/rm/one --no-eos"):
            self.scored("rewards.learnt.offset=auto", "rewards.learnt.with_eos=false")
        assert main(["eval", "run:rm", "--no-eos"]) == 0
        assert "warning: the texts end without the end-of-sequence token" in capsys.readouterr().out
        assert content(run / "eval", "held_out_no_eos")["with_eos"] is False
        other = self.scored("rewards.learnt.offset=auto", "rewards.learnt.with_eos=false")
        assert (other.with_eos, other.offset) == (False, pytest.approx(1.0, **MODEL))
        for words, what in (
            ([], ", texts end with eos, cut off or not"),
            (["rewards.learnt.with_eos=false"], "unlike in its training"),
        ):
            assert main(["check", "+exp=quickstart", "rewards.learnt.model=run:rm", *words]) == 0
            assert what in " ".join(capsys.readouterr().out.replace("│", "").split())


@pytest.mark.parametrize("word", ["model.path=other", "model={path: ./other}", "model={path: ./other, dtype: auto}"])
def test_a_model_is_set_by_any_word(run: Path, place: Path, word: str) -> None:
    """A model that gives every pair the same score is not reported under the run's name, with the run's numbers."""
    save_golden_reward_model(place / "other", {"x": 3.0, "y": 3.0, "z": 3.0})
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"] = {"build": {"hidden_size": 4, "num_layers": 1, "num_heads": 1, "context_tokens": 9}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["eval", "run:rm", word, "--out", "out"]) == 0
    (file,) = Path("out").glob("*.json")
    found = content(Path("out"), file.stem)
    assert found["model"].startswith("other by ")
    assert found["rewards"]["mean"]["mean"] == pytest.approx(3.0, **MODEL)
    for built in ("model=tiny_untrained", "model.build.seed=3"):
        assert main(["eval", "run:rm", built, "--out", "out"]) == 2
    assert len(list(Path("out").iterdir())) == 1


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
    run: Path, words: list[str], revision: str | None, tokenizer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(evaluation_run, "RewardModelScorer", lambda *path, **given: asked.append((path, given)))
    monkeypatch.setattr(targets, "require_on_hub", lambda *_, **__: None)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"] = {"path": "owner/base", "revision": "abc", "tokenizer": "owner/tok"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    target = targets.find_target(run)
    prepared = prepare_from(RunFolder(run), words, adjust=partial(targets.set_rows, target, None))
    found = prepared.experiment.model
    assert (found.revision, found.tokenizer) == (revision, tokenizer)
    assert main(["eval", "run:rm", *words]) == 1  # this scorer cannot score
    ((path,), given) = asked[0]
    assert (given["revision"], given["tokenizer"]) == ((revision, tokenizer) if words else (None, None)), path


def test_other_rows_are_not_asked_for_the_metric_of_a_set_of_the_training(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_easy_accuracy"}
    config["trainer"]["args"] = best
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    Path("rows.jsonl").write_text('{"chosen": "a", "rejected": "b"}\n')
    rows = partial(targets.set_rows, targets.find_target(run), "rows.jsonl")
    prepared = prepare_from(RunFolder(run), [], adjust=rows)
    assert not best.keys() & prepared.experiment.trainer.args.keys()


def test_a_typed_tokenizer_reads_the_texts(run: Path, place: Path) -> None:
    """It swaps x and z, so the model, which scores them 2 and -1, takes each for the other."""
    shutil.copytree(run / "model", place / "swapped")
    file = place / "swapped" / "tokenizer.json"
    content_of = json.loads(file.read_text())
    vocab = content_of["model"]["vocab"]
    vocab["x"], vocab["z"] = vocab["z"], vocab["x"]
    file.write_text(json.dumps(content_of))
    for words, mean in (([], (2 + 0.5 + 2) / 3), (["model.tokenizer=swapped"], (-1 + 0.5 - 1) / 3)):
        assert main(["eval", "run:rm", *words, "--out", "out"]) == 0
        name = "held_out_tokenizer_swapped" if words else "held_out"
        found = content(Path("out"), name)
        assert found["model"] == "rm/one"
        assert found["rewards"]["chosen"]["mean"] == pytest.approx(mean, **MODEL)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run:rm", "--rows", "0"], "expected: 1 or more"),
        (["run:rm", "--eos", "--no-eos"], "--eos and --no-eos exclude each other"),
        (["run:rm", "--samples", "2"], "--samples is for a policy"),
        (["run:rm", "--slice", "nothing"], "no column 'nothing'"),
        (["run:rm", "data.eval=null"], "there are no rows to evaluate on"),
        (["run:rm", "model.path=no/such/name"], "neither a folder nor a valid name"),
    ],
)
def test_refusals_of_eval(run: Path, words: list[str], told: str, capsys: Said) -> None:
    assert main(["eval", *words]) == 2
    assert told in capsys.readouterr().err
