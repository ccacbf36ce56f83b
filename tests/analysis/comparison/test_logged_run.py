"""Reading a run folder: settings, state, starting model, and the figures of its evaluations."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf_cli.analysis.comparison.logged_run import flat, read_figures, read_runs
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import configured, write_run


def test_a_run_as_it_lies(place: Path) -> None:
    provenance = {"choices": {"reward": 3, "trainer": "grpo"}, "starting_model": {"commit": "abc"}}
    run = write_run(place / "s" / "a", configured(0.5), {"reward": [0.1, 0.2]}, provenance=provenance, reason="why")
    (run.path.parent / "sweep.json").write_text('{"swept": ["seed", 1]}')
    status = json.loads(run.status.read_text())
    (one,), problems = read_runs([run])
    assert (one.place, one.folder, one.state, one.step, one.max_steps) == (run.shown, run, "finished", 2, 30)
    assert (one.reason, one.choices, one.starting_model) == ("why", {"reward": "3", "trainer": "grpo"}, "abc")
    assert (one.swept, one.trainer, one.provenance, one.evaluations) == (("seed", "1"), "grpo", provenance, {})
    assert one.settings["rewards.brevity.weight"] == 0.5
    assert (one.weights, one.is_finished, problems) == ({"correct": 1.0, "brevity": 0.5}, True, [])
    run.status.write_text(json.dumps({**status, "state": "failed", "step": 7}))
    run.provenance.write_text(json.dumps({"starting_model": {"weights_sha256": "sum", "commit": "abc"}}))
    (run.path.parent / "sweep.json").write_text('{"swept": "seed"}')
    (one,), _ = read_runs([run])
    assert (one.step, one.is_finished, one.starting_model, one.swept) == (7, False, "sum", ())
    run.provenance.write_text(json.dumps({"starting_model": {"commit": 5}}))
    (run.path.parent / "sweep.json").write_text("{")
    run.config.write_text("seed: 1\n")
    (one,), _ = read_runs([run])
    assert (one.starting_model, one.swept, one.trainer, one.weights) == (None, (), "?", {})


def test_what_cannot_be_read_is_a_problem_each(place: Path) -> None:
    runs = [write_run(place / name, configured(weight), {"reward": [0.1]}) for name, weight in (("a", 0.0), ("b", 1.0))]
    bad = [RunFolder(place / "no"), write_run(place / "odd", configured(), {})]
    bad[1].config.write_text("{")
    found, problems = read_runs([bad[0], runs[0], bad[1], runs[1]], wanted={"none"}.__contains__)
    assert [one.name for one in found] == ["weight=0", "weight=1"]
    assert [len(one.metrics) for one in found] == [0, 0]
    assert len(problems) == 2


def test_a_configuration_as_leaves() -> None:
    tree = {"a": {"b": 1, "c": {"d": [1, {"e": 2}], "f": {}}}, "g": None, 3: "h"}
    assert dict(flat(tree)) == {"a.b": 1, "a.c.d": [1, {"e": 2}], "a.c.f": {}, "g": None, "3": "h"}


POLICY = {
    "kind": "policy",
    "time": 5,
    "parts": {
        "greedy": {
            **{"total": {"mean": 1.5}, "truncated": {"mean": 0.25}, "tokens": {"mean": 7}},
            "rewards": {"a": {"raw": {"mean": 0.5}}, "b": {"raw": {"mean": None}}, "c": 3, "d": {"raw": 3}},
        },
        "odd": 3,
    },
    "attempts": {
        "a": {"pass": {"1": {"mean": 0.5}, "8": {"mean": 0.75}, "16": {"mean": 1}}, "maj": {}, "x": 3},
        "b": 3,
    },
}


def test_the_figures_of_evaluations(place: Path) -> None:
    """The newest first, of equal times by their names; without a time it is the oldest. Other files are passed over."""
    folder = RunFolder(place)
    (place / "eval").mkdir()
    pairs = {"kind": "reward_model", "accuracy": {"mean": 0.75}, "calibration": {"log_loss": 0.5, "ece": None}}
    contents = {
        "a": {**POLICY, "time": 0.5},
        "c": POLICY,
        "b": POLICY,
        "pairs": {**pairs, "time": "noon"},
        "nothing": {},
        "list": [1],
    }
    for name, content in contents.items():
        (place / "eval" / f"{name}.json").write_text(json.dumps(content))
    for number in range(6):
        (place / "eval" / f"{number}broken.json").write_text("{")
    found = read_figures(folder)
    assert list(found) == ["b", "c", "a", "pairs"]
    assert found["b"] == {
        **{"greedy/total": 1.5, "greedy/a": 0.5, "greedy/truncated": 0.25, "greedy/tokens": 7.0},
        "pass@16/a": 1.0,
    }
    assert found["pairs"] == {"accuracy": 0.75, "log_loss": 0.5}
    assert read_figures(RunFolder(place / "nowhere")) == {}
