"""What was typed for a run that goes on is what is trained: as the run that had it from the beginning, where it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, checkpoint_folder, read_json
from rlhf_cli.runs.run_status import read_status
from tests.support.cut_runs import cut, events, is_same

CONSTANT = "trainer.args.lr_scheduler_type=constant"
SHORT = "trainer.args.max_steps=5"
RATE = 1e-3
"""The quickstart's learning rate."""


def rates(folder: RunFolder) -> list[float]:
    return series(read_metrics(folder.metrics), "learning_rate")[1]


@pytest.mark.fault(11)
def test_a_finished_run_that_goes_on_is_the_longer_run(whole, workplace: Path) -> None:
    """5 steps and then 3 more, under a schedule that knows no end: to the last bit the run of 8."""
    folder = cut(whole(CONSTANT, SHORT), 5, workplace / "cut")
    folder.status.write_text(folder.status.read_text().replace('"failed"', '"finished"'))
    assert main(["resume", str(folder.path), "trainer.args.max_steps=8"]) == 0
    assert (read_status(folder).state, read_status(folder).step) == ("finished", 8)
    assert is_same(folder, whole(CONSTANT))
    assert not is_same(whole(CONSTANT, SHORT), whole(CONSTANT))  # negative control
    assert [event["step"] for event in events(folder)] == list(range(1, 9))
    assert folder.read_config()["trainer"]["args"]["max_steps"] == 8
    weights, last = folder.model / "model.safetensors", checkpoint_folder(folder.checkpoints, 8)
    assert weights.samefile(last / "model.safetensors")  # the disk holds them once
    assert main(["resume", str(folder.path), "trainer.args.max_steps=9"]) == 0
    assert problem_with(last) is None  # though model/ has been written again
    assert weights.samefile(checkpoint_folder(folder.checkpoints, 9) / "model.safetensors")


def test_allowed_steps_get_the_rates_of_the_longer_schedule(whole, workplace: Path, capsys) -> None:
    """Linear from step s of n: the rate is (1 - s/n) of the first (transformers' get_linear_schedule_with_warmup)."""
    folder = cut(whole(SHORT), 3, workplace / "cut")
    words = ["resume", str(folder.path), "trainer.args.max_steps=8"]
    assert main(words) == 2
    assert "spreads the learning rate over all steps" in capsys.readouterr().err
    assert main([*words, "--allow", "trainer.args.max_steps"]) == 0
    assert "trainer.args.max_steps: 5 -> 8" in capsys.readouterr().out
    by_hand = [*(RATE * (1 - step / 5) for step in range(3)), *(RATE * (1 - step / 8) for step in range(3, 8))]
    assert rates(folder) == pytest.approx(by_hand, rel=1e-12)
    assert "max_steps: 5 -> 8" in str(read_json(folder.provenance)["resumed"][0]["changes"])
    assert main(["resume", str(folder.path)]) == 0  # the new configuration is the one that is known now


@pytest.mark.fault(11)
def test_an_allowed_learning_rate_is_used(whole, workplace: Path) -> None:
    """transformers restores the old one with optimizer and schedule: the header would show a value that is not used."""
    folder = cut(whole(CONSTANT), 6, workplace / "cut")
    words = ["trainer.args.learning_rate=0.25", "trainer.args.weight_decay=0.5"]
    allow = ["--allow", "trainer.args.learning_rate", "--allow", "trainer.args.weight_decay"]
    assert main(["resume", str(folder.path), *words, *allow]) == 0
    assert rates(folder) == [RATE] * 6 + [0.25] * 2


def test_how_often_is_saved_and_logged_is_what_was_typed(whole, workplace: Path) -> None:
    """The Trainer's state in the checkpoint holds both, and is loaded after the arguments were read."""
    folder = cut(whole(), 4, workplace / "cut")
    words = ["trainer.args.save_steps=2", "trainer.args.logging_steps=4", "trainer.args.save_total_limit=2"]
    assert main(["resume", str(folder.path), *words]) == 0
    assert [path.name for path in sorted(folder.checkpoints.iterdir())] == ["checkpoint-6", "checkpoint-8"]
    assert [event["step"] for event in events(folder)] == [1, 2, 3, 4, 8]
    assert is_same(folder, whole())


LATE = """
import importlib
def late(completions, trainer_state, **kwargs):
    sign = importlib.import_module("sign" + "_of").K if trainer_state.global_step == 2 else 1.0
    return [sign * (len(completion) % 7) for completion in completions]
"""


def test_a_helper_whose_name_is_made_up_while_it_trains(train, workplace: Path, capsys) -> None:
    (workplace / "mine.py").write_text(LATE)
    helper = workplace / "sign_of.py"
    helper.write_text("K = 1.0\n")
    words = ["rewards.mine.fn=./mine.py:late", "trainer.args.lr_scheduler_type=constant"]
    code, folder = train(*words)
    assert code == 0
    assert main(["resume", str(folder.path), "trainer.args.max_steps=4"]) == 0  # negative control: it has not changed
    helper.write_text("K = -1.0\n")
    longer = ["resume", str(folder.path), "trainer.args.max_steps=5"]
    capsys.readouterr()
    assert main(longer) == 2
    assert f"code[{helper}]: sha256" in capsys.readouterr().err
    assert main([*longer, "--allow", "code"]) == 0
    assert main([*longer[:2], "trainer.args.max_steps=6"]) == 0  # the new one is known now
