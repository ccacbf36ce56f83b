"""A function of the user's makes the advantages: in training, in its log, and asked what if."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.config.imported_code import asked_of
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.trainers.pass_mixin import PassMixin
from tests.analysis.whatif.whatif_runs import advantages_if, answer, table

pytestmark = pytest.mark.whole

SOURCE = """
import numpy as np

def ranks(totals, groups):
    return totals - np.arange(len(totals)) / 10

def tokens(totals, lengths):
    return [[float(t) for t in range(n)] for n in lengths]

def parts(totals, rewards, weights, groups):
    by_name = {name: weights[name] * np.nan_to_num(values) for name, values in rewards.items()}
    return sum(by_name.values()), by_name
"""


@pytest.fixture
def mine(workplace: Path) -> Path:
    (workplace / "mine.py").write_text(SOURCE)
    return workplace / "mine.py"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The advantages and masks that the loss gets, a pair a micro-batch."""
    found: list[Any] = []
    compute = PassMixin._compute_loss

    def watch(self: Any, model: Any, inputs: Any) -> Any:
        found.append((inputs["advantages"].clone(), inputs["completion_mask"].clone()))
        return compute(self, model, inputs)

    monkeypatch.setattr(PassMixin, "_compute_loss", watch)
    return found


def trained(train, function: str, *words: str) -> tuple[RunFolder, list[float]]:
    """Return the folder of a run of one step, and the shares that it logged."""
    code, folder = train(f"advantages.fn=./mine.py:{function}", "trainer.args.max_steps=1", *words)
    assert code == 0
    logged = read_metrics(folder.metrics)[0]
    return folder, [share for name, share in logged.items() if name.endswith("/advantage_share")]


@pytest.mark.parametrize("words", [(), ("trainer=rloo", "trainer.args.beta=0")], ids=["grpo", "rloo"])
def test_a_function_of_rows(train, mine: Path, words: tuple[str, ...]) -> None:
    """`whatif` calls it on the stored scores with the new weights."""
    folder, shares = trained(train, "ranks", *words)
    stored = table(folder, 1)
    expected = [total - row / 10 for row, total in enumerate(stored["total"])]
    assert stored["advantage"] == pytest.approx(expected, abs=1e-6)
    assert shares == []
    assert read_json(folder.provenance)["sha256"]["advantages"]
    assert f"advantages.fn: {mine}:ranks" in asked_of(folder.read_config())
    halved = [x - 0.5 * c for x, c in zip(stored["advantage"], stored["correct"], strict=True)]
    assert advantages_if(folder, "rewards.correct.weight=0.5")[1] == pytest.approx(halved, abs=1e-6)


def test_a_function_of_tokens(train, mine: Path, given: list[Any]) -> None:
    """A loss of rows refuses it."""
    folder, _ = trained(train, "tokens")
    advantages, mask = given[0]
    for row, length in zip(advantages, mask.sum(dim=1).tolist(), strict=True):
        assert row[:length].tolist() == list(map(float, range(length)))
        assert not row[length:].any()
    (first,) = answer(folder, "rewards.correct.weight=0.5").rounds
    assert first.why is not None
    code, folder = train("advantages.fn=./mine.py:tokens", "trainer=rloo", "trainer.args.beta=0", name="two")
    assert code != 0
    assert not (folder.model / "model.safetensors").exists()


def test_parts_are_logged_as_shares(train, mine: Path) -> None:
    assert sum(trained(train, "parts")[1]) == pytest.approx(1.0, abs=1e-6)
