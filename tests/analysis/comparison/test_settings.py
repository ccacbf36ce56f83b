"""Reading run folders, grouping runs into settings, naming runs, and conditions that forbid a verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import compare
from rlhf_cli.analysis.comparison.logged_run import (
    LoggedRun,
    differences,
    flat,
    named,
    read_figures,
    read_runs,
    short_key,
    value_text,
)
from rlhf_cli.analysis.comparison.settings import group_over_seeds, number_or_text, why_unfair
from rlhf_cli.display.comparison_tables import show_comparison
from rlhf_cli.evaluation.evaluation_results import Attempts, evaluation_json
from rlhf_cli.runs.run_folder import RunFolder, write_json
from tests.display.page.reported_runs import write_report
from tests.support.logged_runs import compared, configured, in_memory, write_run
from tests.support.measured import headed, part, policy, reward_model, sure
from tests.support.terminal import printed


def test_a_run_as_it_lies(place: Path) -> None:
    provenance = {"choices": {"reward": 3, "trainer": "grpo"}, "starting_model": {"commit": "abc"}}
    run = write_run(place / "s" / "a", configured(0.5), {"reward": [0.1, 0.2]}, provenance=provenance, reason="why")
    (run.path.parent / "sweep.json").write_text('{"swept": ["seed", 1]}')
    (run.path / "eval").mkdir()
    write_json(run.path / "eval" / "test.json", evaluation_json(headed(policy())))
    status = json.loads(run.status.read_text())
    (one,), problems = read_runs([run])
    assert (one.place, one.folder, one.state, one.step, one.max_steps) == (run.shown, run, "finished", 2, 30)
    assert (one.reason, one.choices, one.starting_model) == ("why", {"reward": "3", "trainer": "grpo"}, "abc")
    assert (one.swept, one.trainer, one.provenance, [*one.evaluations]) == (("seed", "1"), "grpo", provenance, ["test"])
    assert one.settings["rewards.brevity.weight"] == 0.5
    assert (one.weights, one.state, problems) == ({"correct": 1.0, "brevity": 0.5}, "finished", [])
    run.status.write_text(json.dumps({**status, "state": "failed", "step": 7}))
    run.provenance.write_text(json.dumps({"starting_model": {"weights_sha256": "sum", "commit": "abc"}}))
    (run.path.parent / "sweep.json").write_text('{"swept": "seed"}')
    (one,), _ = read_runs([run])
    assert (one.step, one.state == "finished", one.starting_model, one.swept) == (7, False, "sum", ())
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
    (place / "eval").mkdir()
    attempts = {"a": Attempts(pass_at={1: sure(0.5), 8: sure(0.75), 16: sure(1.0)}, maj_at={})}
    answers = policy(parts={"greedy": part(1.5, a=0.5, b=None)}, attempts=attempts)
    model = reward_model()
    evaluations = {"c": headed(policy()), "a": headed(answers, time=0.5), "b": headed(answers)}
    evaluations["pairs"] = headed(model, time=0.0)
    contents: dict[str, object] = {name: evaluation_json(one) for name, one in evaluations.items()}
    broken = {f"{number}broken": "{" for number in range(6)}
    for name, content in {**broken, "nothing": {}, "list": [1], **contents}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (place / "eval" / f"{name}.json").write_text(text)
    found = read_figures(RunFolder(place))
    assert list(found) == ["b", "c", "a", "pairs"]
    of_greedy = {"greedy/total": 1.5, "greedy/a": 0.5, "greedy/truncated": 0.125, "greedy/tokens": 5.5}
    assert found["b"] == {**of_greedy, "pass@16/a": 1.0}
    calibrated = {"log_loss": model.calibration.log_loss, "ece": model.calibration.ece}
    assert found["pairs"] == {"accuracy": model.accuracy.mean, **calibrated}
    assert read_figures(RunFolder(place / "nowhere")) == {}


def test_a_name_that_is_too_long_gives_way_to_the_folders() -> None:
    for longest, names in ((59, ["b=0", f"b={'x' * 58}"]), (61, ["0", "1"])):
        assert [run.name for run in named(runs_of({"a.b": 0}, {"a.b": "x" * (longest - 1)}))] == names


def test_four_keys_name_a_run_and_five_do_not() -> None:
    """A seed is not counted."""
    for keys, last in (("abcd", "a=0,b=0,c=0,d=1,seed=9"), ("abcde", "4")):
        settings = [{key: int(key == changed) for key in keys} for changed in keys]
        runs = runs_of({**settings[0], "seed": 1}, *({**setting, "seed": 9} for setting in settings[1:]))
        assert named(runs)[-1].name == last


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
    assert grouped.keys == {"a.weight": ("high", "high", "10", "10", "9", "9"), "seed": ("10", "9") * 3}
    assert sorted(["b", "1e3", "-2", "a", "30"], key=number_or_text) == ["-2", "30", "1e3", "a", "b"]


def test_why_a_run_does_not_count() -> None:
    done, same, failed, open_ended, silent = runs_of(*({"seed": seed} for seed in (0, 0, 1, 2, 3)), num_steps=3)
    failed = replace(failed, state="failed", max_steps=9, reason="no room\n  where: here")
    open_ended = replace(open_ended, state="failed", max_steps=None)
    silent = replace(silent, state="created", metrics=in_memory("x").metrics)
    (setting,) = group_over_seeds(named([done, same, failed, open_ended, silent])).settings
    ((seed, first),) = setting.by_seed.items()
    reasons = ("failed at step 3 of 9: no room", "failed at step 3", "created, no log events")
    repeats = f"the settings and the seed are those of {first.name}"
    assert (seed, *setting.left_out.values()) == ("0", repeats, *reasons)


def test_unfinished_runs_are_compared_up_to_their_common_step() -> None:
    short, long = runs_of({"seed": 0}, num_steps=2)[0], runs_of({"seed": 1}, num_steps=5)[0]
    silent = replace(runs_of({"seed": 2})[0], metrics=in_memory("x").metrics)
    stopped = [replace(run, state="failed") for run in (short, long, silent)]
    grouped = group_over_seeds(named(stopped))
    assert (grouped.up_to, list(grouped.settings[0].by_seed)) == (2, ["0", "1"])
    assert any("up to step 2" in note for note in compare(named(stopped)).notes)
    assert group_over_seeds(named([replace(short, state="failed"), long])).up_to is None
    assert group_over_seeds(named([stopped[2]])).up_to is None


def test_keys_that_change_together_are_named_by_the_first_that_is_no_condition() -> None:
    """Steps, batch and model are training conditions: they name a group only if all its keys are conditions."""
    steps, model = "trainer.args.max_steps", "model.path"
    both = runs_of({steps: 10, "a.weight": 0, "b": 5}, {steps: 20, "a.weight": 1, "b": 6})
    assert [run.name for run in named(both)] == ["weight=0", "weight=1"]
    of_conditions = named(runs_of({model: "x", steps: 10}, {model: "y", steps: 20}))
    assert [run.name for run in of_conditions] == ["path=x", "path=y"]


def test_the_shortest_end_of_a_key_that_is_no_end_of_another() -> None:
    assert [short_key("a.b.c", ["a.b.c", *others]) for others in ([], ["xc"], ["c"], ["x.c"], ["x.b.c"])] == [
        *("c", "c", "b.c", "b.c", "a.b.c")
    ]
    assert short_key("a", ["a", "b.a"]) == "a"


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
    found = named([replace(run, choices={"group": group}, swept=swept) for run, group in runs])
    assert [run.name for run in found] == names


def test_a_group_that_does_not_affect_training_names_no_keys() -> None:
    found = named([replace(run, choices={"track": str(place)}) for place, run in enumerate(runs_of(*BOTH))])
    assert [run.name for run in found] == ["a=1", "a=2"]


FLAT = {"reward": [0.5, 0.5]}


def read(place: Path, *configs: Any) -> list[LoggedRun]:
    folders = [write_run(place / "runs" / str(number), one, FLAT) for number, one in enumerate(configs)]
    return read_runs(folders)[0]


def test_keys_that_do_not_affect_training_are_ignored(place: Path) -> None:
    """Where a run lies, what is tracked and how often it is saved: tables/resume_keys.py says which keys these are."""
    saving = configured(track={"mode": "none"})
    saving["trainer"]["args"]["save_steps"] = 5  # type: ignore[index, call-overload]
    runs = read(place, configured(track={"mode": "online"}), saving, configured(0.0, 0, run={"name": "x"}))
    assert (differences(runs), [run.name for run in runs]) == ([], ["0", "1", "2"])


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
    gates = [GATE, {**GATE, "otherwise": "exclude"}]
    runs = read(place, *(configured(rewards={"format": {"fn": "a:b", "gate": [gate]}}) for gate in gates))
    assert len({setting.name for setting in group_over_seeds(runs).settings}) == 2


def test_values_are_shown_as_typed() -> None:
    for value, text in (
        *((0.0, "0"), (0.5, "0.5"), (1e-06, "1e-06"), (None, "none"), (True, "true"), (3, "3")),
        *(([1, None], "[1,none]"), ("/a/b/model", "model"), ("x/y", "x/y"), ({"r": 16, "alpha": None}, "{r: 16}")),
        *(([GATE], "[correct >= 1]"), ({**GATE, "at_least": None, "between": [0.5, 2]}, "0.5 <= correct <= 2")),
    ):
        assert value_text(value) == text


def test_keys_of_a_search_stay_separate(place: Path) -> None:
    """Every trial has another value of both weights, so that either would tell the trials apart."""
    trials = [configured(1.25), configured(0.5)]
    for one, correct in zip(trials, (0.8473095986776095, 1.2055267521432877), strict=True):
        one["rewards"]["correct"]["weight"] = correct  # type: ignore[index, call-overload]
    (place / "runs").mkdir()
    write_json(place / "runs" / "sweep.json", {"swept": ["rewards.correct.weight", "rewards.brevity.weight"]})
    assert [run.name for run in read(place, *trials)] == [
        "correct.weight=0.84731,brevity.weight=1.25",
        "correct.weight=1.20553,brevity.weight=0.5",
    ]


BATCH, STEPS, EPOCHS = (f"trainer.args.{k}" for k in ("per_device_train_batch_size", "max_steps", "num_train_epochs"))
ACCUMULATED = "trainer.args.gradient_accumulation_steps"


def run_of(weight: float, settings: dict[str, Any], **facts: Any) -> LoggedRun:
    run = in_memory("x", settings={STEPS: 10, **settings, "a.weight": weight}, loss=[1.0])
    return replace(run, place=f"runs/{weight}-{sorted(settings.items())}", **facts)


def unfair(*runs: LoggedRun) -> str | None:
    grouped = group_over_seeds(named(runs))
    return why_unfair(grouped, next(axis for axis in grouped.axes if axis.short == "weight"))


def said(what: str | None) -> str | None:
    return what and f"no verdict on weight: {what}"


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
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
        (
            {STEPS: 10, "model.path": "a"},
            {STEPS: 20, "model.path": "b"},
            f"steps differ with it ({STEPS} 10, 20), model differs with it (model.path a, b)",
        ),
    ],
)
def test_settings_that_differ_with_the_weight(one: dict[str, Any], other: dict[str, Any], what: str | None) -> None:
    assert unfair(run_of(0.0, one), run_of(0.5, other)) == said(what)


@pytest.mark.parametrize(
    ("fact", "one", "other", "what"),
    [
        ("world_size", 2, 2, None),
        ("world_size", 2, None, "batch differs with it (rows per step 16, 8)"),
        ("sha256", {"data": "0123456789", "other": "1"}, {"data": "abcdefghij", "other": "2"},
         "data differ with it (content of data 01234567, abcdefgh)"),
        ("sha256", {"data": "0123456789"}, None, None),
        ("starting_model", {"commit": "0123456789"}, {"commit": "abcdefghij"},
         "model differs with it (initial weights 01234567, abcdefgh)"),
        ("starting_model", {"commit": "0123456789"}, None, None),
    ],
)  # fmt: skip
def test_facts_that_differ_with_the_weight(fact: str, one: object, other: object, what: str | None) -> None:
    known = [{} if value is None else {fact: value} for value in (one, other)]
    assert unfair(*(run_of(0.5 * place, {}, provenance=of) for place, of in enumerate(known))) == said(what)


def test_steps_at_which_runs_ended_with_the_weight() -> None:
    ten, nine = run_of(0.0, {}, step=10), run_of(0.5, {}, step=9)
    assert unfair(ten, nine) == said("steps differ with it (finished at step 10, 9)")
    assert unfair(ten, replace(nine, state="failed")) is None, "how far it would have gone is not known"


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
    cells = [(weight, k, seed) for weight in (0.0, 0.5) for k in (0, 1) for seed in (0, 1)]
    crossed = [run_of(weight, {"k": k, STEPS: 10 + k, "seed": seed}) for weight, k, seed in cells]
    why = str(compare(named(crossed)).no_verdict)
    assert why.startswith("no verdict: 2 keys differ (")
    assert why.endswith("; --by weight gives a verdict on one of them")


def test_the_screen_and_the_report_name_every_key_that_differs_with_a_weight(place: Path) -> None:
    """Three seeds of weight 0, and of weight 0.5, which is far better and has other steps and learning rates."""
    folders = []
    for weight, steps, rate in ((0.0, 30, 1e-3), (0.5, 12, 5e-4)):
        for seed in range(3):
            trainer: Any = {"name": "grpo", "args": {"max_steps": steps, "learning_rate": rate}}
            value = [0.4 + weight + 0.01 * seed * (1 + weight)] * steps
            curves = {"rewards/correct/mean": value, "rewards/brevity/mean": value}
            config = {**configured(weight, seed), "trainer": trainer}
            folders.append(write_run(place / "s" / f"{weight:g}-{seed}", config, curves))
    (place / "s" / "sweep.json").write_text('{"swept": ["rewards.brevity.weight"]}')
    why = "steps differ with it (trainer.args.max_steps 30, 12; finished at step 30, 12)"
    found = compared(folders)
    lines = printed(lambda console: show_comparison(console, found), 80)
    assert lines[1:4] == [
        "rewards.brevity.weight        0, 0.5",
        "  trainer.args.max_steps      30, 12",
        "  trainer.args.learning_rate  0.001, 0.0005",
    ]
    text = " ".join(" ".join(lines).split())
    assert (why in text, "beats" in text, "●" in text) == (True, False, False), "the front is a verdict too"
    html = write_report(place / "s", place / "report.html").read_text()
    verdict = html[html.index('id="verdict"') : html.index('id="settings"')]
    for said_there in (why, "trainer.args.max_steps", "trainer.args.learning_rate", "rewards.brevity.weight"):
        assert said_there in verdict
    assert "beats" not in html
