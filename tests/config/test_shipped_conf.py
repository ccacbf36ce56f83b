"""Every shipped configuration file: composed, judged, short, captioned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import compose
from rlhf_cli.config.conf_folders import APPENDED_GROUPS, caption, shipped_dir
from rlhf_cli.config.schema.model_and_data import Data, Model
from rlhf_cli.config.schema.reward_sections import Advantages, Reward, Truncation
from rlhf_cli.config.schema.run_sections import Launch, Track
from rlhf_cli.config.schema.section import Section
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.prepare import prepare

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


def test_negative_control_a_spoilt_option_is_noticed(place: Path) -> None:
    spoilt = place / "conf" / "track" / "none.yaml"
    spoilt.parent.mkdir(parents=True)
    spoilt.write_text("# spoilt\nmood: none\n")
    with pytest.raises(ValueError, match="mood"):
        test_option("track", "none")


def test_files_are_short_and_say_what_they_are() -> None:
    assert len(EXPERIMENTS) >= 26
    assert [file for file in FILES if len(file.read_text().splitlines()) > 40 or len(caption(file)) <= 8] == []
