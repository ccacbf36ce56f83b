"""What `rlhf generate` writes for known answers, which rows it takes, and what it refuses before the work."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, RunError, UserError
from rlhf_cli.evaluation import best_of_n
from rlhf_cli.evaluation.best_of_n import GenerationRequest, generate, make_room, pass_rate_file
from rlhf_cli.evaluation.evaluation_results import AnsweredPrompt, PartAnswers
from rlhf_cli.evaluation.held_out_rows import end_of_run, prompts_of
from rlhf_cli.evaluation.score_completions import EndOfRun
from rlhf_cli.evaluation.targets import Target
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from rlhf_cli.runs.run_folder import RunFolder, write_json
from rlhf_cli.runs.run_status import RunState, Status

WORDS = ["trainer=grpo", "model=tiny", "data=toy_sums", "data.args.num_rows=16", "seed=5"]
WORDS += ["trainer.args.temperature=0.5", "reward@rewards.right=sums_correct", "reward@rewards.short=brevity"]
IMAGE = {"bytes": b"", "path": "a.png"}
ROWS: list[dict[str, object]] = [{"prompt": "a?", "answer": "1", "image": IMAGE}, {"prompt": "b?"}]
SCORES = [(0.0, 2.0), (1.0, 3.0), (0.5, 9.0), (0.0, 1.0), (1.0, 2.0), (0.0, 4.0)]
"""(right, short) of three answers to each of two prompts. Their totals are 2, 4, 9.5 and 1, 3, 4; 9.5 is truncated."""


def experiment(*words: str) -> Experiment:
    return prepare([*WORDS, *words]).experiment


def generated(folder: Path, *, by: str = "total", **given: Any) -> tuple[Any, list[Any]]:
    """Return the result and the arguments of the request for answers."""
    folder.mkdir(exist_ok=True)
    asked: list[Any] = []
    rewards = [
        {name: ScoredReward(raw, 7.0, 7.0) for name, raw in zip(("right", "short"), pair, strict=True)}
        for pair in SCORES
    ]
    answers = [AnsweredPrompt(ROWS[n // 3], f"answer {n}", [n], is_truncated=n == 2) for n in range(6)]
    scored = [ScoredRow(sum(pair), held) for pair, held in zip(SCORES, rewards, strict=True)]

    def interact(*arguments: Any) -> Any:
        asked.extend(arguments)
        return {"sampled": PartAnswers(3, answers, scored)}, None

    wanted = {"least_margin": 0.0, "keep": 2, "at_least": None, "batch_size": None, **given}
    request, target = GenerationRequest(3, by, **wanted), Target("policy", folder / "model", "exp/run", folder)
    return generate(target, experiment(), ROWS, "rows", request, on_batch=len, interact=interact), asked


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def scored(chosen: float, rejected: float) -> dict[str, float]:
    return {"margin": chosen - rejected, "score_chosen": chosen, "score_rejected": rejected}


def test_the_files_of_known_answers(tmp_path: Path) -> None:
    """Of the first prompt answer 2 is best and truncated, so 1 is chosen: 4 - 2; of the second 5 against 3: 4 - 1."""
    folder = tmp_path / "out"
    found, (model, asks, *others) = generated(folder)
    assert (model, list(asks.rewards), others) == (folder / "model", ["right", "short"], [ROWS, 3, 32, EndOfRun()])
    names = ("completions.jsonl", "pairs.jsonl", "best.jsonl", "best_of_n.json")
    assert found.files == [folder / name for name in names]
    completions, pairs, best = map(read, found.files[:3])
    assert pairs == found.made["pairs.jsonl"].rows
    assert pairs == [
        {"prompt": "a?", "image": "a.png", "chosen": "answer 1", "rejected": "answer 0", **scored(4.0, 2.0)},
        {"prompt": "b?", "chosen": "answer 5", "rejected": "answer 3", **scored(4.0, 1.0)},
    ]
    assert [(row["prompt"], row["completion"], row["score"]) for row in best] == [
        *(("a?", "answer 1", 4.0), ("a?", "answer 0", 2.0), ("b?", "answer 5", 4.0), ("b?", "answer 4", 3.0))
    ]
    assert (len(completions), completions[0]["image"]) == (6, "a.png")
    assert completions[4] == {
        **{"prompt": "b?", "completion": "answer 4", "completion_ids": [4], "is_truncated": False, "part": "sampled"},
        **{"sample": 1, "total": 3.0, "rewards": {"right": 1.0, "short": 2.0}},
    }
    # The best of three have the totals 9.5 and 4, the first is truncated, and their other rewards are 0.5, 9 and 0, 4.
    last = found.best.curve[-1]
    assert (last.k, last.score.mean, last.truncated.mean, last.rewards["right"].mean) == (3, 6.75, 0.5, 0.25)
    content = found.content
    assert json.loads(found.files[3].read_text()) == json.loads(json.dumps(content))
    settings, curve, when = (content.pop(name) for name in ("settings", "curve", "time"))
    assert curve == [asdict(point) for point in found.best.curve]
    assert {"temperature": 0.5, "seed": 5, "batch_size": 32}.items() <= settings.items()
    assert 1.7e9 < when < 4e9
    assert content == {
        **{"model": "exp/run", "path": str(folder / "model"), "data": "rows", "samples": 3, "prompts": 2},
        **{"by": "total", "prompts_without_score": 0},
        "made": {"pairs.jsonl": {"rows": 2, "left_out": {}}, "best.jsonl": {"rows": 4, "left_out": {}}},
    }


def test_files_of_before_are_removed_and_pass_rates_written(tmp_path: Path) -> None:
    """By `right` two answers of the first prompt score 0.5 or more, and one of the second; none differ by 2."""
    folder, rates = tmp_path / "out", tmp_path / "rates.jsonl"
    generated(folder)
    given = {"least_margin": 2.0, "keep": 3, "at_least": 0.5, "batch_size": 7, "pass_rate": (rates, "right")}
    found, asked = generated(folder, by="right", **given)
    assert [file.name for file in found.files] == ["completions.jsonl", "best.jsonl", "rates.jsonl", "best_of_n.json"]
    assert sorted(file.name for file in folder.iterdir()) == ["best.jsonl", "best_of_n.json", "completions.jsonl"]
    assert (asked[4], found.best.by, found.made["pairs.jsonl"].left_out) == (7, "right", {"the margin is below 2": 2})
    assert [row["score"] for row in found.made["best.jsonl"].rows] == [1.0, 1.0]
    assert read(rates) == [{**ROWS[0], "image": "a.png", "pass_rate": 2 / 3}, {"prompt": "b?", "pass_rate": 1 / 3}]


@pytest.mark.parametrize(("template", "tools"), [("{{ tools }}", ["add"]), ("{{ messages }}", [])])
def test_rows_repeat_what_the_chat_template_read(tmp_path: Path, template: str, tools: list[str]) -> None:
    """A data column `tools` is none of that."""
    given = "trainer.args.chat_template_kwargs={short: true}"
    asked = experiment(given, "tools.add.fn=rlhf_cli.rewards.toy:add")
    rows: list[Any] = [{"prompt": [{"role": "user", "content": "a?"}], "tools": [{"function": {"name": "mine"}}]}]
    answers = PartAnswers(1, [AnsweredPrompt(rows[0], "1", [1], False)], [ScoredRow(1.0, {})])
    policy: Any = SimpleNamespace(tokenizer=SimpleNamespace(get_chat_template=lambda **_: template))
    target, request = Target("policy", tmp_path, "", tmp_path), GenerationRequest(1, "total", 0.0, 1, None, None)
    interact: Any = lambda *_: ({"sampled": answers}, None)  # noqa: E731
    found = generate(target, asked, rows, "", request, on_batch=len, policy=policy, interact=interact)
    (row,) = found.made["best.jsonl"].rows
    assert [tool["function"]["name"] for tool in row.get("tools", ())] == tools
    assert row["chat_template_kwargs"] == {"short": True}


@pytest.mark.parametrize("max_steps", [9, None])
def test_answers_are_scored_as_at_the_end_of_their_run(tmp_path: Path, max_steps: int | None) -> None:
    run = RunFolder(tmp_path)
    write_json(run.status, asdict(Status(RunState.FINISHED, 7, max_steps)))
    assert end_of_run(Target("policy", run.model, "", tmp_path, run)) == EndOfRun(7, max_steps or 1)


def test_answers_without_a_total_are_refused_before_they_are_sampled(tmp_path: Path) -> None:
    target, without = Target("policy", tmp_path, "", tmp_path), experiment("rewards.short.normalize=batch")

    def begin(by: str) -> None:
        request = GenerationRequest(1, by, 0.0, 1, None, None)
        generate(target, without, ROWS, "", request, on_batch=len, interact=lambda *_: 1 / 0)

    with pytest.raises(ConfigError) as caught:
        begin("total")
    assert (caught.value.where, caught.value.hint) == ("aggregate, rewards", "--by right")
    assert caught.value.expected == "--by REWARD, one of right, short"
    assert str(caught.value.got).startswith("rewards.short.normalize=batch")
    with pytest.raises(ZeroDivisionError):
        begin("right")


def test_a_folder_with_completions_is_kept(place: Path) -> None:
    folder = place / "some" / "out"
    make_room(folder, overwrite=False)
    (folder / "other.txt").touch()
    make_room(folder, overwrite=False)
    for name in ("best_of_n.json", "pairs.jsonl"):
        (folder / name).touch()
    make_room(folder, overwrite=True)
    with pytest.raises(RunError) as caught:
        make_room(folder, overwrite=False)
    assert (caught.value.where, caught.value.got) == ("some/out", "pairs.jsonl, best_of_n.json")
    assert caught.value.hint == "--out FOLDER, or --overwrite"


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before the sampling; a disk that is full afterwards is no crash."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError) as caught:
        make_room(Path("/proc"), overwrite=False)
    assert (caught.value.where, caught.value.hint) == ("/proc", "--out FOLDER")
    monkeypatch.setattr(best_of_n, "write_json", full)
    with pytest.raises(UserError) as caught:
        generated(tmp_path / "out")
    assert (caught.value.where, caught.value.got) == (str(tmp_path / "out"), "No space left on device")


def test_the_file_of_pass_rates(tmp_path: Path) -> None:
    third = "reward@rewards.third=brevity"
    plain, primary = experiment(), experiment(third, "primary={by: short, at_least: 1.0}")
    partly = experiment(third, "rewards.third.gate={by: short, at_least: 1.0}")
    new, there = tmp_path / "new.jsonl", tmp_path / "there.jsonl"
    there.touch()
    assert pass_rate_file(plain, None, None, overwrite=False) is None
    assert pass_rate_file(primary, there, None, overwrite=True) == (there, "short")
    assert pass_rate_file(primary, new, "right", overwrite=False) == (new, "right")
    for asked, by in ((plain, None), (plain, "total"), (partly, None)):
        with pytest.raises(ConfigError) as refused:
            pass_rate_file(asked, new, by, overwrite=False)
        assert refused.value.expected == "--by REWARD, one of " + ", ".join(asked.rewards)
        assert refused.value.hint == "--by right"
    other, nowhere = tmp_path / "new.txt", tmp_path / "no" / "new.jsonl"
    for file, got in ((other, other), (nowhere, nowhere), (there, f"{there}, which exists")):
        with pytest.raises(RunError) as caught:
            pass_rate_file(plain, file, "right", overwrite=False)
        assert (caught.value.where, caught.value.got) == ("--pass-rate", str(got))


def test_which_rows_are_prompts(place: Path) -> None:
    """12 of 16 rows are trained on, 4 held out; of two named sets each row, or as many as asked, evenly spaced."""
    asked = experiment("data.eval.fraction=0.25")
    for limit, held_out, count, which in (
        (None, False, 12, "training rows"),
        (5, False, 5, "training rows"),
        (None, True, 4, "the 25% held out"),
    ):
        rows, words = prompts_of(asked, data=None, held_out=held_out, limit=limit)
        assert (len(rows), words) == (count, which)
    for name, size in (("a", 3), ("b", 2)):
        text = "".join(f'{{"prompt": "{name}{row}", "a": 1, "b": 1}}\n' for row in range(size))
        Path(f"{name}.jsonl").write_text(text)
    sets = experiment("data.eval={a: {path: a.jsonl}, b: {path: b.jsonl}}")
    for limit, prompts in ((None, "a0 a1 a2 b0 b1"), (4, "a0 a1 a2 b0"), (2, "a0 b0"), (9, "a0 a1 a2 b0 b1")):
        rows, words = prompts_of(sets, data=None, held_out=True, limit=limit)
        assert ([row["prompt"] for row in rows], words) == (prompts.split(), "a: a.jsonl, b: b.jsonl")
    assert prompts_of(sets, data="other", held_out=False, limit=1)[1] == "other"
    for data, hint in ((None, "--data FILE"), ("other", None)):
        with pytest.raises(ConfigError) as caught:
            prompts_of(experiment(), data=data, held_out=data is None, limit=None)
        assert (caught.value.where, caught.value.hint) == ("data.eval", hint)
