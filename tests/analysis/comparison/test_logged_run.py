"""Reading a run folder: settings, state, starting model, and the figures of its evaluations."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf_cli.analysis.comparison.logged_run import flat, read_figures, read_runs
from rlhf_cli.evaluation.evaluation_files import evaluation_json
from rlhf_cli.evaluation.policy_results import Attempts
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.logged_runs import configured, write_run
from tests.support.measured import headed, part, policy, reward_model, sure


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


def test_runs_that_do_not_differ_are_named_by_what_differs_in_their_paths(place: Path) -> None:
    """One run, which differs from nothing, by its folder and the folder around it."""
    runs = [write_run(place / "s" / path, configured(), {"reward": [0.1]}) for path in ("x/one", "y/one", "y/two")]
    for count, names in ((1, ["x/one"]), (2, ["x/one", "y/one"]), (3, ["x/one", "y/one", "y/two"])):
        assert [run.name for run in read_runs(runs[:count])[0]] == names
    assert [run.name for run in read_runs(runs[1:])[0]] == ["one", "two"]


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


def test_the_figures_of_evaluations(place: Path) -> None:
    """The newest first, of equal times by their names. Files that are no evaluations are passed over."""
    folder = RunFolder(place)
    (place / "eval").mkdir()
    parts = {"greedy": part(1.5, a=0.5, b=None)}
    attempts = {"a": Attempts(pass_at={1: sure(0.5), 8: sure(0.75), 16: sure(1.0)}, maj_at={})}
    answers = policy(parts=parts, attempts=attempts)
    others = policy(parts={"greedy": part(0.5)})
    evaluations = {"a": headed(answers, time=0.5), "c": headed(others), "b": headed(answers)}
    evaluations["pairs"] = headed(reward_model(), time=0.0)
    contents: dict[str, object] = {name: evaluation_json(one) for name, one in evaluations.items()}
    for name, content in {**contents, "nothing": {}, "list": [1]}.items():
        (place / "eval" / f"{name}.json").write_text(json.dumps(content))
    for number in range(6):
        (place / "eval" / f"{number}broken.json").write_text("{")
    found = read_figures(folder)
    assert list(found) == ["b", "c", "a", "pairs"]
    assert found["b"] == {
        **{"greedy/total": 1.5, "greedy/a": 0.5, "greedy/truncated": 0.125, "greedy/tokens": 5.5},
        "pass@16/a": 1.0,
    }
    calibration = reward_model().calibration
    assert found["pairs"] == {
        **{"accuracy": reward_model().accuracy.mean, "log_loss": calibration.log_loss, "ece": calibration.ece}
    }
    assert read_figures(RunFolder(place / "nowhere")) == {}
