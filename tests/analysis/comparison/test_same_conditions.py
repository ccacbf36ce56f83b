"""No verdict on a key if steps differ with it: the screen and the report say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.display.comparison_tables import show_comparison
from rlhf_cli.display.page.page_content import write_report
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import compared, configured, write_run
from tests.support.terminal import printed

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
