"""Every shipped configuration file: composed, judged, short, captioned, and accepted by the schema for editors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from rlhf_cli.cli import main
from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import compose
from rlhf_cli.config.conf_folders import APPENDED_GROUPS, caption, groups, shipped_dir
from rlhf_cli.config.json_schema import configuration_schema
from rlhf_cli.config.schema.model_and_data import Data, Model
from rlhf_cli.config.schema.reward_sections import Advantages, Reward, Truncation
from rlhf_cli.config.schema.run_sections import Launch, Track
from rlhf_cli.config.schema.section import Section
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.project.key_reference import described

pytestmark = pytest.mark.usefixtures("place", "by_hydra")

OF_A_MODEL = ("dapo", "gdpo_gates", "gsm8k_grpo", "gsm8k_sft", "hh_reward", "r1_language")
NEEDS = {
    **dict.fromkeys((*OF_A_MODEL, "ultrafeedback_dpo", "ultrafeedback_kto"), ("model.path",)),
    **dict.fromkeys(("hh_ppo", "tldr_ppo"), ("model.path", "rewards.preference.model")),
}
"""Experiment -> what a user has to say beside its name."""
EXPERIMENTS = sorted(file.stem for file in (shipped_dir() / "exp").glob("*.yaml"))

SECTIONS: dict[str, type[Section]] = {
    **{"trainer": Trainer, "model": Model, "data": Data, "reward": Reward},
    **{"advantages": Advantages, "truncation": Truncation, "launch": Launch, "track": Track},
}

FILES = sorted(shipped_dir().rglob("*.yaml"))
OPTIONS = [
    (group, option)
    for group in sorted({file.parent.relative_to(shipped_dir()).as_posix() for file in FILES} - {"."})
    for option in sorted(file.stem for file in (shipped_dir() / group).glob("*.yaml"))
]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment(name: str) -> None:
    words = [f"{key}=org/model" for key in NEEDS.get(name, ())]
    experiment = prepare([f"+exp={name}", *words], keep_run_names=True).experiment
    assert experiment.rewards or not experiment.trainer.row.generates
    if words:
        with pytest.raises(ConfigError) as caught:
            prepare([f"+exp={name}"], keep_run_names=True)
        assert all(f"{key} must be given" in str(caught.value) for key in NEEDS[name])


@pytest.mark.parametrize(("group", "option"), [pair for pair in OPTIONS if pair[0] != "exp"])
def test_option(group: str, option: str) -> None:
    if group == "reward":
        section: Any = compose([f"reward@rewards.one={option}"]).tree["rewards"]["one"]
    else:
        composed = compose([f"{group}={option}"])
        assert composed.choices[group] == option
        section = composed.tree.get(group)
    if group in APPENDED_GROUPS:
        return
    validated = SECTIONS[group].model_validate(section)
    if isinstance(validated, Trainer):
        fields, args = trl_args.fields_of(validated.trl), validated.trl_args
        assert [key for key, value in args.items() if trl_args.expected_instead(fields[key], value)] == []


def test_files_are_short_and_say_what_they_are() -> None:
    assert len(EXPERIMENTS) >= 26
    assert [file for file in FILES if len(file.read_text().splitlines()) > 40 or len(caption(file)) <= 8] == []


def complaints(group: str, content: object) -> list[str]:
    found = Draft202012Validator(configuration_schema(group)).iter_errors(content)
    return [".".join(map(str, best_match([error]).absolute_path)) for error in found]


def test_it_accepts_what_is_shipped() -> None:
    found = {
        file: complaints(group, yaml.safe_load(file.read_text()) or {})
        for group, options in groups().items()
        for file in options.values()
    }
    assert {file: printed for file, printed in found.items() if printed} == {}


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ("{trianer: {}}", ""),
        ("{rewards: {a: {wieght: 1}}}", "rewards.a"),
        ("{rewards: {a: {normalize: grup}}}", "rewards.a.normalize"),
        ("{trainer: {args: {lr_scheduler_type: lienar}}}", "trainer.args.lr_scheduler_type"),
        ("{trainer: {args: {max_steps: many}}}", "trainer.args.max_steps"),
        ("{warn: {redundant: maybe}}", "warn.redundant"),
        *((f"{{trainer: {{args: {{{name}: null}}}}}}", "trainer.args") for name in RESERVED_ARGS),
    ],
)
def test_it_refuses(wrong: str, where: str) -> None:
    assert complaints("exp", yaml.safe_load(wrong)) == [where]


def test_the_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> object:
        assert main(["schema", *words]) == 0
        return json.loads(capsys.readouterr().out)

    assert printed("reward") == described(configuration_schema("reward"), "reward")
    assert printed("--out", "a.json", "--json") == {"path": "a.json", "of": "exp"}
    assert json.loads((place / "a.json").read_text()) == described(configuration_schema(), "exp")
    assert main(["schema", "rewrad"]) == main(["schema", "--out", "no/where.json"]) == 2
    assert "try:      rlhf schema reward" in capsys.readouterr().err


def test_what_composes_does_not_read_runs() -> None:
    """Every command and many a Tab compose: what follows runs and their trackers is 50 ms more."""
    seen = "print(*{'rlhf_cli.runs.run_status', 'rlhf_cli.runs.heartbeat', 'netrc', 'torch'} & {*sys.modules})"
    code = f"import sys, rlhf_cli.config.compose; {seen}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
