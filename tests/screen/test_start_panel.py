"""The panel before a run, of experiments as they are typed."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.screen.start_panel import show_start
from tests.support.terminal import printed


def read(*words: str, folder: str | None = None) -> dict[str, str]:
    """The first word of each line within the frame -> the rest of the line."""
    prepared = prepare(["exp=quickstart", "launch=cpu", "track=none", *words], keep_run_names=True)
    experiment, plan = prepared.experiment, preflight(prepared.experiment, prepared.composed)
    lines = printed(lambda console: show_start(console, experiment, plan, title="sums", folder=folder))
    assert lines[0].startswith("╭─ sums ─")
    inside = [line.strip("│ ").split(maxsplit=1) for line in lines[1:]]
    return {first: " ".join(rest).strip() for first, *rest in filter(None, inside)}


def test_what_will_happen(place: Path) -> None:
    lines = read("seed=7", folder="runs/sums/one")
    assert lines["trainer"] == "grpo  (GRPOTrainer of TRL, seed 7)"
    assert lines["processes"] == "1 (device cpu, precision float32)"
    assert lines["run"].split() == ["folder", "runs/sums/one"]
    assert lines["correct"].split()[0] == "1"
    assert "critic" not in lines


def test_without_a_folder_none_is_named(place: Path) -> None:
    assert "run" not in read()


def test_gates_and_schedules(place: Path) -> None:
    gate = "rewards.brevity.gate={by: correct, at_least: 1, otherwise: exclude}"
    lines = read(gate, "rewards.format.weight={start: 0, end: 1, steps: 3}")
    assert lines["reward"].split() == ["weight", "only", "where", "scored", "by"]
    assert lines["└"].split()[:5] == ["brevity", "0.2", "correct", ">=", "1"]
    assert lines["format"].startswith("0 to 1")


def test_dropout_is_spoken_of_where_there_is_any(place: Path) -> None:
    """PPO has none unless asked, and then says that what the adapter asks for is not done; TRL's others have it."""
    ppo, lora = ("trainer=ppo", "trainer.args.num_generations=1"), ("model.lora.r=4", "model.lora.lora_dropout=0.3")
    asked = "trainer.args.disable_dropout=false"
    assert read(*ppo, *lora)["dropout"].startswith("off: model.lora.lora_dropout=0.3 drops nothing")
    assert read(*ppo, *lora, "~trainer.args.disable_dropout")["dropout"].startswith("off:")
    assert read(*ppo, asked)["dropout"].startswith("on in the update, off in rollout passes: ratios are not 1")
    assert read("trainer=rloo", *lora)["dropout"].startswith("on in every pass, as in TRL")
    assert read(*lora, "trainer.args.disable_dropout=true")["dropout"].startswith("off:")
    for words in (ppo, (), ("trainer=rloo", asked)):
        assert "dropout" not in read(*words), words


def test_a_mode_that_contradicts_the_rewards_is_warned_of(place: Path) -> None:
    ppo = ("trainer=ppo", "trainer.args.num_generations=1", "truncation=bootstrap")
    lines = read(*ppo)
    assert lines["truncation"] == "bootstrap, replace"
    assert "truncation:" not in lines
    assert lines.keys() < read(*ppo, "truncation.mode=add").keys()
    told = read(*ppo, "truncation.mode=add")
    assert told["truncation"] == "bootstrap, add"
    assert told["truncation:"].startswith("bootstrap adds the value")


def test_ppo_names_critic_and_kl(place: Path) -> None:
    lines = read("trainer=ppo", "trainer.args.num_generations=1")
    assert lines["critic"] == "policy, own optimizer"
    assert lines["kl"] == "reward, k1, 0.05"
