"""The schema for editors, held against every shipped file, against wrong ones, and by jsonschema, which is not ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from rlhf_cli.cli import main
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.json_schema import configuration_schema
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.project.key_reference import described

FILES = [(group, file) for group, options in groups().items() for file in options.values()]


def complaints(group: str, content: object) -> list[str]:
    found = Draft202012Validator(configuration_schema(group)).iter_errors(content)
    return [".".join(map(str, best_match([error]).absolute_path)) for error in found]


def test_it_accepts_what_is_shipped() -> None:
    found = {file: complaints(group, yaml.safe_load(file.read_text()) or {}) for group, file in FILES}
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
    ],
)
def test_it_refuses(wrong: str, where: str) -> None:
    assert complaints("exp", yaml.safe_load(wrong)) == [where]


@pytest.mark.parametrize("name", RESERVED_ARGS)
def test_it_refuses_what_is_set_elsewhere(name: str) -> None:
    assert complaints("exp", {"trainer": {"args": {name: None}}}) == ["trainer.args"]


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
