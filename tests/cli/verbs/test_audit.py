"""`rlhf audit`, `rlhf score` and `rlhf check --rows` with the user's own reward and CSV file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_cli.cli import main
from rlhf_cli.evaluation.score_completions import read_completions
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.reward_records import kept_batches
from tests.support.planted_holes import SUMS

Said = pytest.CaptureFixture[str]
Write = Callable[[str, str], Path]

OWN = """
def right(completions, answer, **kwargs):
    return [float(str(gold) in text) for text, gold in zip(completions, answer)]


def short(completions, **kwargs):
    return [1 - len(text) / 20 for text in completions]
"""
RIGHT = ["trainer=grpo", "data=file", "data.path=rows.csv", "rewards.right.fn=./rewards.py:right"]
EXPERIMENT = [*RIGHT, "rewards.short.fn=./rewards.py:short", "rewards.short.weight=0.2"]


@pytest.fixture(autouse=True)
def own(write: Write) -> None:
    write("rewards.py", OWN)
    rows = "".join(f'"{row["prompt"]}",{row["answer"]}\n' for row in SUMS)
    write("rows.csv", "prompt,answer\n" + rows)


def said(words: list[str], capsys: Said, code: int = 0) -> str:
    assert main(words) == code
    return capsys.readouterr().out


def as_json(words: list[str], capsys: Said) -> Any:
    return json.loads(said([*words, "--json"], capsys))


def test_holes_and_the_override_that_closes_them(capsys: Said) -> None:
    """A list of answers contains the right one and loses only by its length; numeric_answer reads one number."""
    found = as_json(["audit", *EXPERIMENT], capsys)
    kinds = {kind["name"]: kind for kind in found["kinds"]}
    assert found["gold_source"] == "column answer"
    assert [name for name, kind in kinds.items() if kind["is_near"]] == ["many_answers"]
    assert kinds["many_answers"]["let_in"] == "right"
    (advice,) = found["advice"]
    assert advice["words"] == ["rewards.right.fn=rlhf_cli.rewards.numeric:numeric_answer"]
    again = as_json(["audit", *EXPERIMENT, *advice["words"]], capsys)
    assert again["is_sound"] is True
    assert not any(kind["is_near"] or kind["is_hole"] for kind in again["kinds"])


def test_the_screen_and_strict(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = said(["audit", *RIGHT, "--strict"], capsys, code=2)
    assert "gold: column answer, written: as it is; total 1.000 (right 1.000)" in text
    assert "10 of 10 rows (95 %: 72% to 100%)" in text
    assert "1 hole: many_answers" in text.splitlines()[-1]
    assert max(map(len, text.splitlines())) <= 80
    sound = [*RIGHT, "rewards.right.fn=rlhf_cli.rewards.match:exact_match", "--strict"]
    assert said(["audit", *sound], capsys).rstrip().endswith("no hole in 13 kinds of answer")


@pytest.mark.parametrize(("flag", "hint"), [(["--kinds", "emty"], "empty"), (["--gold", "anser"], "answer")])
def test_refusals_of_audit(flag: list[str], hint: str, capsys: Said) -> None:
    assert main(["audit", *EXPERIMENT, *flag]) == 2
    assert f"try:      {hint}" in capsys.readouterr().err


def test_check_shows_rows_with_their_lengths_and_three_answers(capsys: Said) -> None:
    words = ["model=tiny", "trainer.args.max_completion_length=64", "--rows", "2"]
    text = said(["check", *EXPERIMENT, *words], capsys)
    assert f"row 0, {len(SUMS[0]['prompt'])} tokens\n{SUMS[0]['prompt']}\n" in text
    lines = [line.split() for line in text.splitlines()]
    start = lines.index(["reward", "gold", "empty", "echo"])
    assert [line[:3] for line in lines[start + 1 : start + 5]] == [
        *(["right", "1.000", "0.000"], ["short", "0.900", "1.000"], ["total", "1.180", "0.200"]),
        ["answer", "'22'", "''"],
    ]
    assert [line[:2] for line in lines if line[:1] == ["prompts"]] == [["prompts", "10"]]
    assert "an answer ends with <eos>" in text


def test_scoring_needs_neither_model_nor_data(capsys: Said, write: Write) -> None:
    write("c.jsonl", '{"prompt": "1+1", "completion": "it is 2", "answer": "2", "ok": true}\n' * 2)
    words = [word for word in EXPERIMENT if word != "data.path=rows.csv"]
    found = as_json(["score", *words, "model=local", "--completions", "c.jsonl", "--label", "ok"], capsys)
    row = found["rows"][0]
    assert (row["completion"], row["label"]) == ("it is 2", True)
    assert row["total"] == pytest.approx(1.0 + 0.2 * (1 - 7 / 20))
    assert {one["second"] for one in found["correlations"]} == {"short", "total", "characters", "ok"}


def test_a_shipped_experiment_without_a_model(capsys: Said, write: Write) -> None:
    """gsm8k_grpo: 18 is right and 7 is not, by hand; its brevity counts tokens."""
    write("c.jsonl", "".join(f'{{"prompt": "?", "answer": "#### 18", "completion": "{n}"}}\n' for n in (18, 7)))
    found = as_json(["score", "+exp=gsm8k_grpo", "--completions", "c.jsonl"], capsys)
    assert [row["rewards"]["correct"]["raw"] for row in found["rows"]] == [1.0, 0.0]
    assert {row["total"] for row in found["rows"]} == {None}, "a total without one of its parts is another reward"
    assert "model=" in found["no_total"]


# One command repeats the failure of a reward in training, until it is fixed.

FAILING = """
from pathlib import Path

def even(b, **kwargs):
    return [float(number % 2 == 0) for number in b]

async def gated(a, b, **kwargs):
    assert all(number % 2 == 0 for number in b), "the gate leaves even ones"
    for number in a:
        if number % 2 == 0 and not Path("mended").exists():
            raise OSError(f"cannot read {number}")
    return [1.0] * len(a)
"""
GATED = [
    "rewards.even.fn=./mine.py:even",
    "rewards.gated.fn=./mine.py:gated",
    "rewards.gated.trial=false",  # otherwise the check refuses it before the run
    "rewards.gated.gate={by: even, at_least: 1}",
]


def test_the_command_fails_until_the_reward_is_fixed(train: Any, workplace: Path, capsys: Said) -> None:
    (workplace / "mine.py").write_text(FAILING)
    code, folder = train(*GATED)
    assert code == 1
    (command,) = kept_batches(folder)
    assert command in capsys.readouterr().err.replace("\n", "")
    _, *words = command.split()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "reward 'gated' failed on row" in said
    assert f'File "{workplace}/mine.py"' in said
    assert "stack/calling.py" not in said  # the traceback starts in the user's code

    assert main(["score", "runs/quickstart/none"]) == 2
    assert "is not a run folder" in capsys.readouterr().err

    (workplace / "mended").touch()
    assert main(words) == 0
    assert "gated" in capsys.readouterr().out


def test_a_run_that_continues_prints_the_command_at_its_end(train: Any, workplace: Path, capsys: Said) -> None:
    (workplace / "mine.py").write_text(FAILING)
    code, folder = train(*GATED, "rewards.gated.on_error=0.0", "guards.max_error_share=1")
    assert code == 0
    told = capsys.readouterr().out
    assert "gated failed on" in told
    (command,) = kept_batches(folder)
    assert command in told.replace("\n", "")
    # Without a file, the last completions of the run are scored, and failures count as in training.
    assert main(["score", "runs/quickstart/one"]) == 0
    assert "brevity" in capsys.readouterr().out


@pytest.mark.parametrize(
    "names", [("completions_99999", "completions_100000"), ("a_longer_name", "b"), ("other", "completions_00001")]
)
def test_of_a_folder_the_table_of_the_last_step_is_read(place: Path, names: tuple[str, str]) -> None:
    experiment = prepare(["+exp=quickstart"]).experiment
    for name in names:
        pq.write_table(pa.table({"prompt": ["p"], "completion": [name]}), f"{name}.parquet")
    (row,) = read_completions(place, limit=None, experiment=experiment)
    assert row["completion"] == names[1]
