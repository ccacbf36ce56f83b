"""No former name or name of another tool is valid today, their replacements exist, and a message names them."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.schema.experiment import field_at
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import RESERVED_ARGS
from rlhf_cli.tables import former_names
from rlhf_cli.tables.former_names import FORMER_NAMES, VALUE_SYNONYMS, VERBS_OF_OTHERS
from rlhf_cli.tables.trl_trainers import TRAINERS

ARGS = "trainer.args."


@pytest.fixture(scope="module")
def todays() -> set[str]:
    """Every field of every config class that is run here, as TRL itself says when it is imported."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    configs: list[Any] = [getattr(importlib.import_module(row.module), row.config_class) for row in TRAINERS.values()]
    return {field.name for config in configs for field in dataclasses.fields(config)}


def test_no_row_names_a_field_of_today(todays: set[str]) -> None:
    assert {"learning_rate", "loss_type", "max_length"} <= todays  # negative control: it knows today's fields
    of_distillation = {"wandb_log_unique_prompts", "max_prompt_length", "max_new_tokens"}  # former names elsewhere
    assert set(FORMER_NAMES) & (todays | set(PpoArgs.model_fields)) == of_distillation
    assert len(FORMER_NAMES) > 100


def test_replacements_exist(todays: set[str]) -> None:
    for row in FORMER_NAMES.values():
        answers = [*row.today.split(","), *(row.with_critic or "").split(",")]
        for answer in filter(None, answers):
            key, _, value = answer.partition("=")
            if key.startswith(ARGS):
                name = key.removeprefix(ARGS).partition(".")[0]
                assert name in todays | set(PpoArgs.model_fields), row
                assert name not in RESERVED_ARGS, row
            elif key in groups() and value:
                assert value in groups()[key], row
            else:
                parts = key.split(".")
                assert field_at(parts) is not None or parts[-2] in ("rename", "extra"), row


def test_each_name_has_one_row() -> None:
    """A second row of a name would hide the first without a word."""
    source = importlib.import_module("rlhf_cli.tables.former_names")
    names = [name for by_today in source._TODAY.values() for several in by_today.values() for name in several.split()]
    assert len(names) == len(FORMER_NAMES)
    # A word without a dot or value is an argument of TRL's.
    assert former_names._full("max_steps,data.path,a=b") == "trainer.args.max_steps,data.path,a=b"


def test_synonyms_are_not_values_but_their_meanings_are() -> None:
    assert set(VERBS) & set(VERBS_OF_OTHERS) == set()
    for name, spoken in VALUE_SYNONYMS.items():
        if name in groups():
            assert not set(spoken) & set(groups()[name])
            assert set(spoken.values()) <= set(groups()[name])


Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("tarin +exp=quickstart seed=3", "rlhf train +exp=quickstart seed=3"),
        ("ls reward", "rlhf list reward"),
        ("sweep +exp=quickstart", "rlhf train -m +exp=quickstart"),
        ("train --output_dir out", "run.root, or run.name"),
        ("train --model_name_or_path a/b --bf16", "model.path=a/b"),
        ("train --multirn", "--multirun"),
        ("check +exp=quickstart launch.devices=2", "launch.processes=2"),
        ("check +exp=quickstart slurm.gres=gpu:2", "launch.slurm.extra.gres=gpu:2"),
        ("check +exp=quickstart guards=off", "guards.no_signal=off guards.max_error_share=1"),
        ("check +exp=quickstart critic=off", "critic=null"),
        ("check +exp=quickstart model.name=gpt2", "model.path=gpt2"),
        ("check +exp=quickstart model=gpt2", "model=local model.path=gpt2"),
        ("check +exp=quickstart data=no.jsonl", "data=file data.path=no.jsonl"),
        ("check +exp=quickstart dtype=bf16", "model.dtype=bfloat16"),
        ("check +exp=quickstart optimizer=adamw", "trainer.args.optim=adamw_torch"),
        ("check +exp=quickstart use_peft=true", "model.lora.r=16"),
        ("check +exp=quickstart actor_rollout_ref.model.path=gpt2", "model.path=gpt2"),
        ("check +exp=quickstart eval.steps=10", "trainer.args.eval_steps=10"),
        ("check +exp=quickstart wandb.project=x", "track.project=x"),
        ("check +exp=quickstart critic_lr=1e-5", "critic.learning_rate=1e-5"),
        ("check +exp=quickstart reward=length", "reward@rewards.length_ramp=length_ramp"),
    ],
)
def test_the_hint_for_another_tools_word(words: str, hint: str, capsys: Said) -> None:
    assert main(words.split()) == 2
    assert f"try:      {hint}\n" in capsys.readouterr().err


def at_a_terminal(**environment: str) -> str:
    """What `rlhf tarin` prints to stderr where that is a terminal."""
    leader, follower = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | environment
    subprocess.run([sys.executable, "-m", "rlhf_cli", "tarin"], stderr=follower, env=env, check=False)
    os.close(follower)
    printed = os.read(leader, 4096).decode()
    os.close(leader)
    return printed


def test_error_is_red_at_a_terminal_and_nowhere_else(capsys: Said) -> None:
    assert "\x1b[1;31merror:\x1b[0m there is no verb" in at_a_terminal()
    assert "\x1b" not in at_a_terminal(NO_COLOR="1")
    assert "\x1b" not in at_a_terminal(TERM="dumb")
    assert main(["tarin"]) == 2
    assert "\x1b" not in capsys.readouterr().err
