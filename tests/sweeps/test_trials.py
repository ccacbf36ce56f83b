"""A search makes jobs of its trials and stores their results; most runs here are written, not trained."""

from __future__ import annotations

import json
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, Trial
from rich.console import Console

from rlhf_cli.cli import main
from rlhf_cli.config.schema.run_sections import Sweep
from rlhf_cli.errors import EXIT_PREEMPTED, ConfigError, RunError
from rlhf_cli.launch import resuming
from rlhf_cli.plan.checks import machine_checks
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import (
    FAILED,
    FINISHED,
    PREEMPTED,
    PRUNED,
    RUNNING,
    Status,
    claim,
    read_status,
    update_status,
)
from rlhf_cli.sweeps import ResumeOptions, SweepOptions, search, sweep_folder
from rlhf_cli.sweeps.run_jobs import _Runner
from rlhf_cli.sweeps.search import Trials, _show_found, open_study
from rlhf_cli.sweeps.sweep_folder import CheckedJob, ReadyJob, begin_sweep, open_sweep
from rlhf_cli.sweeps.swept_words import SearchPlan, Space, SweepJob, ends_of, read_objective, search_plan
from tests.support.small_runs import SMALL

METRIC = "rewards/correct/mean"
WORDS = ["track=none", "sweep=weights", f"sweep.objective={METRIC}", "sweep.trials=3"]


class Searched:
    def __init__(self, folder: Path, *words: str, exp: str = "quickstart") -> None:
        self.plan: Any = search_plan([f"+exp={exp}", *WORDS, *words])
        self.said: list[str] = []
        if not folder.exists():
            folder.mkdir()
            begin_sweep(folder, WORDS, list(self.plan.space), [])
        self.trials = Trials(folder, self.plan, self.said.append, ResumeOptions(take_over=True))

    @property
    def tried(self) -> list[FrozenTrial]:
        return self.trials.study.trials

    def begins(self) -> ReadyJob:
        job: Any = self.trials.next_job()
        job.begins()
        return job

    def logs(self, job: ReadyJob, step: int, value: float | None, metric: str = METRIC, max_steps: Any = 100) -> None:
        event = {"step": step, "time_s": float(step), metric: value, "loss": 0.1}
        with job.folder.metrics.open("a") as stream:
            stream.write(json.dumps(event) + "\n")
        claim(job.folder)
        update_status(job.folder, step=step, max_steps=max_steps)

    def ends(self, job: ReadyJob, state: str = FINISHED) -> Status:
        status = update_status(job.folder, state=state, reason="SIGTERM, saved" if state == PREEMPTED else None)
        job.ends(status)
        return self.trials.ended(job, status)


def test_trials_are_frozen_one_by_one_and_the_best_is_found(place: Path) -> None:
    """The experiment names a search itself, which a trial is not."""
    file = place / "conf" / "exp" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\ndefaults: [quickstart, _self_]\nsweep: {trials: 3}\n")
    search = Searched(place / "sweep", exp="mine")
    for value in (0.2, 0.9, 0.4):
        watch = search.begins()
        search.logs(watch, 100, value)
        assert not search.trials.should_stop(watch)
        assert search.ends(watch).state == FINISHED
        assert watch.values_of("correct") == watch.values_of(METRIC) == [value]  # --watch takes the short name too
    assert search.trials.next_job() is None
    assert search.trials.num_to_come == 0
    assert [trial.intermediate_values for trial in search.tried] == [{}] * 3  # a search without pruning reads no values
    (best,) = search.trials.study.best_trials
    assert best.values == [0.9]
    jobs = open_sweep(place / "sweep").jobs
    assert [job.name for job in jobs] == [trial.user_attrs["job"] for trial in search.tried]
    frozen = RunFolder(place / "sweep" / best.user_attrs["job"]).read_config()
    assert frozen["sweep"] is None
    assert frozen["rewards"]["brevity"]["weight"] == best.params["rewards.brevity.weight"]


def test_a_stopped_search_resumes_its_unfinished_trial(place: Path, capsys) -> None:
    first = Searched(place / "sweep")
    done, stopped = first.begins(), first.begins()
    first.logs(done, 100, 0.5)
    first.ends(done)
    first.logs(stopped, 40, 0.1)
    assert first.ends(stopped, PREEMPTED).state == PREEMPTED
    _show_found(Console(width=40), first.plan, first.trials.study, place / "sweep")
    out = capsys.readouterr().out
    assert "2 of 3 trials are left; `rlhf resume sweep` continues\n" in out
    assert [line.split() for line in out.splitlines()[:2]] == [["trial", METRIC], ["★", "0", "0.5"]]

    second = Searched(place / "sweep")
    assert second.trials.num_to_come == 2  # the stopped one and the third
    again = second.begins()
    assert (again.name, again.resume, again.take_over) == (stopped.name, True, True)
    second.logs(again, 100, 0.8)
    second.ends(again)
    assert second.trials.study.best_trial.user_attrs["job"] == stopped.name
    assert second.begins().name not in {done.name, stopped.name}
    assert second.trials.next_job() is None


def test_a_trial_that_was_resumed_on_its_own_counts_and_one_in_training_is_left_alone(place: Path) -> None:
    """Each by `rlhf resume TRIAL`. One that another machine had is taken over, as the user says."""
    first = Searched(place / "sweep")
    jobs = [first.begins() for _ in range(3)]
    for job, value in zip(jobs, (0.5, 0.8, 0.1), strict=True):
        first.logs(job, 40, value)
        first.ends(job, PREEMPTED)
    update_status(jobs[0].folder, state=FINISHED)
    claim(jobs[1].folder)
    claim(jobs[2].folder)
    update_status(jobs[2].folder, host="elsewhere", boot="theirs")
    second = Searched(place / "sweep")
    assert second.begins().name == jobs[2].name
    assert second.trials.next_job() is None
    assert [(trial.state.name, trial.values) for trial in second.tried[:2]] == [("COMPLETE", [0.5]), ("RUNNING", None)]
    assert read_status(jobs[1].folder).state == RUNNING


def test_after_its_deadline_a_search_begins_no_trial_and_a_resumed_one_has_none(place: Path, monkeypatch) -> None:
    """The trials of a resumed search were refused, one after the other, because the deadline had passed."""
    deadline = "launch.must_save_by=2090-01-01T06:00"
    first = Searched(place / "sweep", deadline)
    assert first.begins().experiment.launch.must_save_by == "2090-01-01T06:00"
    for module in (search, resuming, machine_checks):
        monkeypatch.setattr(module, "has_passed", lambda *_, **__: True)
    assert first.trials.next_job() is None
    assert (first.trials.num_to_come, len(first.tried), first.said) == (2, 1, [])
    second = Searched(place / "sweep", deadline)
    cut_off = second.begins()
    second.logs(cut_off, 100, 0.5)
    second.ends(cut_off)
    assert second.begins().experiment.launch.must_save_by is None
    assert second.said == []


def test_no_trial_begins_in_the_grace_period_before_a_deadline(place: Path, capsys) -> None:
    """Each one would stop after its first step: a search used up all its proposals without one result."""
    soon = f"{datetime.now() + timedelta(seconds=100):%Y-%m-%dT%H:%M:%S}"
    search = Searched(place / "sweep", f"launch.must_save_by={soon}", "launch.grace_s=120")
    assert (search.trials.next_job(), search.trials.num_to_come) == (None, 3)
    _show_found(Console(width=200), search.plan, search.trials.study, place / "sweep")
    assert "3 of 3 trials are left, launch.must_save_by leaves no grace period; `rlhf" in capsys.readouterr().out


def test_the_jobs_to_come_are_shown(place: Path) -> None:
    """Of three trials the first begins. A search that is stopped between two trials can be resumed."""
    runner = _Runner(Console(), [], SweepOptions(), Searched(place / "sweep").trials)
    assert runner._may_begin()
    assert runner._display.num_to_come == 2
    runner._waiting.clear()
    runner.ask(signal.SIGTERM)
    assert runner.run() == EXIT_PREEMPTED


def test_a_trial_that_was_never_frozen_has_failed(place: Path) -> None:
    search = Searched(place / "sweep")
    search.trials.study.ask({**search.plan.space})  # killed before it was frozen
    (elsewhere := place / "theirs" / "run").mkdir(parents=True)
    (elsewhere / "config.yaml").write_text("{}")  # the user never allowed its code
    search.trials.study.ask({**search.plan.space}).set_user_attr("job", "../theirs/run")
    stopped = search.begins()
    search.logs(stopped, 40, 0.1)
    search.ends(stopped, PREEMPTED)
    again = Searched(place / "sweep")
    assert again.begins().name == stopped.name
    assert [trial.state.name for trial in again.tried] == ["FAIL", "FAIL", "RUNNING"]


def test_a_worse_trial_is_stopped_and_counts_as_done(place: Path) -> None:
    search = Searched(place / "sweep", "sweep.prune=median", "sweep.trials=9")
    for _ in range(6):
        watch = search.begins()
        assert not search.trials.should_stop(watch)
        for step, max_steps in ((0, 1000), (9, None), (209, 1000), (609, 1000), (1000, 1000)):
            search.logs(watch, step, 0.9, max_steps=max_steps)
            assert not search.trials.should_stop(watch)
        search.ends(watch)
    assert search.tried[0].intermediate_values == {20: 0.9, 60: 0.9}
    bad, at_its_end = search.begins(), search.begins()
    search.logs(at_its_end, 100, 0.1)
    assert not search.trials.should_stop(at_its_end)
    search.logs(bad, 60, 0.1)
    assert search.trials.should_stop(bad)
    assert not search.trials.should_stop(bad)  # it has been told
    ended = search.ends(bad, PREEMPTED)
    assert (ended.state, ended.reason) == (PRUNED, None)
    assert read_status(bad.folder).reason == "pruned: others were better at step 60"
    assert search.tried[-2].state.name == "PRUNED"


def test_proposals_that_cannot_be_run_are_told_and_five_in_a_row_end_the_search(place: Path, monkeypatch) -> None:
    search, checked, wrong = Searched(place / "sweep", "sweep.trials=20"), sweep_folder.checked, [2]

    def check(jobs: list[SweepJob], **rules: Any) -> list[CheckedJob]:
        wrong[0] -= 1
        if wrong[0] >= 0:
            raise ConfigError("this will not do", where="rewards")
        return checked(jobs, **rules)

    monkeypatch.setattr(sweep_folder, "checked", check)
    assert search.begins().name.startswith("trial=2,")
    assert [trial.state.name for trial in search.tried] == ["FAIL", "FAIL", "RUNNING"]
    wrong[0] = 4
    search.begins()
    wrong[0] = 9
    with pytest.raises(ConfigError):
        search.trials.next_job()
    assert len(search.tried) == 3 + 4 + 1 + 5
    assert [line.partition(",")[0] for line in search.said] == [
        f"trial={n}" for n in (0, 1, *range(3, 7), *range(8, 13))
    ]


def test_a_trial_that_failed_or_logged_no_number_has_no_value_and_the_search_goes_on(place: Path) -> None:
    search = Searched(place / "sweep")
    for value, state in ((0.5, FINISHED), (None, FINISHED), (0.9, FAILED)):
        job = search.begins()
        search.logs(job, 100, value)
        assert search.ends(job, state).state == state
    assert [trial.state.name for trial in search.tried] == ["COMPLETE", "FAIL", "FAIL"]
    assert [line.partition(",")[0] for line in search.said] == ["trial=1"]


def test_an_objective_that_is_never_logged_ends_the_search(place: Path) -> None:
    search = Searched(place / "sweep")
    job = search.begins()
    search.logs(job, 100, 0.5, metric="rewards/corect/mean")
    with pytest.raises(RunError) as caught:
        search.ends(job)
    assert caught.value.hint == "sweep.objective=rewards/corect/mean"


SPACE: Space = {"w": FloatDistribution(0.0, 1.0)}


def plan_of(*objectives: str, **section: object) -> SearchPlan:
    sweep = Sweep.model_validate({"objective": list(objectives), **section})
    return SearchPlan(sweep, tuple(map(read_objective, objectives)), SPACE, ("a=[b,c]", "run.name=mine", "seed=3"), 0)


@pytest.mark.parametrize(
    ("objectives", "shown", "best"),
    [
        (("m",), [*range(11, 1, -1)], [11]),
        (("-m",), [*range(10)], [0]),
        (("m", "-n"), [*range(11, -1, -1)], [*range(12)]),  # more of one and less of the other: none beats another
    ],
)
def test_the_best_ten_are_shown_or_all_that_no_other_beats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objectives: tuple[str, ...], shown: list[int], best: list[int]
) -> None:
    plan = plan_of(*objectives, trials=12)
    search = open_study(tmp_path, plan)
    _show_found(Console(width=40), plan, search, tmp_path)
    assert "no trial of 0 has a value" in capsys.readouterr().out
    for value in range(12):
        trial = search.ask({**SPACE})
        search.tell(trial, [float(value)] * len(objectives))
    _show_found(Console(width=40), plan, search, tmp_path)
    table, _, command = capsys.readouterr().out.partition("★ ")[2].partition("12 complete")
    rows = [line.replace("★", "").split() for line in ("★ " + table).splitlines() if "." in line]
    assert [int(row[0]) for row in rows] == shown
    assert table.count("★") == len(best)
    again = next(line for line in command.splitlines() if "rlhf train" in line)
    assert again.startswith(f"  rlhf train -m 'a=[b,c]' w={search.best_trials[0].params['w']:.4g} ")
    assert "run.name" not in again


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_a_search_draws_again_what_its_seed_says_and_goes_on_with_other_values(tmp_path: Path, sampler: str) -> None:
    def drawn(folder: Path) -> object:
        search = open_study(folder, plan_of("m", sampler=sampler))
        trial = search.ask({**SPACE})
        search.tell(trial, 0.0)
        return trial.params

    for name in "ab":
        (tmp_path / name).mkdir()
    first, second = (drawn(tmp_path / "a") for _ in range(2))
    assert [drawn(tmp_path / "b") for _ in range(2)] == [first, second]
    assert first != second


@pytest.mark.parametrize(("prune", "stopped"), [("halving", True), ("median", True), ("off", False)])
def test_a_trial_that_does_worse_than_the_others_is_stopped(tmp_path: Path, prune: str, stopped: bool) -> None:
    def is_stopped(trial: Trial, percent: int, value: float) -> bool:
        trial.report(value, percent)
        return bool(trial.should_prune())

    search = open_study(tmp_path, plan_of("m", prune=prune))
    for value in (1.0, 0.9, 0.8, 0.95, 0.85, 0.7):
        trial = search.ask({**SPACE})
        for percent in (10, 11, 33, 100):
            is_stopped(trial, percent, value)
        search.tell(trial, value)
    bad = search.ask({**SPACE})
    assert is_stopped(bad, 10, 0.0) is False  # before the first rung
    assert is_stopped(bad, 11, 0.0) is stopped
    assert is_stopped(search.ask({**SPACE}), 11, 2.0) is False
    assert is_stopped(search.ask({**SPACE}), 11, 0.96) is False  # the third of nine


OBJECTIVE = "sweep.objective=rewards/correct/mean"
SEARCH = ["sweep=weights", OBJECTIVE, "sweep.trials=2", "rewards.correct.weight=1"]


@pytest.mark.whole
def test_two_trials_are_two_runs_and_the_best_is_shown(workplace: Path, sweep, capsys) -> None:
    assert sweep(*SEARCH, "--dry-run", "--json") == (0, [])
    assert json.loads(capsys.readouterr().out)["dry_run"] is True
    code, runs = sweep(*SEARCH, "-j", "2")
    assert code == 0
    assert [run.path.name.partition(",")[0] for run in runs] == ["trial=0", "trial=1"]
    assert [read_status(run).state for run in runs] == ["finished"] * 2
    said = capsys.readouterr().out
    assert "[1/2] trial=0" in said  # the second is still to come
    assert "search for more rewards/correct/mean" in said
    assert "★ the best; 2 complete" in said
    folder = runs[0].path.parent
    assert (folder / "report.html").is_file()
    swept = json.loads((folder / "sweep.json").read_text())["swept"]
    assert swept == ["rewards.format.weight", "rewards.brevity.weight"]
    assert main(["resume", str(folder)]) == 0
    assert "2 complete" in capsys.readouterr().out
    assert main(["resume", str(folder), "--dry-run"]) == 0
    assert "nothing was started or written" in capsys.readouterr().out
    assert main(["resume", str(folder), "--failed"]) == 2
    assert f"rlhf resume {RunFolder(folder).shown}" in capsys.readouterr().err
    assert main(["resume", str(folder), "--watch", "rewards/nope/mean"]) == 2


def test_a_typed_interval_is_searched_beside_the_section(place: Path) -> None:
    plan: Any = search_plan([*SMALL, *SEARCH, "trainer.args.learning_rate=tag(log,interval(1e-5,1e-3))"])
    assert list(plan.space) == ["rewards.format.weight", "rewards.brevity.weight", "trainer.args.learning_rate"]
    assert plan.space["trainer.args.learning_rate"] == FloatDistribution(1e-5, 1e-3, log=True)
    assert [word for word in plan.fixed if "sweep" in word] == []
    low = {key: ends_of(distribution)[0] for key, distribution in plan.space.items()}
    corners = [low, *({**low, key: ends_of(distribution)[1]} for key, distribution in plan.space.items())]
    assert [job.values for job in plan.corners()] == corners


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*SEARCH, "seed=1,2"], "got:      seed in the space"),
        ([*SEARCH, "model.build.seed=range(0,5)"], "got:      model.build.seed in the space"),
        (
            ["rewards.brevity.args.full=interval(1,5)", "sweep.objective=reward", "sweep.trials=2"],
            "search over rewards.brevity.args.full | sweep.objective='[rewards/correct/mean,rewards/format/mean]'",
        ),
        (["sweep=weights", "sweep.objective=reward"], "where:    sweep.objective"),
        (["sweep=weights", "sweep.objective=rewards/corect/mean"], "sweep.objective=rewards/correct/mean"),
        (["sweep=weights", "sweep.objective=[loss,-kl]", "sweep.prune=median"], "where:    sweep.prune"),
        (
            [*SEARCH, "rewards.format.weight=1", "rewards.brevity.weight=1"],
            "where:    sweep.space | keys with several | interval(0,2)",
        ),
        ([*SEARCH, "trainer.args.lerning_rate=interval(0,1)"], "trainer.args.learning_rate"),
        ([*SEARCH, "launch=slurm"], "where:    launch.slurm"),
        ([*SEARCH, "seed=loguniform(1,9)"], "'seed=tag(log,interval(1,9))'"),
        ([*SEARCH, "seed=uniform(1,9)"], "'seed=interval(1,9)'"),
        ([*SEARCH, "+sweep.space.seed='log(1,9)'"], "the values of seed cannot be read"),
        ([*SEARCH, "rewards.format.weight=interval(0,1)", "rewards.format.weight=1"], "is typed twice"),
        (["rewards.format.weight=interval(0,1)"], "sweep=weights"),
    ],
)
def test_mistakes_are_reported_before_the_first_trial(workplace: Path, capsys, words: list[str], says: str) -> None:
    assert main(["train", "-m", *SMALL, *words]) == 2
    said = capsys.readouterr().err
    assert [part for part in says.split(" | ") if part not in said] == []
    assert not (workplace / "runs").exists()
