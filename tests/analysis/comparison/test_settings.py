"""Reading run folders, grouping runs into settings, and naming runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.logged_run import (
    LoggedRun,
    differences,
    flat,
    named,
    names_of,
    read_figures,
    read_runs,
    short_key,
    value_text,
)
from rlhf_cli.analysis.comparison.settings import group_over_seeds, number_or_text
from rlhf_cli.evaluation.evaluation_files import evaluation_json
from rlhf_cli.evaluation.policy_results import Attempts
from rlhf_cli.runs.run_folder import RunFolder, write_json
from tests.support.logged_runs import configured, in_memory, write_run
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
    assert ([len(one.metrics) for one in found], len(problems)) == ([0, 0], 2)


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


def runs_of(*settings: dict[str, Any], num_steps: int = 1) -> list[LoggedRun]:
    curves = {"loss": [1.0] * num_steps}
    return [
        replace(in_memory("x", settings=one, **curves), place=f"runs/{number}") for number, one in enumerate(settings)
    ]


def test_values_are_sorted_by_size_before_words() -> None:
    cells = [(weight, seed) for weight in ("high", 10, 9) for seed in (10, 9)]
    grouped = group_over_seeds(named(runs_of(*({"a.weight": weight, "seed": seed} for weight, seed in cells))))
    assert [one.name for one in grouped.settings] == ["weight=9", "weight=10", "weight=high"]
    assert [list(one.by_seed) for one in grouped.settings] == [["9", "10"]] * 3
    assert grouped.keys == {
        **{"a.weight": ("high", "high", "10", "10", "9", "9"), "seed": ("10", "9", "10", "9", "10", "9")}
    }
    assert sorted(["b", "1e3", "-2", "a", "30"], key=number_or_text) == ["-2", "30", "1e3", "a", "b"]


def test_why_a_run_does_not_count() -> None:
    done, same, failed, open_ended, silent = runs_of(*({"seed": seed} for seed in (0, 0, 1, 2, 3)), num_steps=3)
    failed = replace(failed, state="failed", max_steps=9, reason="no room\n  where: here")
    open_ended = replace(open_ended, state="failed", max_steps=None)
    silent = replace(silent, state="created", metrics=in_memory("x").metrics)
    (setting,) = group_over_seeds(named([done, same, failed, open_ended, silent])).settings
    assert list(setting.by_seed) == ["0"]
    first = setting.by_seed["0"].name
    assert list(setting.left_out.values()) == [
        f"it repeats the settings and the seed of {first}",
        "failed at step 3 of 9: no room",
        "failed at step 3",
        "created, no log events",
    ]


def test_unfinished_runs_are_compared_up_to_their_common_step() -> None:
    short, long = runs_of({"seed": 0}, num_steps=2)[0], runs_of({"seed": 1}, num_steps=5)[0]
    silent = replace(runs_of({"seed": 2})[0], metrics=in_memory("x").metrics)
    stopped = [replace(run, state="failed") for run in (short, long, silent)]
    grouped = group_over_seeds(named(stopped))
    assert (grouped.up_to, list(grouped.settings[0].by_seed)) == (2, ["0", "1"])
    assert group_over_seeds(named([replace(short, state="failed"), long])).up_to is None
    assert group_over_seeds(named([stopped[2]])).up_to is None


def test_keys_that_change_together_are_named_by_the_first_that_is_no_condition() -> None:
    """Steps, batch and model are training conditions: they name a group only if all its keys are conditions."""
    steps, model = "trainer.args.max_steps", "model.path"
    both = runs_of({steps: 10, "a.weight": 0, "b": 5}, {steps: 20, "a.weight": 1, "b": 6})
    assert names_of(both) == ["weight=0", "weight=1"]
    assert names_of(runs_of({model: "x", steps: 10}, {model: "y", steps: 20})) == ["path=x", "path=y"]


@pytest.mark.parametrize(
    ("key", "keys", "short"),
    [
        ("a.b.c", ["a.b.c"], "c"),
        ("a.b.c", ["a.b.c", "x.c"], "b.c"),
        ("a.b.c", ["a.b.c", "c"], "b.c"),
        ("a.b.c", ["a.b.c", "x.b.c"], "a.b.c"),
        ("a.b.c", ["a.b.c", "xc"], "c"),
        ("a", ["a", "b.a"], "a"),
    ],
)
def test_the_shortest_end_of_a_key_that_is_no_end_of_another(key: str, keys: list[str], short: str) -> None:
    assert short_key(key, keys) == short


BOTH = {"a": 1, "b": 1}, {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("settings", "groups", "swept", "names"),
    [
        (({"a": 1}, {"a": 2}), "xy", (), ["a=1", "a=2"]),
        (BOTH, "xy", (), ["group=x", "group=y"]),
        (BOTH, "xx", (), ["a=1", "a=2"]),
        (BOTH, "xy", ("b",), ["b=1", "b=2"]),
        (BOTH, "xy", ("group",), ["group=x", "group=y"]),
        (({"seed": 1, "data.seed": 1}, {"seed": 2, "data.seed": 2}), "xy", (), ["seed=1", "seed=2"]),
    ],
)
def test_a_chosen_group_names_its_keys_only_where_it_stands_for_several(
    settings: tuple[dict[str, Any], ...], groups: str, swept: tuple[str, ...], names: list[str]
) -> None:
    runs = zip(runs_of(*settings), groups, strict=True)
    assert names_of([replace(run, choices={"group": group}, swept=swept) for run, group in runs]) == names


FLAT = {"reward": [0.5, 0.5]}


def read(place: Path, *configs: Any, **named: Any) -> list[LoggedRun]:
    folders = [write_run(place / "runs" / str(number), one, FLAT, **named) for number, one in enumerate(configs)]
    return read_runs(folders)[0]


def names(runs: list[LoggedRun]) -> list[str]:
    return [run.name for run in runs]


def test_keys_that_do_not_affect_training_are_ignored(place: Path) -> None:
    """Where a run lies, what is tracked and how often it is saved: tables/resume_keys.py says which keys these are."""
    saving = configured(track={"mode": "none"})
    saving["trainer"]["args"]["save_steps"] = 5  # type: ignore[index, call-overload]
    runs = read(place, configured(track={"mode": "online"}), saving, configured(0.0, 0, run={"name": "x"}))
    assert (differences(runs), names(runs)) == ([], ["0", "1", "2"])


@pytest.mark.parametrize(
    ("args", "swept", "is_setting"),
    [
        ({}, (), False),
        ({}, ("trainer.args.eval_steps",), True),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, (), True),
        ({"lr_scheduler_type": "greedy"}, (), True),
        ({"load_best_model_at_end": True}, (), True),
        ({"lr_scheduler_type": "linear", "load_best_model_at_end": False}, (), False),
    ],
)
def test_evaluations_that_lead_the_training_are_a_setting(
    args: dict[str, Any], swept: tuple[str, ...], is_setting: bool, place: Path
) -> None:
    config = [
        {**configured(seed=seed), "trainer": {"args": {**args, "eval_steps": n}}} for n in (2, 50) for seed in (0, 1)
    ]
    runs = [replace(run, swept=swept) for run in read(place, *config)]
    assert ("trainer.args.eval_steps" in differences(runs)) == is_setting


def test_all_seeds_are_seeds(place: Path) -> None:
    """A starting model drawn with the seed is no setting of its own; one that is drawn alone is a seed, too."""
    runs = read(place, *(configured(0.0, seed, model={"build": {"seed": seed}}) for seed in (0, 1)))
    (setting,) = group_over_seeds(runs).settings
    assert list(setting.by_seed) == ["0", "1"]
    crossed = [configured(0.0, a, model={"build": {"seed": b}}) for a in (0, 1) for b in (0, 1)]
    (setting,) = group_over_seeds(read(place / "crossed", *crossed)).settings
    assert list(setting.by_seed) == ["0/0", "0/1", "1/0", "1/1"]


GATE = {"by": "correct", "at_least": 1.0, "at_most": None, "equals": None, "between": None, "otherwise": "zero"}


def test_gates_with_another_otherwise_are_different(place: Path) -> None:
    gated = [
        configured(rewards={"format": {"fn": "a:b", "gate": [GATE | {"otherwise": otherwise}]}})
        for otherwise in ("zero", "exclude")
    ]
    first, second = (setting.name for setting in group_over_seeds(read(place, *gated)).settings)
    assert first != second


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (0.5, "0.5"), (1e-06, "1e-06"), (None, "none"), (True, "true"), (3, "3")),
        *(([1, None], "[1,none]"), ("/a/b/model", "model"), ("x/y", "x/y")),
        *(({"r": 16, "alpha": None}, "{r: 16}"), ([GATE], "[correct >= 1]")),
        (GATE | {"at_least": None, "between": [0.5, 2]}, "0.5 <= correct <= 2"),
    ],
)
def test_values_are_shown_as_typed(value: object, text: str) -> None:
    assert value_text(value) == text


def test_keys_of_a_search_stay_separate(place: Path) -> None:
    """Every trial has another value of both weights, so that either would tell the trials apart."""
    folders = []
    for number, (correct, brevity) in enumerate([(0.8473095986776095, 1.25), (1.2055267521432877, 0.5)]):
        one = configured(brevity)
        one["rewards"]["correct"]["weight"] = correct  # type: ignore[index, call-overload]
        folders.append(write_run(place / "search" / str(number), one, FLAT))
    write_json(place / "search" / "sweep.json", {"swept": ["rewards.correct.weight", "rewards.brevity.weight"]})
    assert names(read_runs(folders)[0]) == [
        "correct.weight=0.84731,brevity.weight=1.25",
        "correct.weight=1.20553,brevity.weight=0.5",
    ]
