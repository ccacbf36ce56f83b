"""Every shipped experiment trains: two steps of a tiny model, on rows and models of our own where the Hub has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.models.tiny import tiny_model_path
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.config.test_shipped_conf import NEEDS
from tests.support.random_reward_model import save_random_reward_model

BUILD: dict[str, Any] = {
    **{"hidden_size": 16, "num_layers": 1, "num_heads": 2},
    **{"context_tokens": 128, "seed": 0, "warm_start": None},
}
"""Of the size of the reward model that stands in for a learnt one, so that a critic may begin with it."""
OWN = [f"model.build.{name}={'null' if value is None else value}" for name, value in BUILD.items()]
FOLDER = ["model.path=./policy"]
JUDGED = [*FOLDER, "rewards.preference.model=./judge"]

EVERYWHERE = [
    *("launch=cpu", "track=none", "run.name=one", "trainer.args.max_steps=2"),
    *("trainer.args.per_device_train_batch_size=4", "trainer.args.gradient_accumulation_steps=1"),
]
GENERATES = ["trainer.args.max_completion_length=4"]
GROUPS = [*GENERATES, "trainer.args.num_generations=2"]
ROUNDS = [*GENERATES, "trainer.args.steps_per_generation=2", "trainer.args.num_iterations=1"]
FEW = ["data.args.num_rows=40"]
EVALUATED = [*("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1"), "trainer.args.max_length=96"]
NO_WORLD = ["data.world=null", "~data.args", "data.eval.world=null", "~data.eval.args"]
HELD_OUT = ["data.eval.path=./rows.jsonl", "data.eval.split=null"]


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def sums(number: int) -> dict[str, Any]:
    return {"question": f"What is {number} + 1?", "answer": f"{number} + 1 = {number + 1}\n#### {number + 1}"}


def dialogues(number: int) -> dict[str, Any]:
    asked = f"\n\nHuman: {number}+1?\n\nAssistant:"
    return {"chosen": f"{asked} {number + 1}", "rejected": f"{asked} no"}


def chats(number: int) -> dict[str, Any]:
    asked = message("user", f"{number}+1?")
    answers = {"chosen": str(number + 1), "rejected": "no"}
    return {name: [asked, message("assistant", text)] for name, text in answers.items()}


def prompts_as_messages(number: int) -> dict[str, Any]:
    pair = chats(number)
    return {"prompt": pair["chosen"][:1], **{name: messages[1:] for name, messages in pair.items()}}


def posts(number: int) -> dict[str, Any]:
    return {"prompt": f"POST: I have {number}.\n\nTL;DR:", "completion": f" {number}"}


Rows = Callable[[int], dict[str, Any]]
FEW_HELD_OUT = [*FEW, *EVALUATED[:2], "data.eval.args.num_rows=8"]
ASKED = "data.prompt='{question}'"
RECIPES: dict[str, tuple[list[str], Rows | None]] = {
    **dict.fromkeys(("quickstart", "study_weights", "toy_gates", "toy_staged"), ([*OWN, *GROUPS, *FEW], None)),
    **dict.fromkeys(
        ("study_truncation", "toy_ppo", "toy_speakers_ppo", "toy_staged_ppo"), ([*OWN, *ROUNDS, *FEW], None)
    ),
    **dict.fromkeys(("toy_dpo", "toy_kto", "toy_reward", "toy_sft"), ([*OWN, *FEW, *EVALUATED], None)),
    **dict.fromkeys(("ultrafeedback_dpo", "ultrafeedback_kto"), ([*FOLDER, *EVALUATED, *HELD_OUT], chats)),
    "dapo": ([*FOLDER, *GROUPS, "trainer.args.steps_per_generation=2", "truncation.cache=2"], sums),
    "gdpo_gates": ([*FOLDER, *GROUPS, ASKED], sums),
    "gsm8k_grpo": ([*FOLDER, *GROUPS], sums),
    "gsm8k_sft": ([*FOLDER, *EVALUATED], sums),
    "hh_ppo": ([*JUDGED, *ROUNDS], prompts_as_messages),
    "hh_reward": ([*FOLDER, *EVALUATED, *HELD_OUT], dialogues),
    "r1_language": ([*FOLDER, *GROUPS, ASKED], sums),
    "smollm2_calculator": ([*FOLDER, *GROUPS, *FEW, 'data.prompt=[{role: user, content: "{prompt}"}]'], None),
    "smollm2_ppo": ([*FOLDER, *ROUNDS, *FEW_HELD_OUT], None),
    "smollm2_reasoning": ([*FOLDER, *GROUPS, *FEW_HELD_OUT, ASKED], None),
    "smollm2_reward": (
        [*FOLDER, "model.lora.target_modules=all-linear", *EVALUATED, *NO_WORLD, *HELD_OUT[:1]],
        prompts_as_messages,
    ),
    "smollm2_rlhf": (
        [*FOLDER, *GROUPS, *EVALUATED[:2], *NO_WORLD, *HELD_OUT[:1], "rewards.learnt.model=./judge"],
        prompts_as_messages,
    ),
    "smollm2_sums": ([*FOLDER, *GROUPS, *FEW_HELD_OUT], None),
    "study_overoptimisation": ([*OWN, *ROUNDS, *FEW, "rewards.proxy.model=./judge"], None),
    "tldr_ppo": ([*JUDGED, *ROUNDS], posts),
    "toy_calculator": ([*OWN, *GROUPS, *FEW, "trainer.args.max_completion_length=48"], None),
    "toy_rlhf": ([*FOLDER, *ROUNDS, *FEW, "rewards.learnt.model=./judge", "critic.init=./judge"], None),
    "toy_speakers": ([*OWN, *GROUPS, *FEW, "trainer.args.max_completion_length=24"], None),
}
"""Every experiment -> what makes it small, and a row of the data that stands in for a set on the Hub."""
AT_ONCE = ("quickstart", "toy_dpo", "toy_kto", "toy_ppo", "toy_reward", "toy_sft", "toy_staged")
"""An experiment of each trainer, for `make test`; the others are `make test-whole`."""
SHIPPED = sorted(file.stem for file in (shipped_dir() / "exp").glob("*.yaml"))


def test_every_experiment_has_a_recipe() -> None:
    assert sorted(RECIPES) == SHIPPED
    assert len(SHIPPED) == 32
    # The words listed here for an experiment exist, and no experiment is missing.
    for name, words in NEEDS.items():
        keys = {word.partition("=")[0] for word in RECIPES[name][0]}
        assert {word.partition("=")[0] for word in words} <= keys, name


@pytest.fixture
def stand_ins(workplace: Path) -> Path:
    """A policy and a reward model of one size in the current folder, instead of the Hub's and those of earlier runs."""
    save_random_reward_model(workplace / "judge")
    policy = tiny_model_path(BUILD, list, lambda step, steps: None)
    (workplace / "policy").symlink_to(policy, target_is_directory=True)
    return workplace


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_:FutureWarning")  # of TRL's calls
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in AT_ONCE else pytest.mark.whole) for name in SHIPPED]
)
def test_it_trains(stand_ins: Path, name: str) -> None:
    if name == "smollm2_reasoning":
        pytest.importorskip("reasoning_gym", reason="pip install 'rlhf-cli[reasoning]'")
    words, row = RECIPES[name]
    if row is not None:
        rows = [row(number) for number in range(40)]
        (stand_ins / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        words = [*words, "data.path=./rows.jsonl", "data.split=null", "data.subset=null"]
    assert main(["train", f"+exp={name}", *EVERYWHERE, *words]) == 0
    folder = RunFolder(stand_ins / "runs" / name / "one")
    status = read_status(folder)
    assert (status.state, status.step) == ("finished", 2)
    events = read_metrics(folder.metrics)
    assert [event["step"] for event in events if "loss" in event] == [1, 2]
    assert list(folder.model.glob("*.safetensors"))
    assert any("eval_loss" in event for event in events) == ("trainer.args.eval_steps=1" in words)
