"""`rlhf compare`: names of runs, flags, and runs that cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from tests.support.logged_runs import configured, write_run, write_sweep

Said = pytest.CaptureFixture[str]
ENDS = {0.0: [0.50, 0.60, 0.70], 0.5: [0.54, 0.65, 0.73]}
CURVES = {"rewards/correct/mean": [0.5] * 10, "rewards/brevity/mean": [0.5] * 10}


@pytest.fixture
def compare(place: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Return `compare(*words)`, which gives (exit code, stdout, stderr) with lines of any length."""
    monkeypatch.setenv("COLUMNS", "500")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["compare", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def sweep(place: Path) -> str:
    write_sweep(place / "runs" / "exp" / "sweep", ENDS)
    return "runs/exp/sweep"


@pytest.mark.parametrize("words", [["runs"], ["runs/exp/s*"], ["run:exp/sweep"]])
def test_every_name_of_a_sweep(sweep: str, compare, words: list[str]) -> None:
    Path(sweep, "sweep.json").write_text("{}")
    code, out, _ = compare(*words)
    assert code == 0
    assert "6 runs, 2 settings" in out
    assert "0.5 beats 0 on correct by 0.040" in out


def test_runs_that_cannot_be_compared_are_listed_beside_the_others(sweep: str, place: Path, compare) -> None:
    bad = place / "bad"
    write_run(bad / "failed", configured(0.0, 7), CURVES, state="failed", reason="out of memory")
    write_run(bad / "created", configured(0.0, 8), {}, state="created")
    write_run(bad / "nan", configured(0.0, 9), {**CURVES, "rewards/correct/mean": [float("nan")] * 10})
    cut = write_run(bad / "cut", configured(0.0, 6), CURVES).metrics
    cut.write_bytes(cut.read_bytes()[:-20])
    damaged = write_run(bad / "damaged", configured(0.0, 5), CURVES).metrics
    damaged.write_text("garbage\n" + damaged.read_text())
    write_run(bad / "other", {"seed": 0, "trainer": {"name": "sft"}}, {"loss": [0.5] * 10})
    (place / "empty").mkdir()
    code, out, _ = compare(sweep, "bad", "empty", "nowhere")
    assert code == 0
    lines = out.splitlines()
    for said in (
        *("seed=7 does not count: failed at step 10 of 30: out of memory", "seed=8 does not count: created, "),
        *("correct is missing or null in name=grpo,weight=0,seed=9", "runs of different trainers (grpo, sft)"),
        *("left out: 3 unreadable runs", "there is no run below empty", "nowhere is not a run folder"),
        "line 1: 'garbage'",
    ):
        assert sum(said in line for line in lines) == 1, said
    assert "seed=6" not in out, "a last line cut by a kill is ignored"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere/*"], "no folder fits this pattern"),
        (["runs/exp/sweep", "--window", "lats"], "--window last-20"),
        (["runs/exp/sweep", "--on", "rewards/corect/mean"], "try:      rewards/correct/mean"),
    ],
)
def test_refusals_have_exit_code_2(sweep: str, compare, words: list[str], said: str) -> None:
    code, out, err = compare(*words)
    assert (code, bool(out)) == (2, "--json" in words)
    assert said in err


def test_the_picture_is_written_to_the_typed_path(sweep: str, place: Path, compare) -> None:
    code, out, _ = compare(sweep, "--png", "new folder/a.png")
    assert (code, out.splitlines()[-1].endswith("new folder/a.png")) == (0, True)
    assert (place / "new folder" / "a.png").is_file()
    (place / "taken").write_text("")
    code, _, err = compare(sweep, "--png", "taken/a.png")
    assert (code, "--png" in err) == (2, True)
    code, _, err = compare(sweep, "--png", "a.gif")
    assert (code, "try:      --png a.gif.png" in err) == (2, True)


def test_runs_with_different_measures(place: Path, compare) -> None:
    """Both log a loss, but GRPO is compared by its rewards and DPO by its loss."""
    write_run(place / "grpo", configured(), {**CURVES, "loss": [0.1] * 10})
    write_run(place / "dpo", configured(trainer="dpo", rewards={}), {"loss": [0.7] * 10})
    code, _, err = compare("grpo", "dpo")
    assert code == 2
    assert "--metrics loss" in err
    assert compare("grpo", "dpo", "--metrics", "loss")[0] == 0
    write_run(place / "other", configured(), {"entropy": [0.1] * 10})
    assert compare("other", "dpo")[0] == 2
