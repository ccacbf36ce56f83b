"""Conditions of a training that differ between two runs: steps, rows per step, data and model, each in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, named
from rlhf_cli.analysis.comparison.settings import group_over_seeds, why_not_one_of, why_unfair
from rlhf_cli.display.comparison_tables import show_comparison
from rlhf_cli.display.page.page_content import write_report
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import compared, configured, in_memory, write_run
from tests.support.terminal import printed

BATCH, STEPS, EPOCHS = (f"trainer.args.{k}" for k in ("per_device_train_batch_size", "max_steps", "num_train_epochs"))
ACCUMULATED = "trainer.args.gradient_accumulation_steps"


def run_of(weight: float, settings: dict[str, Any], **facts: Any) -> LoggedRun:
    run = in_memory("x", settings={STEPS: 10, **settings, "a.weight": weight}, loss=[1.0])
    return replace(run, place=f"runs/{weight}-{sorted(settings.items())}", **facts)


def unfair(first: LoggedRun, *others: LoggedRun) -> str | None:
    grouped = group_over_seeds(named([first, *others]))
    return why_unfair(grouped, next(axis for axis in grouped.axes if axis.short == "weight"))


def said(what: str | None) -> str | None:
    return what and f"no verdict on weight: {what}"


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ({}, {}, None),
        ({}, {"trainer.args.learning_rate": 1e-4, "trainer.args.save_steps": 7}, None),  # no conditions
        ({STEPS: 10}, {STEPS: 20}, f"steps differ with it ({STEPS} 10, 20)"),
        ({STEPS: -1, EPOCHS: 1}, {STEPS: -1, EPOCHS: 2}, f"steps differ with it ({EPOCHS} 1, 2)"),
        ({STEPS: 1, EPOCHS: 1}, {STEPS: 1, EPOCHS: 2}, None),  # the steps decide
        ({STEPS: 10}, {STEPS: None, EPOCHS: 3}, f"steps differ with it ({STEPS} 10, not set; {EPOCHS} not set, 3)"),
        ({}, {BATCH: 8}, None),  # TRL's default
        ({}, {BATCH: 16}, "batch differs with it (rows per step 8, 16)"),
        ({BATCH: 4, ACCUMULATED: 2}, {BATCH: 8}, None),
        ({BATCH: 4, ACCUMULATED: 3}, {BATCH: 4, "launch.processes": 2}, "batch differs with it (rows per step 12, 8)"),
        ({}, {"launch.processes": "auto"}, None),  # a number that one of them does not know
        ({"data.name": "a"}, {}, "data differ with it (data.name a, not set)"),
        ({"data.seed": 1}, {"data.seed": 2}, None),
        ({"model.path": "a"}, {"model.path": "b"}, "model differs with it (model.path a, b)"),
        (
            {STEPS: 10, "data.name": "a"},
            {STEPS: 20, "data.name": "b"},
            f"steps differ with it ({STEPS} 10, 20), data differ with it (data.name a, b)",
        ),
    ],
)
def test_settings_that_differ_with_the_weight(one: dict[str, Any], other: dict[str, Any], what: str | None) -> None:
    assert unfair(run_of(0.0, one), run_of(0.5, other)) == said(what)


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ({"step": 10}, {"step": 9}, "steps differ with it (finished at step 10, 9)"),
        ({"step": 10}, {"step": 9, "state": "failed"}, None),  # how far it would have gone is not known
        ({"provenance": {"world_size": 2}}, {}, "batch differs with it (rows per step 16, 8)"),
        ({"provenance": {"world_size": 2}}, {"provenance": {"world_size": 2}}, None),
        (
            {"provenance": {"sha256": {"data": "0123456789", "other": "1"}}},
            {"provenance": {"sha256": {"data": "abcdefghij", "other": "2"}}},
            "data differ with it (content of data 01234567, abcdefgh)",
        ),
        ({"provenance": {"sha256": {"data": "0123456789"}}}, {}, None),
        (
            {"provenance": {"starting_model": {"commit": "0123456789"}}},
            {"provenance": {"starting_model": {"commit": "abcdefghij"}}},
            "model differs with it (initial weights 01234567, abcdefgh)",
        ),
        ({"provenance": {"starting_model": {"commit": "0123456789"}}}, {}, None),
    ],
)
def test_facts_that_differ_with_the_weight(one: dict[str, Any], other: dict[str, Any], what: str | None) -> None:
    assert unfair(run_of(0.0, {}, **one), run_of(0.5, {}, **other)) == said(what)


def test_values_that_were_never_run_with_the_same_of_the_others() -> None:
    keys = [{"k": 0, "l": 0, "m": 0}, {"k": 1, "l": 1, "m": 0}, {"k": 1, "l": 0, "m": 1}]
    apart = [run_of(weight, one) for weight, one in zip((0.0, 0.5, 1.0), keys, strict=True)]
    assert unfair(*apart) == said("no two of its values have runs with the same k, l, m")
    two = [run_of(weight, {"k": k}) for weight, k in ((0.0, 0), (0.0, 1), (0.5, 2))]
    assert unfair(*two) == said("no two of its values have runs with the same k")


def test_a_sweep_over_data_may_end_at_other_steps_but_not_have_other_rows_a_step() -> None:
    """An epoch of other data has another number of steps; what else differs was not swept."""

    def why(**facts: Any) -> str | None:
        runs = [
            replace(in_memory("x", settings={STEPS: -1, EPOCHS: 1, "data.path": path}, loss=[1.0]), place=path, **more)
            for path, more in (("short", {"step": 10}), ("long", {"step": 20, **facts}))
        ]
        grouped = group_over_seeds(named(runs))
        return why_unfair(grouped, grouped.axes[0])

    assert why() is None
    assert why(provenance={"world_size": 2}) == "no verdict on path: batch differs with it (rows per step 16, 8)"


def test_which_of_several_keys_a_verdict_may_be_about() -> None:
    crossed = [run_of(weight, {"k": k, STEPS: 10 + k}) for weight in (0.0, 0.5) for k in (0, 1)]
    grouped = group_over_seeds(named(crossed))
    assert why_not_one_of(grouped).startswith("no verdict: 2 keys differ (")
    assert why_not_one_of(grouped).endswith("; --by weight gives a verdict on one of them")


WHY = "steps differ with it (trainer.args.max_steps 30, 12; finished at step 30, 12)"


@pytest.fixture
def confounded(place: Path) -> list[RunFolder]:
    """Three seeds of weight 0, and of weight 0.5, which is far better and has other steps and learning rates."""
    folders = []
    for weight, steps, rate in ((0.0, 30, 1e-3), (0.5, 12, 5e-4)):
        for seed in range(3):
            trainer = {"name": "grpo", "args": {"max_steps": steps, "learning_rate": rate}}
            value = [0.4 + weight + 0.01 * seed * (1 + weight)] * steps
            curves = {"rewards/correct/mean": value, "rewards/brevity/mean": value}
            config = {**configured(weight, seed), "trainer": trainer}
            folders.append(write_run(place / "s" / f"{weight:g}-{seed}", config, curves))  # type: ignore[arg-type]
    (place / "s" / "sweep.json").write_text('{"swept": ["rewards.brevity.weight"]}')
    return folders


def test_the_screen_names_every_key_with_its_values(confounded: list[RunFolder]) -> None:
    found = compared(confounded)
    lines = printed(lambda console: show_comparison(console, found), 80)
    assert lines[1:4] == [
        "rewards.brevity.weight        0, 0.5",
        "  trainer.args.max_steps      30, 12",
        "  trainer.args.learning_rate  0.001, 0.0005",
    ]
    text = " ".join(" ".join(lines).split())
    assert WHY in text
    assert "beats" not in text
    assert "●" not in text, "the front is a verdict too"


def test_the_report_says_why(confounded: list[RunFolder], place: Path) -> None:
    html = write_report(place / "s", place / "report.html").read_text()
    verdict = html[html.index('id="verdict"') : html.index('id="settings"')]
    assert WHY in verdict
    for key in ("trainer.args.max_steps", "trainer.args.learning_rate", "rewards.brevity.weight"):
        assert key in verdict
    assert "beats" not in html
