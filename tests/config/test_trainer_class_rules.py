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
        "try:\n    import nothing\nexcept ImportError:\n    class Inner(Base): pass\n    class InnerRloo(Rloo): pass\n"
        "Alias = Mine\n"
    )
    return file


@pytest.mark.parametrize("name", [*map("./mine.py:{}".format, ("Base", "Mine", "Odd", "Inner", "Alias")), "mine:Mine"])
def test_accepted(judged: Judged, name: str) -> None:
    experiment = judged(QUICK, f"trainer.class={name}")
    assert experiment.trainer.own_class == experiment.model_dump(mode="json")["trainer"]["class"] == name


@pytest.mark.parametrize(
    ("name", "got", "hint"),
    [
        ("./mine.py:Min", "./mine.py:Min", "trainer.class=./mine.py:Mine"),
        ("./mine.py:Rloo", "trainer.trl=GRPOTrainer", "trainer.trl=RLOOTrainer"),
        ("./mine.py:InnerRloo", "trainer.trl=GRPOTrainer", "trainer.trl=RLOOTrainer"),
        ("./nowhere.py:Mine", "./nowhere.py", None),
        ("./mine.py", "./mine.py", None),
        # other classes of TRL's
        ("trl.experimental.gkd:GKDTrainer", "trainer.trl=GRPOTrainer", "trainer.trl=GKDTrainer"),
        ("trl.experimental.bema_for_ref_model:DPOTrainer", "trainer.trl=GRPOTrainer", "trainer.trl=DPOTrainer"),
        ("trl:DistillationTrainer", "trainer.trl=GRPOTrainer", "trainer.trl=DistillationTrainer"),
        ("trl.experimental.async_grpo:AsyncGRPOTrainer", "AsyncGRPOTrainer", "'~trainer.class'"),
        ("trl:OnlineDPOTrainer", "OnlineDPOTrainer", "'~trainer.class'"),  # it is in trl.experimental
        ("trl:GRPOTrainr", "trl:GRPOTrainr", None),
    ],
)
def test_refused(refused: Refused, name: str, got: str, hint: str | None) -> None:
    error = refused(QUICK, f"trainer.class={name}")
    assert (error.where, error.got, error.hint) == ("trainer.class (command line)", got, hint)


@pytest.mark.parametrize(
    ("trl", "named"),
    [
        *(("GRPOTrainer", "trl:GRPOTrainer"), ("GRPOTrainer", "trl.trainer.grpo_trainer:GRPOTrainer")),
        *(("GRPOTrainer", "./mine.py:GRPOTrainer"), ("GMPOTrainer", "trl.experimental.gmpo:GMPOTrainer")),
        ("RLOOTrainer", "./mine.py:Rloo"),
    ],
)
def test_a_class_of_trls_by_any_of_its_names(judged: Judged, trl: str, named: str) -> None:
    """TRL exports lazily, and its aliases are subclasses in other packages."""
    assert judged(QUICK, f"trainer.trl={trl}", f"trainer.class={named}").trainer.own_class == named


def test_a_class_that_inherits_from_one_that_does_not_run_or_is_not_python(refused: Refused, mine: Path) -> None:
    mine.write_text("from trl.experimental.online_dpo import OnlineDPOTrainer as Other\nclass Mine(Other): pass\n")
    assert refused(QUICK, "trainer.class=./mine.py:Mine").got == "Mine"
    mine.write_text("class Mine(:\n")
    error = refused(QUICK, "trainer.class=./mine.py:Mine")
    assert (error.where, "invalid syntax" in str(error.got)) == ("trainer.class (command line)", True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "./mine.py:Watch"),
        ("class Watch: ...\n", "./mine.py:Watch"),
        ("class Watch(X):\n    def __init__(self, step): ...\n", "./mine.py:Watch"),
        ("class Watch: ...\n", "./nowhere.py:Watch"),
        ("class Watch(:\n", "./mine.py:Watch"),
    ],
)
def test_callbacks_that_cannot_be_called(refused: Refused, mine: Path, text: str, named: str) -> None:
    mine.write_text(text)
    assert refused(QUICK, f"trainer.callbacks=[{named}]").where == "trainer.callbacks.0 (command line)"


def test_callbacks_of_the_user_and_of_trl(judged: Judged, mine: Path) -> None:
    mine.write_text("from transformers import TrainerCallback\nclass Watch(TrainerCallback): ...\n")
    words = "trainer.callbacks=[./mine.py:Watch,trl:RichProgressCallback]"
    assert len(judged(QUICK, words).trainer.callbacks) == 2
