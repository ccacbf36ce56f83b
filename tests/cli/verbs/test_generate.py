"""`rlhf generate`: what it writes, which verbs read its files, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from tests.support.small_runs import SMALL

pytestmark = pytest.mark.whole

REWARDS = '''
def many(completion_ids, **kwargs):
    """Return scores that differ between the answers of an untrained model."""
    return [float(sum(ids) % 7) for ids in completion_ids]

def odd(completion_ids, **kwargs):
    return [float(sum(ids) % 2) for ids in completion_ids]
'''
RUN = "runs/quickstart/one"
OTHER_ROWS = ["--data", "generated/quickstart-one/completions.jsonl", "-n", "2"]
FOUR = ["-n", "4", "--limit", "12", "trainer.args.max_completion_length=24"]


def rows(file: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def generated(capsys: Any, *words: str) -> dict[str, Any]:
    assert main(["generate", *words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Path:
    """Return a folder with a run of an untrained model, whose answers differ."""
    place = tmp_path_factory.mktemp("generate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("RLHF_CACHE", str(model_cache))
        (place / "mine.py").write_text(REWARDS)
        rewards = ["~rewards.correct", "~rewards.format"]
        rewards += ["rewards.many.fn=./mine.py:many", "rewards.odd.fn=./mine.py:odd"]
        words = [*SMALL, *rewards, "run.name=one", "trainer.args.max_steps=1", "data.eval.fraction=0.25"]
        assert main(["train", *words]) == 0
    return place


@pytest.fixture
def run(trained: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    """Change to that folder and remove what other tests generated there."""
    monkeypatch.chdir(trained)
    monkeypatch.setenv("RLHF_CACHE", str(model_cache))
    for made in (Path(RUN, "generated"), Path("generated"), Path("other")):
        shutil.rmtree(made, ignore_errors=True)
    capsys.readouterr()
    return RUN


def test_its_files_and_the_verbs_that_read_them(run: str, capsys: Any) -> None:
    assert [point["k"] for point in generated(capsys, run, *FOUR)["curve"]] == [1, 2, 3, 4]
    folder = Path(run) / "generated"
    completions, pairs, best = (rows(folder / f"{name}.jsonl") for name in ("completions", "pairs", "best"))
    assert (len(completions), len({row["prompt"] for row in completions})) == (48, 12)
    assert {row["prompt"] for row in [*pairs, *best]} <= {row["prompt"] for row in completions}

    # rlhf score gives the same totals.
    assert main(["score", run, "--completions", str(folder / "completions.jsonl"), "--json"]) == 0
    totals = [row["total"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert totals == pytest.approx([row["total"] for row in completions])
    for trainer, name in (("dpo", "pairs"), ("sft", "best")):
        words = [f"trainer={trainer}", "model=tiny", "data=file", f"data.path={folder / name}.jsonl", "track=none"]
        assert main(["check", *words, "trainer.args.per_device_train_batch_size=2"]) == 0

    # The same command gives the same files, and overwrites them only with --overwrite.
    capsys.readouterr()
    assert main(["generate", run, *FOUR]) == 2
    assert "completions.jsonl, pairs.jsonl" in capsys.readouterr().err
    before = (folder / "completions.jsonl").read_bytes()
    assert main(["generate", run, *FOUR, "--overwrite"]) == 0
    assert (folder / "completions.jsonl").read_bytes() == before


def test_a_model_with_the_rewards_of_an_experiment(run: str, capsys: Any) -> None:
    few = ("-n", "2", "--limit", "2", "data.args.num_rows=8")
    found = generated(capsys, f"{run}/model", "+exp=quickstart", *few)
    assert set(found["curve"][0]["rewards"]) == {"correct", "format", "brevity"}
    assert (Path("generated") / "quickstart-one" / "completions.jsonl").is_file()
    held_out = generated(capsys, run, "--held-out", "-n", "2", "--by", "odd")
    assert {"data": "the 25% held out", "by": "odd"}.items() <= held_out.items()
    rates = ("--pass-rate", "rates.jsonl", "--by", "odd", "--at-least", "0")
    found = generated(capsys, run, *OTHER_ROWS, *rates, "--overwrite")
    assert (found["prompts"], found["files"][-2]) == (4, "rates.jsonl")
    assert [row["pass_rate"] for row in rows("rates.jsonl")] == [1.0] * 4
    # Another seed gives other answers to the same prompts.
    assert main(["generate", run, *OTHER_ROWS, "--out", "other", "seed=8"]) == 0
    first, second = rows(Path(run, "generated", "completions.jsonl")), rows("other/completions.jsonl")
    assert [row["prompt"] for row in first] == [row["prompt"] for row in second]
    assert [row["completion"] for row in first] != [row["completion"] for row in second]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "rlhf generate nowhere +exp=NAME"),
        ([RUN, "--by", "nope"], "no reward 'nope' to pick by"),
        ([RUN, "model.path=no/such/name"], "neither a folder nor a valid name"),
        ([RUN, "+exp=quickstart", "model.path=other"], "two models are named"),
        ([RUN, "--held-out", "--data", "x.jsonl"], "--held-out and --data"),
        ([RUN, "--all", "--limit", "2"], "--all and --limit"),
        ([RUN, "trainer.args.temperature=0"], "temperature"),
        ([RUN, "rewards.many.normalize=batch", "--limit", "2", "-n", "2"], "--by REWARD, one of brevity, many"),
    ],
)
def test_refusals_of_generate(words: list[str], said: str, run: str, capsys: Any) -> None:
    assert main(["generate", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(Path(run, "generated").glob("*"))
