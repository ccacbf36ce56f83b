"""No verdict on a key where steps, batch, data or model differ with it; every path that prints a verdict says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.display.comparison_tables import show_comparison
from rlhf_cli.display.page.page_content import write_report
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.json_values import JsonTree
from tests.support.logged_runs import compared, configured, write_run
from tests.support.terminal import printed

SEEDS = (0, 1, 2)
Change = Callable[[JsonTree, JsonTree], object]
"""What the runs of weight 0.5 have besides: it changes their configuration and their provenance."""


def args(**changes: object) -> Change:
    return lambda config, _: config["trainer"]["args"].update(changes)  # type: ignore[index, call-overload, union-attr]


def pair(place: Path, change: Change, *, steps: tuple[int, int] = (10, 10)) -> list[RunFolder]:
    """Three seeds of weight 0, and of weight 0.5, which is far better and differs by `change` as well."""
    folders = []
    place.mkdir(exist_ok=True)
    (place / "sweep.json").write_text('{"swept": ["rewards.brevity.weight"]}')
    for weight, num_steps in zip((0.0, 0.5), steps, strict=True):
        for seed in SEEDS:
            config = configured(weight, seed, data={"path": "a.jsonl"}, model={"path": "org/model"})
            provenance: JsonTree = {"sha256": {"data": "a" * 64}, "world_size": 1}
            if weight:
                change(config, provenance)
            value = 0.4 + weight + 0.01 * seed * (1 + weight)
            curves = {"rewards/correct/mean": [value] * num_steps, "rewards/brevity/mean": [value] * num_steps}
            folders.append(write_run(place / f"{weight:g}-{seed}", config, curves, provenance=provenance))
    return folders


@pytest.mark.parametrize(
    "change",
    [
        args(),
        args(learning_rate=1e-4),
        args(per_device_train_batch_size=4, gradient_accumulation_steps=2),
        args(save_steps=7),
    ],
    ids=["nothing else", "learning rate", "the same rows a step", "saving"],
)
def test_the_control_what_is_no_condition_keeps_the_verdict(place: Path, change: Change) -> None:
    found = compared(pair(place, change))
    assert found.no_verdict is None
    assert found.verdicts[0].winner == "0.5"


def test_a_verdict_on_a_condition_itself(place: Path) -> None:
    """A sweep over models, data or steps is about just that."""
    for number, change in enumerate((args(max_steps=60), args(num_train_epochs=3))):
        folders = pair(place / str(number), change, steps=(30, 60))
        for run in folders:
            run.config.write_text(run.config.read_text().replace("weight: 0.5", "weight: 0.0"))
        found = compared(folders)
        assert [axis.short for axis in found.grouped.axes] == [("max_steps", "num_train_epochs")[number]]
        assert found.verdicts[0].winner is not None


WHY = "no verdict on weight: steps differ with it (trainer.args.max_steps 30, 12; finished at step 30, 12)"


@pytest.fixture
def confounded(place: Path) -> list[RunFolder]:
    def change(config: JsonTree, _: JsonTree) -> None:
        args(max_steps=12, learning_rate=5e-4)(config, {})

    return pair(place / "s", change, steps=(30, 12))


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


def test_the_page_says_why(confounded: list[RunFolder], place: Path) -> None:
    html = write_report([place / "s"], place / "report.html").read_text()
    verdict = html[html.index('id="verdict"') : html.index('id="settings"')]
    assert "steps differ with it" in verdict
    for key in ("trainer.args.max_steps", "trainer.args.learning_rate", "rewards.brevity.weight"):
        assert key in verdict
    assert "beats" not in html
    assert 'best": {' not in html, "no front either"
