"""The view that is made of a sweep, as wandb-workspaces would save it, and what is said where it cannot."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import UserError
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking import workspace_view
from rlhf_cli.runs.tracking.workspace_view import build_view, make_view, what_differs
from tests.support.logged_run import CONFIG, logged_run

pytestmark = pytest.mark.filterwarnings("ignore")


def job(place: Path, weight: float, seed: int) -> RunFolder:
    config = copy.deepcopy(CONFIG)
    config["rewards"]["correct"]["weight"] = weight  # type: ignore[index]
    config |= {"seed": seed, "run": {"name": f"{weight},{seed}"}}
    return logged_run(
        place / f"weight={weight},seed={seed}", config=config, provenance={"wandb_id": f"w{weight}s{seed}"}
    )


@pytest.fixture
def runs(place: Path) -> list[RunFolder]:
    return [job(place / "runs" / "quickstart" / "swept", weight, seed) for weight in (0.5, 1.0) for seed in (1, 2)]


def spec(view: Any) -> dict[str, Any]:
    return json.loads(view._to_model().model_dump_json(by_alias=True, exclude_none=True))["spec"]["section"]


def test_sections_by_name_raw_rewards_first_grouped_by_what_differs(runs: list[RunFolder]) -> None:
    pytest.importorskip("wandb_workspaces", reason="pip install 'rlhf-cli[wandb-view]'")
    assert what_differs(runs) == ["seed", "rewards.correct.weight"]
    shown = spec(build_view("me", "sums", "quickstart/swept", runs))
    panels = {part["name"]: part for part in shown["panelBankConfig"]["sections"]}
    assert list(panels) == [
        *("rewards, raw", "held out", "total reward (weights differ: not comparable)", "KL", "completions"),
    ]
    plotted = {name: [panel["config"].get("metrics") for panel in one["panels"]] for name, one in panels.items()}
    assert plotted["rewards, raw"] == [["train/rewards/correct/mean"]]
    assert plotted["held out"] == [["eval/greedy/total"], ["eval/greedy/rewards/correct"]]
    assert plotted["KL"] == [["train/kl"]]
    assert {panel["config"]["xAxis"] for panel in panels["rewards, raw"]["panels"]} == {"train/global_step"}
    assert panels["rewards, raw"]["isOpen"]
    assert not panels["total reward (weights differ: not comparable)"]["isOpen"]
    (runset,) = shown["runSets"]
    # As wandb nests what it was given: config.rewards.value.correct.weight. Seeds are what a group is averaged over.
    assert [key["name"] for key in runset["grouping"]] == ["rewards.value.correct.weight"]
    (only,) = runset["filters"]["filters"]
    assert (only["key"]["name"], only["op"], only["value"]) == ("group", "=", "quickstart/swept")
    assert {"config:rewards.value.correct.weight", "summary:final/train/rewards/correct/mean"} <= {
        *runset["runFeed"]["columnPinned"]
    }


def test_runs_of_no_group_are_named_and_with_equal_weights_totals_compare(runs: list[RunFolder]) -> None:
    pytest.importorskip("wandb_workspaces", reason="pip install 'rlhf-cli[wandb-view]'")
    shown = spec(build_view("me", "sums", None, runs[:2]))
    (runset,) = shown["runSets"]
    (only,) = runset["filters"]["filters"]
    assert (only["key"]["name"], only["value"]) == ("name", ["w0.5s1", "w0.5s2"])
    assert runset["grouping"] == []
    assert {part["name"]: part["isOpen"] for part in shown["panelBankConfig"]["sections"]}["total reward"]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would be saved, where nothing is missing."""
    asked: list[str] = []

    class View:
        url = "https://wandb.ai/me/sums?nw=1"

        def save(self) -> View:
            return self

    def build(entity: str, *_: object) -> View:
        asked.append(entity)
        return View()

    monkeypatch.setattr(workspace_view, "build_view", build)
    monkeypatch.setattr(workspace_view, "_default_entity", lambda: "mine")
    return asked


def test_what_is_missing_is_said_before_anything_is_asked(
    runs: list[RunFolder], saved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workspace_view.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"pip install 'rlhf-cli\[wandb-view\]'"):
            make_view("me", "sums", None, runs)
    with pytest.raises(UserError, match=r"there is no wandb login for api\.wandb\.ai"):
        make_view("me", "sums", None, runs)
    record = runs[1].path / "wandb" / "offline-run-20261122_101500-w" / "run-w.wandb"
    record.parent.mkdir(parents=True)
    record.touch()
    with pytest.raises(UserError, match=r"1 of 4 runs are not in wandb yet[\s\S]*rlhf sync runs/quickstart/swept/"):
        make_view("me", "sums", None, runs)
    assert saved == []
    monkeypatch.setattr(workspace_view, "check_server", lambda: None)
    assert make_view(None, "sums", None, runs[2:]) == "https://wandb.ai/me/sums?nw=1"
    assert saved == ["mine"]
