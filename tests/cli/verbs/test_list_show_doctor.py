"""`rlhf list`, `rlhf show` and `rlhf doctor`: pages, sections, conditions, and suggestions for wrong words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.cli import main
from rlhf_cli.project import doctor
from rlhf_cli.project.doctor import State
from tests.support.begun_runs import begun

Said, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("place")


def said(capsys: Said, *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def as_json(capsys: Said, *words: str) -> Any:
    return json.loads(said(capsys, *words, "--json"))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["list", "rewrd"], "rlhf list reward"),
        (["list", "quickstart"], "rlhf list exp quickstart"),
        (["list", "reward", "jugde"], "rlhf list reward judge"),
        (["list", "trainer", "grpo", "lerning_rate"], "rlhf list trainer grpo learning_rate"),
        (["list", "keys", "wieght"], "rlhf list keys weight"),
        (["list", "exp", "a", "b"], ""),
        (["show", "rewards"], "+exp=quickstart rewards, or rlhf list exp"),
        (["show"], "+exp=quickstart, or rlhf list exp"),
        (["show", "+exp=quickstart", "brevity"], "rewards.brevity"),
        (["show", "+exp=quickstart", "trainr"], "trainer"),
        (["show", "runs/mine/sweep"], "runs/mine/sweep/seed=1"),  # a sweep is not one run
    ],
)
def test_wrong_words(words: list[str], hint: str, capsys: Said, write: Callable[[str, str], Path]) -> None:
    write("runs/mine/sweep/seed=1/config.yaml", "seed: 1\n")
    write("runs/mine/sweep/sweep.json", "{}")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert not hint or f"try:      {hint}\n" in error


def test_the_page_of_a_reward(capsys: Said) -> None:
    shown = said(capsys, "list", "rewards", "brevity")
    for part in (
        "Shorter is better",
        "min(1, max(0, (zero - length) / (zero - full)))",
        "unit  tokens | characters | words, default tokens, here words",
        "one two three four                    0.75",
        "    fn: rlhf_cli.rewards.length:length_ramp",
        "+reward@rewards.brevity=brevity",
        "conf/reward/brevity.yaml",
    ):
        assert part in shown


@pytest.mark.parametrize(("key", "holds"), [("launch.vllm", "section of 1 key\n"), ("guards", "section of 3 keys\n")])
def test_keys(key: str, holds: str, capsys: Said) -> None:
    assert f"{key}  {holds}" in said(capsys, "list", "keys", key)


def test_the_yaml_and_the_override_of_a_page_work(capsys: Said, write: Callable[[str, str], Path]) -> None:
    shown = said(capsys, "list", "reward", "digits_only")
    pasted = shown.partition("in an experiment\n")[2].partition("\non the command line")[0]
    write("conf/exp/mine.yaml", f"# @package _global_\n{pasted}")
    assert main(["check", "+exp=mine", "trainer.args.max_completion_length=32"]) == 0
    override = shown.partition("rlhf train +exp=NAME ")[2].splitlines()[0]
    assert main(["check", "+exp=quickstart", override]) == 0


def test_a_section_is_shown_alone_and_every_line_has_its_origin(capsys: Said) -> None:
    shown = yaml.safe_load(said(capsys, "show", "+exp=quickstart", "rewards.brevity", "seed"))
    assert (list(shown), list(shown["rewards"])) == (["seed", "rewards"], ["brevity"])
    assert shown["rewards"]["brevity"]["weight"] == 0.2
    words = ("+exp=quickstart", "seed=4", "seed", "rewards.brevity.weight", "guards.no_signal")
    origins = [line.partition("# ")[2] for line in said(capsys, "show", *words).splitlines() if "#" in line]
    files = [origin.split("/")[-1].partition(":")[0] for origin in origins]
    assert files == ["command line", "quickstart.yaml", "train.yaml"]


def test_the_changed_values_make_the_same_experiment(capsys: Said, write: Callable[[str, str], Path]) -> None:
    """The output of --changed, pasted into a file, composes to the same configuration."""
    changed = said(capsys, "show", "+exp=toy_ppo", "--changed")
    assert len(changed.splitlines()) < 40
    whole = as_json(capsys, "show", "+exp=toy_ppo")["config"]
    write("conf/exp/again.yaml", f"# @package _global_\n{changed}")
    assert as_json(capsys, "show", "+exp=again")["config"] == whole


def test_a_run_is_shown(capsys: Said) -> None:
    found = as_json(capsys, "show", begun("seed=5").shown)
    assert found["config"]["seed"] == 5
    assert found["origins"]["seed"].startswith("runs/")


TOKEN = "hf_" + "PlantedTokenOfTheTests" * 2


def test_doctor_has_every_condition_and_no_secret(capsys: Said, monkeypatch: Patch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    out = said(capsys, "doctor", "--json")
    assert TOKEN not in out
    found = json.loads(out)
    assert found["can_train"] is True
    names = [condition["name"] for condition in found["conditions"]]
    assert {"GPU", "Python", "vllm", "hub login", "wandb login", "runs", "sandbox"} <= set(names)
    assert len(names) == len(set(names))
    for condition in found["conditions"]:
        assert set(condition) == {"area", "name", "state", "found", "fix", "is_needed"}
        assert condition["state"] in set(State)
        assert condition["state"] not in ("missing", "unfit") or condition["fix"] or condition["name"] == "Slurm"


def test_a_wrong_version_of_a_needed_package_is_exit_code_2(capsys: Said, monkeypatch: Patch) -> None:
    version_of = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda name: "0.9" if name == "trl" else version_of(name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delattr("os.sched_getaffinity")  # as on macOS
    assert main(["doctor"]) == 2
    out = capsys.readouterr().out
    assert "rlhf cannot train here: trl" in out
    assert "pip install 'trl" in out
