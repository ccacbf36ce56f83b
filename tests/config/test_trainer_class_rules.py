"""`trainer.class`: what its source says is checked before TRL is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.planning import Judged, Refused

QUICK = "exp=quickstart"


@pytest.fixture(autouse=True)
def mine(place: Path) -> Path:
    file = place / "mine.py"
    file.write_text(
        "import trl\n"
        "from trl import GRPOTrainer, RLOOTrainer as Leave\n"
        "from elsewhere import Unknown\n"
        "class Base(GRPOTrainer): pass\n"
        "class Mine(Base): pass\n"
        "class Rloo(trl.RLOOTrainer): pass\n"
        "class Odd(Unknown): pass\n"
    )
    return file


@pytest.mark.parametrize("name", ["./mine.py:Base", "./mine.py:Mine", "./mine.py:Odd", "mine:Mine"])
def test_accepted(judged: Judged, name: str) -> None:
    experiment = judged(QUICK, f"trainer.class={name}")
    assert experiment.trainer.own_class == name
    assert experiment.model_dump(mode="json")["trainer"]["class"] == name


def test_a_subclass_of_what_trainer_trl_names(judged: Judged) -> None:
    assert judged(QUICK, "trainer=rloo", "trainer.class=./mine.py:Rloo").trainer.trl == "RLOOTrainer"


@pytest.mark.parametrize(
    ("name", "got", "hint"),
    [
        ("./mine.py:Min", "./mine.py:Min", "trainer.class=./mine.py:Mine"),
        ("./mine.py:Rloo", "trainer.trl=GRPOTrainer", "trainer.trl=RLOOTrainer"),
        ("trl.experimental.gkd:GKDTrainer", "trainer.trl=GRPOTrainer", "rlhf list trainer"),
        ("./nowhere.py:Mine", "./nowhere.py", None),
        ("./mine.py", "./mine.py", None),
    ],
)
def test_refused(refused: Refused, name: str, got: str, hint: str | None) -> None:
    error = refused(QUICK, f"trainer.class={name}")
    assert (error.where, error.got, error.hint) == ("trainer.class (command line)", got, hint)


def test_a_file_that_is_not_python(refused: Refused, mine: Path) -> None:
    mine.write_text("class Mine(:\n")
    error = refused(QUICK, "trainer.class=./mine.py:Mine")
    assert (error.where, "invalid syntax" in str(error.got)) == ("trainer.class (command line)", True)
