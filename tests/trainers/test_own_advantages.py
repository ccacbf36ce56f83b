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


def shares(folder: RunFolder) -> list[float]:
    names = [name for name in read_metrics(folder.metrics)[0] if name.endswith("/advantage_share")]
    return [read_metrics(folder.metrics)[0][name] for name in names]


@pytest.mark.parametrize("words", [(), ("trainer=rloo", "trainer.args.beta=0")], ids=["grpo", "rloo"])
def test_a_function_of_rows(train, mine: Path, words: tuple[str, ...]) -> None:
    code, folder = train("advantages.fn=./mine.py:ranks", "trainer.args.max_steps=1", *words)
    assert code == 0
    stored = table(folder, 1)
    expected = [total - row / 10 for row, total in enumerate(stored["total"])]
    assert stored["advantage"] == pytest.approx(expected, abs=1e-6)
    assert shares(folder) == []
    assert read_json(folder.provenance)["sha256"]["advantages"]
    assert f"advantages.fn: {mine}:ranks" in asked_of(folder.read_config())
    # whatif calls the function on the stored scores, with the new weights
    halved = advantages_if(folder, "rewards.correct.weight=0.5")[1]
    assert halved == pytest.approx(
        [x - 0.5 * c for x, c in zip(stored["advantage"], stored["correct"], strict=True)], abs=1e-6
    )


def test_a_function_of_tokens(train, mine: Path, given: list[Any]) -> None:
    code, folder = train("advantages.fn=./mine.py:tokens", "trainer.args.max_steps=1")
    assert code == 0
    advantages, mask = given[0]
    for row, length in zip(advantages, mask.sum(dim=1).tolist(), strict=True):
        assert row[:length].tolist() == list(map(float, range(length)))
        assert not row[length:].any()
    (first,) = answer(folder, "rewards.correct.weight=0.5").rounds
    assert first.why is not None


def test_parts_are_logged_as_shares(train, mine: Path) -> None:
    code, folder = train("advantages.fn=./mine.py:parts", "trainer.args.max_steps=1")
    assert code == 0
    assert sum(shares(folder)) == pytest.approx(1.0, abs=1e-6)


def test_advantages_of_tokens_are_refused_by_a_loss_of_rows(train, mine: Path) -> None:
    code, folder = train("advantages.fn=./mine.py:tokens", "trainer=rloo", "trainer.args.beta=0")
    assert code != 0
    assert not (folder.model / "model.safetensors").exists()
