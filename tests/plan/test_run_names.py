"""`run:NAME` is the newest finished run of an experiment, or an error with a command; what else is filled in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RunError
from rlhf_cli.plan.prepare import fill_in_policy_and_data, find_run, is_run_name, prepare, prepare_from
from rlhf_cli.runs import reward_records
from rlhf_cli.runs.run_folder import RunFolder


def make_run(name: str, state: str = "finished", updated_at: float = 1.0) -> str:
    folder = Path.cwd() / "runs" / name
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    (folder / "status.json").write_text(json.dumps({"state": state, "updated_at": updated_at}))
    os.utime(folder / "status.json", (updated_at, updated_at))
    return str(folder / "model")


def refusal(named: str, where: str = "model.path") -> RunError:
    with pytest.raises(RunError) as caught:
        find_run(named, "runs", where=where)
    assert caught.value.where == where
    return caught.value


def test_the_newest_finished_run_with_a_model_is_taken() -> None:
    oldest, newest = make_run("mine/b"), make_run("mine/a", updated_at=2.0)
    make_run("mine/c", "failed", 3.0)
    Path(make_run("mine/d", updated_at=4.0)).rmdir()
    make_run("mine/e", updated_at=5.0)
    Path("runs/mine/e/status.json").write_text("{")  # it cannot be read, and stops no other
    for named, model in (("run:mine", newest), ("run:mine/b", oldest)):
        assert str(find_run(named, "runs", where="").model) == model


def test_without_one_the_error_says_what_to_type() -> None:
    """A run that is there, however its name is misspelt; else the experiment that makes one; else the newest run."""
    expected = "run:EXPERIMENT for its newest finished run, or run:EXPERIMENT/RUN"
    error = refusal("run:mine")
    assert (error.got, error.expected, error.hint) == ("no runs in runs/mine", expected, "rlhf list exp")
    make_run("mine/b", "failed")
    make_run("mine/a", "preempted")
    Path("runs/mine/a/status.json").write_text("{")
    Path("runs/mone").mkdir()  # no run is in it
    error = refusal("run:mine")
    assert (error.got, error.hint) == ("a with an unreadable status.json, b failed", "rlhf status runs/mine")
    make_run("other/c", updated_at=5.0)
    make_run("other/d", "failed", updated_at=6.0)
    for named, hint in {
        "run:quickstart": "rlhf train +exp=quickstart",
        "run:quickstrat": "rlhf train +exp=quickstart  # then run:quickstart",
        "run:mone": "run:mine",
        "run:mone/b": "run:mine/b",
        "run:b": "run:mine/b",
        "run:mine/b": "rlhf why runs/mine/b",
        "run:xyzzyxyzzy": "runs/other/c",
    }.items():
        assert refusal(named).hint == hint


def test_a_sweep_names_its_runs() -> None:
    """No run represents the sweep, whether the sweep or its experiment is named; eight at most are listed."""
    jobs = [f"mine/sweep/seed={seed}" for seed in range(9)]
    for number, job in enumerate(jobs):
        make_run(job)
        Path("runs/mine/sweep/sweep.json").write_text("{}")
        for named in ("run:mine/sweep", "run:mine") if number in (7, 8) else ():
            error = refusal(named)
            assert str(error.got).splitlines() == [f"runs/{job}" for job in jobs[:8]]
            assert error.expected == "one of its runs" + ("; the first 8 are above" if number == 8 else "")
            assert error.hint == f"model.path=runs/{job}/model"
            assert refusal(named, "the run").hint == f"runs/{job}"
    assert str(find_run(f"run:{jobs[0]}", "runs", where="").path).endswith("seed=0")
    single = make_run("mine/single")
    assert str(find_run("run:mine", "runs", where="").model) == single


def test_what_a_run_s_name_becomes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward model's words end and its scores are moved as its run recorded it."""
    model, trained = make_run("mine/one"), {"is": True}
    monkeypatch.setattr(reward_records, "trained_with_eos", lambda folder: trained["is"] if folder == model else None)
    means = {(model, True, "rewards.a.offset"): 1.5, (model, False, "rewards.b.offset"): 2.5}
    monkeypatch.setattr(reward_records, "mean_reward", lambda model, *, with_eos, where: means[model, with_eos, where])
    rewards = ("rewards.a={model: 'run:mine', offset: auto}", "rewards.b={model: 'run:mine', with_eos: false}")
    words = ["+exp=quickstart", *(f"+{word}" for word in rewards), "rewards.b.offset=auto"]
    words += ["model=local", "model.path='run:mine'", "model.tokenizer='run:mine/one'"]
    prepared = prepare(words)
    found, written = prepared.experiment, prepared.as_written
    assert [(found.rewards[name].model, found.rewards[name].with_eos, found.rewards[name].offset) for name in "ab"] == [
        (model, True, 1.5),
        (model, False, 2.5),
    ]
    sft = ["+exp=toy_sft", "+trainer.args.chat_template_path='run:mine'"]
    assert prepare(sft).experiment.trainer.args["chat_template_path"] == model
    assert (found.model.path, found.model.tokenizer) == (model, model)
    assert (written.model.path, prepare(words, keep_run_names=True).experiment) == ("run:mine", written)
    trained["is"] = False
    means[model, False, "rewards.a.offset"] = 3.5
    assert prepare(words).experiment.rewards["a"].offset == 3.5
    template = "trainer.args.chat_template_path"
    for key in ("model.path", "model.tokenizer", "rewards.a.model", template):
        with pytest.raises(RunError) as caught:
            prepare([*(sft if key == template else words), f"{key}='run:none'"])
        assert caught.value.where == key
    taught = prepare(["trainer=gkd", "data=file", "data.path=x.jsonl", "model=tiny", "teacher.path='run:mine'"])
    assert taught.experiment.teacher is not None
    assert taught.experiment.teacher.path == model
    assert (is_run_name("run:a"), is_run_name("a")) == (True, False)


def critic_of(named: str) -> str | None:
    critic = prepare(["+exp=quickstart", "trainer=ppo", f"critic.init='{named}'"]).experiment.critic
    return critic.init if critic is not None else None


def test_a_critic_from_a_run_is_its_critic_where_it_had_one(place: Path) -> None:
    model = make_run("mine/one")
    named = ("run:mine", "policy", "runs/mine/one/model", "nobodys/model")
    assert [critic_of(name) for name in named] == [model, "policy", model, "nobodys/model"]
    (place / "runs/mine/one/critic").mkdir()
    assert critic_of("run:mine") == str(place / "runs/mine/one/critic")
    with pytest.raises(RunError, match="no run of 'other' has finished") as caught:
        critic_of("run:other")
    assert caught.value.where == "critic.init"


def test_scoring_needs_no_policy_and_no_data() -> None:
    """What is missing is filled in, and a run that does not exist yet; what is there stays."""

    def filled(*words: str) -> Experiment:
        return prepare(["+exp=quickstart", *words], adjust=fill_in_policy_and_data).experiment

    missing: Any = filled("model=local", "data=file", "~rewards.correct")
    assert (missing.model.path, missing.data.path) == ("(not given)", "(not given)")
    later: Any = filled("model=local", "model.path='run:later'", "trainer=ppo", "critic.init='run:later'")
    assert (later.model.path, later.critic.init) == ("(not given)", "policy")
    model = make_run("mine/one")
    there: Any = filled("model=local", "model.path='run:mine'", "trainer=ppo", "critic.init='run:mine'")
    assert (there.model.path, there.critic.init, there.data.world) == (model, model, "toy_sums")
    given: Any = filled("model=local", "model.path=org/model", "data=file", "data.path=a.jsonl", "~rewards.correct")
    assert (given.model.path, given.data.path) == ("org/model", "a.jsonl")
    frozen = prepare(["+exp=quickstart", "model=local", "model.path='run:mine'"]).as_written
    folder = RunFolder(Path("runs/frozen"))
    folder.path.mkdir(parents=True)
    folder.config.write_text(json.dumps(frozen.model_dump(mode="json", by_alias=True)))
    again = prepare_from(folder, ["seed=7"])
    assert (again.experiment.seed, again.experiment.model.path, again.as_written.model.path) == (7, model, "run:mine")


def test_a_folder_below_the_home_has_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers takes ~/m for a hub id; freezing alone made the path absolute, so that only a training read it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    words = ["+exp=quickstart", "model.build=null", "model.path=~/m", "model.tokenizer=~/m", "rewards.learnt.model=~/m"]
    experiment = prepare([*words, "rewards.gone.model=~/gone"]).experiment
    named = [experiment.model.path, experiment.model.tokenizer, experiment.rewards["learnt"].model]
    assert named == [str(tmp_path / "m")] * 3
    assert experiment.rewards["gone"].model == "~/gone"
