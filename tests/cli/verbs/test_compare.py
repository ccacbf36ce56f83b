"""`rlhf compare`: names of runs, flags, runs that cannot be compared, and a folder with many runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from tests.support.logged_runs import configured, write_run, write_sweep

Said, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
ENDS = {0.0: [0.50, 0.60, 0.70], 0.5: [0.54, 0.65, 0.73]}
CURVES = {"rewards/correct/mean": [0.5] * 10, "rewards/brevity/mean": [0.5] * 10}


@pytest.fixture
def compare(place: Path, capsys: Said, monkeypatch: Patch) -> Callable[..., tuple[int, str, str]]:
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


@pytest.mark.parametrize("word", ["runs", "runs/exp/s*", "run:exp/sweep"])
def test_every_name_of_a_sweep(sweep: str, compare, word: str) -> None:
    Path(sweep, "sweep.json").write_text("{}")
    code, out, _ = compare(word)
    assert (code, "6 runs, 2 settings" in out, "0.5 beats 0 on correct by 0.040" in out) == (0, True, True)


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
    for said in (
        *("seed=7 does not count: failed at step 10 of 30: out of memory", "seed=8 does not count: created, "),
        *("correct is missing or null in name=grpo,weight=0,seed=9", "runs of different trainers (grpo, sft)"),
        *("left out: 3 unreadable runs", "there is no run below empty", "nowhere is not a run folder"),
        "line 1: 'garbage'",
    ):
        assert sum(said in line for line in out.splitlines()) == 1, said
    assert "seed=6" not in out, "a last line cut by a kill is ignored"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere/*"], "no folder fits this pattern"),
        (["runs/exp/sweep", "--window", "lats"], "--window last-20"),
        (["runs/exp/sweep", "--on", "rewards/corect/mean"], "try:      rewards/correct/mean"),
        (["runs/exp/sweep", "--png", "taken/a.png"], "--png"),
        (["runs/exp/sweep", "--png", "a.gif"], "try:      --png a.gif.png"),
    ],
)
def test_refusals(sweep: str, place: Path, compare, words: list[str], said: str) -> None:
    (place / "taken").write_text("")
    code, _, err = compare(*words)
    assert (code, said in err) == (2, True)


def test_the_picture_is_written_to_the_typed_path(sweep: str, place: Path, compare) -> None:
    code, out, _ = compare(sweep, "--png", "new folder/a.png")
    assert (code, out.splitlines()[-1].endswith("new folder/a.png")) == (0, True)
    assert (place / "new folder" / "a.png").is_file()


def test_runs_with_different_measures(place: Path, compare) -> None:
    """Both log a loss, but GRPO is compared by its rewards and DPO by its loss."""
    write_run(place / "grpo", configured(), {**CURVES, "loss": [0.1] * 10})
    write_run(place / "dpo", configured(trainer="dpo", rewards={}), {"loss": [0.7] * 10})
    code, _, err = compare("grpo", "dpo")
    assert (code, "--metrics loss" in err) == (2, True)
    assert compare("grpo", "dpo", "--metrics", "loss")[0] == 0
    write_run(place / "other", configured(), {"entropy": [0.1] * 10})
    assert compare("other", "dpo")[0] == 2


KEYS = ("max_steps", "beta", "top_p", "epsilon", "warmup_steps", "weight_decay", "max_grad_norm", "adam_beta2")
NAMES = [f"rewards/{name}/mean" for name in ("correct", "brevity", "a_reward_of_a_long_name")]


@pytest.fixture
def twenty_one(sweep: str) -> Path:
    """Return a folder with a sweep and fifteen newer single runs that each change one key; the newest is last."""
    made = sorted(Path(sweep).glob("*/config.yaml"))
    Path(sweep, "sweep.json").write_text(json.dumps({"swept": ["weight"]}))
    for number in range(15):
        config = configured(0.2)
        config["trainer"]["args"][KEYS[number % len(KEYS)]] = number + 2  # type: ignore[index, call-overload]
        run = write_run(Path(f"runs/exp/20260101-{number:06d}"), config, {name: [0.1 * number] * 2 for name in NAMES})
        made.append(run.config)
    for number, file in enumerate(made):
        os.utime(file, (1e9 + number, 1e9 + number))
    return Path(sweep)


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_newest_are_shown_or_all_of_them_in_one_table_that_fits_the_screen(
    twenty_one: Path, compare, monkeypatch: Patch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    first, *lines, last = compare("runs/exp")[1].splitlines()
    assert first == "runs/exp: 12 runs, 12 settings"
    shown = "\n".join(lines)
    assert [f"20260101-{n:06d}" in shown for n in (2, 3, 14)] == [False, True, True]
    others = "3 older in runs/exp, runs/exp/sweep (6 runs)"
    assert last == f"not shown: {others}; rlhf compare 'runs/exp/*' compares all"
    assert max(map(len, lines)) <= int(columns)

    lines = compare("runs/exp/*")[1].splitlines()
    assert lines[0].startswith("runs/exp: 21 runs, ")
    assert max(map(len, lines)) <= int(columns)
    table = lines[: lines.index("", lines.index("") + 1)]
    rows = [line.split()[0] for line in table[table.index("") + 2 :] if not line.startswith("the same")]
    assert len(rows) == len(set(rows)) == 17
    text = "\n".join(lines)
    assert ("no front: settings differ in steps" in text, "●" in text) == (True, False)


def test_the_newest_sweep_is_shown_whole_and_json_and_runs_have_all(twenty_one: Path, compare) -> None:
    assert len(json.loads(compare("runs/exp", "--json")[1])["runs"]) == 21
    assert compare("runs/exp", "--runs")[1].startswith("runs/exp: 21 runs")
    for config in twenty_one.glob("*/config.yaml"):
        os.utime(config)
    text = compare("runs/exp")[1]
    assert text.startswith("runs/exp/sweep: 6 runs, 2 settings")
    assert "verdict on weight" in text
    assert "runs/exp (15 runs)" in text
