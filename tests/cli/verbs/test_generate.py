"""`rlhf generate`: what it writes, which verbs read its files, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rlhf_cli.cli import main
from rlhf_cli.numerics.intervals import pass_at_k
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


def said(capsys: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Path:
    """Return a folder with a run of an untrained model, whose answers differ."""
    place = tmp_path_factory.mktemp("generate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("RLHF_CACHE", str(model_cache))
        (place / "mine.py").write_text(REWARDS)
        rewards = [
            "~rewards.correct",
            "~rewards.format",
            "rewards.many.fn=./mine.py:many",
            "rewards.odd.fn=./mine.py:odd",
        ]
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
    assert main(["generate", run, *FOUR, "--json"]) == 0
    found = said(capsys)
    folder = Path(run) / "generated"
    completions, pairs, best = (rows(folder / f"{name}.jsonl") for name in ("completions", "pairs", "best"))

    # Four answers per prompt; everything else follows from this file.
    assert len(completions) == 48
    groups = [completions[start : start + 4] for start in range(0, 48, 4)]
    assert all(len({row["prompt"] for row in group}) == 1 for group in groups)
    assert found["curve"][0]["score"]["mean"] == pytest.approx(sum(row["total"] for row in completions) / 48)
    assert found["curve"][3]["score"]["mean"] == pytest.approx(
        sum(max(row["total"] for row in group) for group in groups) / 12
    )
    assert [point["k"] for point in found["curve"]] == [1, 2, 3, 4]

    by_prompt = {row["prompt"]: row for row in pairs}
    assert pairs
    for group in groups:
        group = [row for row in group if row["completion"].strip()]
        ended = [row["total"] for row in group if not row["is_truncated"]]
        worst = min(row["total"] for row in group)
        if ended and max(ended) > worst:
            pair = by_prompt[group[0]["prompt"]]
            assert (pair["score_chosen"], pair["score_rejected"]) == (max(ended), worst)
            assert pair["margin"] == pytest.approx(max(ended) - worst)
    assert {row["prompt"] for row in best} <= {group[0]["prompt"] for group in groups}
    assert set(best[0]) == {"prompt", "completion", "score"}

    # rlhf score gives the same totals.
    assert main(["score", run, "--completions", str(folder / "completions.jsonl"), "--json"]) == 0
    assert [row["total"] for row in said(capsys)["rows"]] == pytest.approx([row["total"] for row in completions])
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


def test_the_best_of_k_by_a_binary_reward_is_pass_at_k(run: str, capsys: Any) -> None:
    """Chen et al. (arXiv 2107.03374) estimate the chance that at least one of k answers is right."""
    assert main(["generate", run, "-n", "5", "--limit", "6", "--by", "odd", "--held-out", "--json"]) == 0
    found = said(capsys)
    assert found["data"] == "the 25% held out"
    completions = rows(Path(run) / "generated" / "completions.jsonl")
    right = [int(sum(row["rewards"]["odd"] for row in completions[start : start + 5])) for start in range(0, 30, 5)]
    for k, point in enumerate(found["curve"], 1):
        assert point["score"]["mean"] == pytest.approx(sum(pass_at_k(5, count, k) for count in right) / 6)


def test_a_model_with_the_rewards_of_an_experiment(run: str, capsys: Any) -> None:
    words = ["generate", f"{run}/model", "+exp=quickstart", "-n", "2", "--limit", "2", "data.args.num_rows=8", "--json"]
    assert main(words) == 0
    found = said(capsys)
    assert set(found["curve"][0]["rewards"]) == {"correct", "format", "brevity"}
    assert (Path("generated") / "quickstart-one" / "completions.jsonl").is_file()
    assert main(["generate", run, *OTHER_ROWS, "--json"]) == 0
    assert said(capsys)["prompts"] == 4
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
        ([RUN, "--held-out", "--data", "x.jsonl"], "--held-out and --data"),
        ([RUN, "trainer.args.temperature=0"], "temperature"),
        ([RUN, "rewards.many.normalize=batch", "--limit", "2", "-n", "2"], "--by REWARD, one of brevity, many"),
    ],
)
def test_refusals_of_generate(words: list[str], said: str, run: str, capsys: Any) -> None:
    assert main(["generate", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(Path(run, "generated").glob("*"))


def test_pass_rates_choose_and_sort_the_rows_of_the_next_run(run: str, capsys: Any) -> None:
    rates = Path("other/rates.jsonl")
    rates.parent.mkdir()
    ask = ["generate", run, *FOUR, "--pass-rate", str(rates), "--json"]
    assert main(ask) == 2  # two rewards, and no primary one: which says that an answer passes?
    assert "--by brevity" in capsys.readouterr().err
    assert not (Path(run) / "generated").exists()
    assert main([*ask, "--by", "odd"]) == 0
    assert str(rates) in said(capsys)["files"]
    written, completions = rows(rates), rows(Path(run) / "generated" / "completions.jsonl")
    shares = [sum(row["rewards"]["odd"] for row in completions[start : start + 4]) / 4 for start in range(0, 48, 4)]
    assert [row["pass_rate"] for row in written] == shares
    assert [row["prompt"] for row in written] == [row["prompt"] for row in completions[::4]]
    assert {"a", "b"} <= set(written[0])
    assert main([*ask, "--by", "odd", "--overwrite", "--at-least", "0"]) == 0  # negative control: every answer passes
    assert {row["pass_rate"] for row in rows(rates)} == {1.0}
    capsys.readouterr()
    assert main([*ask, "--by", "odd", "--out", "other"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*ask[:-2], "other/rates.txt", "--by", "odd", "--overwrite"]) == 2

    assert main([*ask, "--by", "odd", "--overwrite"]) == 0
    kept = sorted(share for share in shares if 0.1 <= share <= 0.9)
    words = ["data=file", f"data.path={rates}", "data.keep={column: pass_rate, between: [0.1, 0.9]}"]
    words += ["data.sort=pass_rate", "trainer.args.shuffle_dataset=false", "trainer.args.max_steps=1"]
    words += ["trainer.args.log_completions=true", "trainer.args.num_generations=4", "run.name=sorted"]
    assert main(["train", *SMALL, *words]) == 0
    table = pyarrow.parquet.read_table("runs/quickstart/sorted/completions/completions_00001.parquet").to_pydict()
    assert table["pass_rate"][::4] == kept[:2]
