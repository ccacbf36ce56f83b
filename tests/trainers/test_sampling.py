"""A round that is drawn again until its groups differ in a named raw reward."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from tests.support.cut_runs import goes_on_as, is_same, table
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.whole

SOURCE = """
def odd(completions, **columns):
    return [float(len(text) % 2) for text in completions]

def same(completions, **columns):
    return [1.0 for _ in completions]
"""
KEEP = ("rewards.odd.fn=./mine.py:odd", "rewards.odd.weight=0.0", "rewards.odd.eager=true")
SAME = ("rewards.same.fn=./mine.py:same", "sampling.keep_groups.by=same")


@pytest.fixture
def mine(workplace: Path) -> Path:
    (workplace / "mine.py").write_text(SOURCE)
    return workplace / "mine.py"


@pytest.mark.parametrize("words", [(), ("trainer=rloo",)], ids=["grpo", "rloo"])
def test_a_single_draw_and_a_filter_that_keeps_nothing_train_as_none_does(train, mine: Path, words) -> None:
    """The last is the control: a filter that keeps something trains another model."""
    one_step = (*words, *KEEP, *SAME[:1], "trainer.args.max_steps=1", "trainer.args.learning_rate=0.01")
    runs = {
        name: train(*one_step, *more, name=name)
        for name, more in {
            "none": (),
            "one": ("sampling.keep_groups={by: odd, tries: 1}",),
            "nothing": SAME[1:],
            "odd": ("sampling.keep_groups={by: odd, tries: 4}",),
        }.items()
    }
    assert [code for code, _ in runs.values()] == [0] * 4
    folders = {name: folder for name, (_, folder) in runs.items()}
    assert is_same(folders["one"], folders["none"])
    without, filtered = table(folders["none"], 1), table(folders["nothing"], 1)
    for column in ("completion", "advantage"):  # the weights differ by rounding: TRL shuffles later random numbers
        assert filtered[column][: len(without[column])] == without[column]
    assert filtered["sampling.kept"] == [True] * 8 + [False] * 16
    assert not is_same(folders["odd"], folders["none"])
    assert "no group differs in same after 3 draws" in folders["nothing"].log.read_text()


@pytest.mark.parametrize("step", [2, 5])
def test_a_stopped_run_goes_on_bit_for_bit(whole, workplace: Path, step: int) -> None:
    words = ("rewards.format.weight=1", "sampling.keep_groups={by: brevity, tries: 3}", "data.args.num_rows=40")
    run = whole(*words)
    assert any(event["sampling/draws"] > 1 for event in read_metrics(run.metrics)[:-1])
    goes_on_as(run, step, workplace / "cut")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (PPO_SMALL, "sampling.keep_groups"),
        (["trainer.args.scale_rewards=batch"], "trainer.args.scale_rewards"),
        (["trainer=rloo", "trainer.args.normalize_advantages=true"], "trainer.args.normalize_advantages"),
        (["aggregate=normalize_then_sum"], "aggregate"),
        (["sampling.keep_groups.by=corect"], "sampling.keep_groups.by=correct"),
        (["sampling.keep_groups.tries=0"], "sampling.keep_groups.tries"),
    ],
)
def test_what_compares_several_groups_is_refused(workplace: Path, capsys, words: list[str], key: str) -> None:
    assert main(["check", *SMALL, "sampling.keep_groups.by=correct", *words]) == 2
    assert key in capsys.readouterr().err
