"""When rows are sorted over the micro-batches of a window, without a trainer: only where a window is of one round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.tables.passes import Passes
from rlhf_cli.trainers import forward_pass, pass_mixin
from rlhf_cli.trainers.pass_mixin import PassMixin

LLAMA = SimpleNamespace(get_text_config=lambda: SimpleNamespace(rope_theta=1e4), is_encoder_decoder=False)


class Generates:
    """Stands in for TRL's trainer: fills a new buffer and returns the step's micro-batch."""

    def __init__(self, steps: int, accumulation: int) -> None:
        self.args = SimpleNamespace(steps_per_generation=steps, gradient_accumulation_steps=accumulation)
        self.model = SimpleNamespace(training=True, config=LLAMA)
        self.loss_type, self.top_entropy_quantile = "grpo", 1.0
        self._entropy_bonus_enabled = self.aux_loss_enabled = False
        self._buffered_inputs: Any = None
        self._step = 1

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        self._buffered_inputs = list(generation_batch)
        return self._buffered_inputs[self._step]


class Trims(PassMixin, Generates):  # type: ignore[misc]
    def __init__(self, *args: Any) -> None:
        Generates.__init__(self, *args)
        self.passes = Passes("trimmed")


@pytest.mark.parametrize(
    ("steps", "accumulation", "window"),
    [(4, 2, 2), (2, 4, 2), (4, 4, 4), (4, 1, 1), (4, 3, None), (3, 4, None)],
)
def test_windows(monkeypatch: pytest.MonkeyPatch, steps: int, accumulation: int, window: int | None) -> None:
    """An optimizer step takes `accumulation` micro-batches. Of steps of 3 over rounds of 4 the second would hold parts
    of two rounds, which are not there at once.
    """
    asked: list[int] = []

    def turned(batches: list[Any], window: int, order: Any) -> list[Any]:
        asked.append(window)
        return batches[::-1]

    monkeypatch.setattr(pass_mixin, "reordered_in_windows", turned)
    monkeypatch.setattr(pass_mixin, "trimmed", lambda batch, *, may_move: ("trimmed", batch))
    trainer = Trims(steps, accumulation)
    inputs = trainer._prepare_inputs(range(steps))
    assert asked == ([] if window is None else [window])
    order = list(range(steps)) if window is None else list(range(steps))[::-1]
    assert trainer._buffered_inputs == [("trimmed", one) for one in order]
    assert inputs == ("trimmed", order[1])


def test_nothing_is_sorted_or_cut_in_an_evaluation_or_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_mixin, "trimmed", lambda batch, *, may_move: torch.tensor(-1))
    evaluating = Trims(2, 2)
    evaluating.model.training = False
    assert evaluating._prepare_inputs([10, 11]) == 11

    class KeepsItsBuffer(Trims):  # type: ignore[misc]
        def _prepare_inputs(self, generation_batch: Any) -> Any:
            return super()._prepare_inputs(generation_batch)

    kept = KeepsItsBuffer(2, 2)
    kept._buffered_inputs = ["a", "b"]
    monkeypatch.setattr(Generates, "_prepare_inputs", lambda self, batch: self._buffered_inputs[1])
    assert kept._prepare_inputs(None) == "b"


def test_what_is_one_number_a_row_goes_with_its_row() -> None:
    """Lengths 1, 3 and 2, 4 become 4, 3 and 2, 1; what is one number a batch stays where it is."""
    batches = [
        {
            "completion_mask": (torch.arange(4) < torch.tensor(lengths).unsqueeze(1)).long(),
            "advantages": torch.tensor(lengths) / 10,
            "num_items_in_batch": torch.tensor(10 * index),
        }
        for index, lengths in enumerate([[1, 3], [2, 4]])
    ]
    found = forward_pass.reordered_in_windows(batches, 2, lambda rows: forward_pass.by_length(rows["completion_mask"]))
    assert [batch["completion_mask"].sum(dim=1).tolist() for batch in found] == [[4, 3], [2, 1]]
    assert [batch["advantages"].tolist() for batch in found] == [pytest.approx([0.4, 0.3]), pytest.approx([0.2, 0.1])]
    assert [int(batch["num_items_in_batch"]) for batch in found] == [0, 10]
