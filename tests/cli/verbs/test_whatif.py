"""`rlhf whatif`: its tables at 80 columns and its refusals."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from rlhf_cli.cli import main
from rlhf_cli.display.whatif_tables import show_alternatives, show_what_if
from rlhf_cli.runs.run_folder import EDITED_CONFIG, RunFolder
from tests.support.stored_tables import frozen, write_table

Said = pytest.CaptureFixture[str]
CENTRED = [0.275, -0.125, 0.675, -0.825]
SCORES = {"correct": [1.0, 0.0, 1.0, 0.0], "format": [0.0, 1.0, 1.0, 0.0], "brevity": [0.5, 1.0, 0.0, 0.0]}
LESS = "rewards.correct.weight=0.25"


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return a run with two rounds of one group of four, as in tests/analysis/whatif/test_what_if.py."""
    monkeypatch.setenv("COLUMNS", "80")
    folder = frozen(place, "trainer.args.scale_rewards=none")
    for step in (1, 2):
        write_table(folder, step, **SCORES, advantage=CENTRED)
    return folder


def test_at_80_columns(run: RunFolder, place: Path, capsys: Said) -> None:
    """Another run, the newest, is damaged. Several values are a table."""
    damaged = RunFolder(place / "runs" / "other" / "newest")
    damaged.path.mkdir(parents=True)
    damaged.config.write_text("- a")
    words = [LESS, "rewards.brevity.gate={by: correct, at_least: 1.0, otherwise: exclude}"]
    assert main(["whatif", str(run.path), *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("what if  rewards.correct.weight 1.0 → 0.25\n    and  rewards.brevity.gate none → correct")
    assert [text in out for text in ("share of advantages", "mean total", "covariance")] == [True] * 3
    notes = out[out.index("push: ") :].splitlines()
    cut = [line for line, after in pairwise(notes) if line[-1] != "." and len(f"{line} {after.split()[0]}") <= 80]
    assert cut == [], "wrapped twice"
    assert main(["whatif", str(run.path), "rewards.correct.weight=0.25,2", "rewards.brevity.weight=0,1"]) == 0
    table = capsys.readouterr().out
    assert table.startswith("4 what-ifs of ")
    assert "the run as it was" in table
    assert max(map(len, [*out.splitlines(), *table.splitlines()])) <= 80


def test_an_edited_configuration_is_named(run: RunFolder, capsys: Said) -> None:
    run.provenance.write_text('{"sha256": {"config": "another"}}')
    assert main(["whatif", str(run.path), LESS]) == 0
    assert EDITED_CONFIG in capsys.readouterr().err


def answered(step: int, **figures: Any) -> Any:
    """A round of one group in which nothing changed."""
    changed = dict.fromkeys(("best_changed", "sign_changed", "why", "tau"))
    nothing = {"push": {}, "share": {}, "mean_total": (None, None), "num_unknown": 0}
    return SimpleNamespace(**{"step": step, "num_groups": 1, "num_answered": 1, **changed, **nothing, **figures})


def test_a_caveat_of_one_answer_is_told_with_its_change(capsys: Said) -> None:
    """Only the notices of the first answer were printed before."""
    rounds = [answered(1, tau=1.0, best_changed=0.0, why="x")]
    changes = [[SimpleNamespace(key="rewards.a.weight", old=1, new=new)] for new in (2, 3)]
    answers = [SimpleNamespace(changes=one, rounds=rounds, left_out=["y"] * (one[0].new == 3)) for one in changes]
    show_alternatives(Console(width=80), "run", cast(Any, answers))
    assert capsys.readouterr().out.splitlines()[-2:] == ["no advantages: x", "a.weight 1 → 3: left out: y"]


def test_a_mean_is_taken_over_the_rounds_that_have_the_figure(capsys: Said) -> None:
    rounds = [answered(step, tau=tau) for step, tau in ((1, 1.0), (3, None), (5, 0.5))]
    show_what_if(Console(width=80), "run", cast(Any, SimpleNamespace(changes=[], rounds=rounds, left_out=[])))
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("all ")]
    assert row == ["all", "0.75", "-", "-"]


@pytest.mark.parametrize(("width", "blocks"), [(40, 2), (80, 1)])
def test_no_figure_is_folded_on_a_narrow_terminal(width: int, blocks: int, capsys: Said) -> None:
    figures: dict[str, Any] = {"mean_total": (-12.5, -13.5), "push": {"correct": (-12.5, -13.5)}}
    one = answered(1000, tau=1.0, best_changed=1.0, sign_changed=1.0, **figures)
    answer = SimpleNamespace(changes=[], rounds=[one], left_out=[])
    show_what_if(Console(width=width), "run", cast(Any, answer))
    show_alternatives(Console(width=width), "run", [cast(Any, answer)] * 2)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("1000 ") for line in lines) == blocks
    assert [text in "\n".join(lines) for text in (" -12.50 → -13.50 ", "correct, raw  -12.50 → -13.50")] == [True] * 2
    assert sum(line.startswith("the run as it was ") for line in lines) == blocks


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["nothing would have been different", "rewards.correct.weight=2"]),
        (["rewards.correct.weight=1"], ["nothing would have been different"]),
        (["rewards.brevty.weight=1"], ["the run has no reward 'brevty'", "rewards.brevity.weight=1"]),
        (["trainer.args.learning_rate=1"], ["decides what is sampled or learned", "trainer.args.learning_rate"]),
        (["rewards.brevity.args.zero=20"], ["has not scored 'brevity' like this", "rlhf score"]),
        (["rewards.brevity.gate={by: unknown, at_least: 1}"], ["unknown"]),
        (["+exp=quickstart"], ["a run cannot get another exp"]),
        (["another", LESS], ["one run at a time"]),
        (["rewards.new={fn: 'os:getcwd'}"], ["has scored no reward 'new'", "rlhf score"]),
        (["rewards.correct.weight=range(0,90)"], ["90 combinations"]),
    ],
)
def test_refusals(run: RunFolder, capsys: Said, words: list[str], said: list[str]) -> None:
    assert main(["whatif", str(run.path), *words]) == 2
    err = capsys.readouterr().err
    assert [text for text in said if text not in err] == [], err
