"""The picture of all evaluations of a training: its panels, its lines, and evaluations that lack a measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from rlhf_cli.measure.evaluation_files import evaluation_json
from rlhf_cli.measure.pictures import draw_history
from rlhf_cli.measure.policy_results import PolicyEvaluation
from tests.support import measured


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved."""
    saved: list[Figure] = []
    save = Figure.savefig

    def remembered(self: Figure, *args: Any, **named: Any) -> None:
        saved.append(self)
        save(self, *args, **named)

    monkeypatch.setattr(Figure, "savefig", remembered)
    return saved


def write(folder: Path, step: int, evaluation: PolicyEvaluation) -> None:
    content = evaluation_json(measured.headed(evaluation, name=f"step-{step}", step=step))
    (folder / f"step-{step}.json").write_text(json.dumps(content))


def test_lines_by_step(tmp_path: Path, figures: list[Figure]) -> None:
    """Steps in the order of their numbers; the first evaluation knew only one way of answering and one reward."""
    write(tmp_path, 2, measured.policy(parts={"greedy": measured.part(0.25, correct=0.0)}, attempts={}))
    write(tmp_path, 10, measured.policy(parts={"greedy": measured.part(None, correct=None, short=0.5)}, attempts={}))
    parts = {name: measured.part(0.75, correct=1.0, short=0.5) for name in ("greedy", "sampled")}
    write(tmp_path, 9, measured.policy(parts=parts))
    write(tmp_path, 20, measured.policy(parts=parts))
    draw_history(tmp_path, tmp_path / "history.png")
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert list(panels) == ["total", "correct (raw)", "short (raw)", "correct: 2 attempts", "truncated"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in panels["total"].lines}
    assert lines == {"greedy": [[2, 0.25], [9, 0.75], [20, 0.75]], "sampled": [[9, 0.75], [20, 0.75]]}
    attempts = {line.get_label(): line.get_xydata().tolist() for line in panels["correct: 2 attempts"].lines}
    assert attempts == {"pass@2": [[9, 0.375], [20, 0.375]], "maj@2": [[9, 0.3125], [20, 0.3125]]}
    assert panels["short (raw)"].lines[0].get_xydata().tolist() == [[9, 0.5], [10, 0.5], [20, 0.5]]
    assert figure.get_suptitle() == "exp/run on data.jsonl (4 prompts, 95 % intervals)"
    assert figure.get_size_inches() == pytest.approx([3 * 4.3, 0.5 + 2 * 2.8])  # five panels, three in a row
    assert [axes.axison for axes in figure.axes] == [True] * 5 + [False]
    assert {title: axes.get_legend() is not None for title, axes in panels.items()} == dict.fromkeys(panels, True)
    assert len(panels["total"].collections) == 2
    corners = panels["total"].collections[1].get_paths()[0].vertices
    assert {tuple(one) for one in corners.tolist()} == {(9, 0.5), (9, 1), (20, 0.5), (20, 1)}


def test_a_flat_line_has_room_around_it(tmp_path: Path, figures: list[Figure]) -> None:
    """A share that never moves is in the middle of a panel 0.1 high, and one line needs no legend."""
    for step in (1, 2):
        write(tmp_path, step, measured.policy(parts={"greedy": measured.part(0.25, correct=0.5)}, attempts={}))
    draw_history(tmp_path, tmp_path / "history.png")
    (figure,) = figures
    assert figure.get_size_inches() == pytest.approx([3 * 4.3, 0.5 + 2.8])
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert panels["truncated"].get_ylim() == pytest.approx((0.075, 0.175))
    assert panels["total"].get_ylim() == pytest.approx((-0.025, 0.525))  # its band is higher than that
    assert panels["total"].get_legend() is None


def test_an_evaluation_without_a_step_is_refused(tmp_path: Path) -> None:
    content = evaluation_json(measured.headed(measured.policy(), name="step-1"))
    (tmp_path / "step-1.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="no step"):
        draw_history(tmp_path, tmp_path / "history.png")
