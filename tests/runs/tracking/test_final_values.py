"""What a run is summed up as: where it ended, its best with the step, and an evaluation's interval, by hand."""

from __future__ import annotations

import pytest

from rlhf_cli.runs.tracking.mirror import final_values


def events(metric: str, values: list[float | None], *, every: int = 1) -> list[dict[str, object]]:
    return [{"step": every * (place + 1), "time_s": 0.1, metric: value} for place, value in enumerate(values)]


def test_the_best_stretch_is_as_wide_as_the_last_and_ends_at_its_step() -> None:
    """Of 30 events a tenth is three. 0, 0, 0 but for 0.6 at the events 10 to 12 and 0.9 alone at 20: the best three
    are those, 0.6 against 0.3, and end at step 12 * 5; the last three have 0.1, 0.2 and 0.3.
    """
    values: list[float | None] = [0.0] * 30
    values[9:12], values[19], values[27:] = [0.6] * 3, 0.9, [0.1, 0.2, 0.3]
    found = final_values(events("rewards/correct/mean", values, every=5))
    name = "train/rewards/correct/mean"
    assert found == {
        f"final/{name}": pytest.approx(0.2),
        f"best/{name}": pytest.approx(0.6),
        f"best_step/{name}": 60,
    }


def test_of_a_loss_the_least_is_the_best_and_of_an_accuracy_the_greatest() -> None:
    log = [
        {"step": step, "time_s": 0.1, "loss": loss, "accuracy": accuracy}
        for step, loss, accuracy in ((1, 0.7, 0.5), (2, 0.4, 0.4), (3, 0.6, 0.8), (4, 0.5, 0.7))
    ]
    log += [{"step": step, "time_s": 0.1, "eval_loss": loss} for step, loss in ((2, 0.6), (3, 0.5), (4, 0.8))]
    found = final_values(log)
    assert (found["final/train/loss"], found["best/train/loss"], found["best_step/train/loss"]) == (0.5, 0.4, 2)
    assert (found["best/train/accuracy"], found["best_step/train/accuracy"]) == (0.8, 3)
    assert (found["final/eval/loss"], found["best/eval/loss"], found["best_step/eval/loss"]) == (0.8, 0.5, 3)


def test_of_equal_bests_the_first_is_told() -> None:
    found = final_values(events("reward", [0.1, 0.5, 0.5, 0.2]) + events("rewards/a/mean", [0.0]))
    assert found["best_step/train/reward"] == 2
