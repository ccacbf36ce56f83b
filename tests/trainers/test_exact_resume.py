"""A run that was stopped and resumed is the run that never stopped, bit for bit; what is typed then is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.trainers import checkpoint_mixin
from tests.support.cut_runs import cut, events, goes_on_as, is_same, table
from tests.support.small_runs import PPO_SMALL
from tests.trainers.small_stages import Stage

pytestmark = pytest.mark.whole


def test_the_run_it_is_compared_with_learns_and_shuffles(whole) -> None:
    """Without this, equality would say nothing: every step moves weights, every epoch has an order of its own."""
    run = whole()
    assert all(event["grad_norm"] > 0 for event in events(run))
    first, second = (list(dict.fromkeys(table(run, step)["prompt"])) for step in (4, 8))
    assert first != second


def test_a_log_in_the_middle_of_a_window_keeps_the_table_of_completions(whole, workplace: Path) -> None:
    run = whole()
    folder = cut(run, 5, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    for step in (5, 6, 8):
        assert {"correct", "format", "completion", "advantage"} <= table(run, step).keys()
        assert json.dumps(table(folder, step)) == json.dumps(table(run, step))  # as text: NaN is not equal to itself


@pytest.mark.parametrize(
    ("step", "lost"),
    [(2, "rollouts"), (5, "rollouts"), (4, "order")],  # after step 4 the buffer is used up: only the order counts
)
@pytest.mark.fault(7, 8)
def test_negative_control_without_what_is_restored_the_model_is_another(
    whole, workplace: Path, monkeypatch: pytest.MonkeyPatch, step: int, lost: str
) -> None:
    if lost == "rollouts":
        monkeypatch.setattr(checkpoint_mixin, "load_rollouts", lambda *_, **__: None)
    else:
        monkeypatch.delattr(checkpoint_mixin.CheckpointMixin, "_get_train_sampler")
    folder = cut(whole(), step, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    assert not is_same(folder, whole())


SCHEDULES = (
    "rewards.correct.weight={start: 0.0, end: 3.0, steps: 6}",
    "rewards.format.weight={start: 2.0, end: -1.0, fraction: 0.75, shape: cosine}",
    "rewards.brevity.weight={start: 1.0, end: 0.25, steps: 5, shape: step}",
)
A_ROUND_A_STEP = ("trainer.args.steps_per_generation=2", "trainer.args.num_iterations=1")
"""Two micro-batches a round and two a step: rewards are weighed anew at every optimizer step."""
UNEVEN = ("trainer.args.gradient_accumulation_steps=3", "trainer.args.max_steps=7")
"""Steps of 3, 3 and 2 micro-batches an epoch: no window of four ends where a step does, but at the epoch's end."""
EVALUATED = (
    *("trainer.args.eval_on_start=true", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=4"),
    *("data.eval.world=toy_sums", "data.eval.args.num_rows=4"),
)
MOVING = ("trainer.args.beta=0.5", "trainer.args.sync_ref_model=true", "trainer.args.ref_model_sync_steps=2")
SELDOM_LOGGED = ("trainer.args.logging_steps=3",)
"""Logged are means of all steps since the last log, also before the stop."""


@pytest.mark.parametrize(
    ("words", "step"),
    [
        *(((), step) for step in (2, 3, 4, 7)),
        (("trainer=rloo",), 3),
        (SELDOM_LOGGED, 5),
        (MOVING, 3),  # the reference moved after step 2, and is read by the rollout after step 4
        ((*SCHEDULES, *A_ROUND_A_STEP), 5),
        (SCHEDULES, 3),  # within a round of one
        (UNEVEN, 5),  # where no step ends with a slice of the rollout
        (EVALUATED, 3),  # it was evaluated before the first step, and is not once more
    ],
)
@pytest.mark.fault(7, 8, 9)
def test_wherever_it_is_stopped(whole, workplace: Path, words: tuple[str, ...], step: int) -> None:
    goes_on_as(whole(*words), step, workplace / "cut")


# 18 rows of 8: the third step ends an epoch, and the checkpoint of step 2 lies within one.
WORDS = (
    *("data.args.num_rows=20", "trainer.args.max_steps=5", "trainer.args.save_steps=2"),
    *("trainer.args.save_total_limit=null", "trainer.args.eval_strategy=no"),
)
SYNC = ["trainer.args.sync_ref_model=true", "trainer.args.ref_model_sync_steps=1"]
GROUPED = ["trainer.args.train_sampling_strategy=group_by_length", "trainer.args.max_steps=8"]


@pytest.mark.parametrize(
    ("name", "words", "step"),
    [
        ("sft", [], 2),
        ("kto", [], 2),
        ("dpo", ["model.lora.r=2"], 2),
        ("reward", ["model.lora.r=2"], 2),
        ("dpo", SYNC, 2),
        ("kto", SYNC, 2),
        ("sft", [*SELDOM_LOGGED], 2),
        ("dpo", ["trainer=orpo", *SELDOM_LOGGED], 2),
        ("sft", GROUPED, 4),  # in the second epoch
    ],
    ids=str,
)
def test_a_stage_that_was_killed(stage: Stage, workplace: Path, name: str, words: list[str], step: int) -> None:
    """What was not logged, a reference that moves, an order of rows that is drawn anew in every epoch."""
    _, never_stopped = stage(name, *WORDS, *words, run="whole")
    goes_on_as(never_stopped, step, workplace / "cut")


SELDOM = """
def seldom(completions, log_extra, trainer_state, **columns):
    if trainer_state.global_step < 2:
        log_extra("at", [trainer_state.global_step] * len(completions))
    return [0.0] * len(completions)
"""


def test_a_column_that_a_reward_has_logged_is_empty_in_later_rounds(train, workplace: Path) -> None:
    """TRL would repeat the last values, which the checkpoint holds."""
    (workplace / "mine.py").write_text(SELDOM)
    words = ["rewards.seldom.fn=./mine.py:seldom", "trainer.args.log_completions=true", "trainer.args.max_steps=4"]
    saves = ["trainer.args.save_steps=1", "trainer.args.save_total_limit=null"]
    code, never_stopped = train(*words, *saves)
    assert code == 0
    folder = cut(never_stopped, 2, workplace / "cut")
    assert main(["resume", str(folder.path)]) == 0
    for run in (never_stopped, folder):
        assert set(table(run, 1)["at"]) == {0}
        assert set(table(run, 4)["at"]) == {None}


CONSTANT = "trainer.args.lr_scheduler_type=constant"
SHORT = "trainer.args.max_steps=5"
RATE = 1e-3
"""The quickstart's learning rate."""


def rates(folder: RunFolder) -> list[float]:
    return series(read_metrics(folder.metrics), "learning_rate")[1]


@pytest.mark.fault(11)
def test_a_finished_run_that_goes_on_is_the_longer_run(whole, workplace: Path) -> None:
    """5 steps and then 3 more, under a schedule that knows no end: to the last bit the run of 8."""
    folder = cut(whole(CONSTANT, SHORT), 5, workplace / "cut")
    folder.status.write_text(folder.status.read_text().replace('"failed"', '"finished"'))
    assert main(["resume", str(folder.path), "trainer.args.max_steps=8"]) == 0
    assert (read_status(folder).state, read_status(folder).step) == ("finished", 8)
    assert is_same(folder, whole(CONSTANT))
    assert not is_same(whole(CONSTANT, SHORT), whole(CONSTANT))  # negative control
    assert [event["step"] for event in events(folder)] == list(range(1, 9))
    assert folder.read_config()["trainer"]["args"]["max_steps"] == 8


def test_allowed_steps_get_the_rates_of_the_longer_schedule(whole, workplace: Path) -> None:
    """Linear from step s of n: the rate is (1 - s/n) of the first (transformers' get_linear_schedule_with_warmup)."""
    folder = cut(whole(SHORT), 3, workplace / "cut")
    words = ["resume", str(folder.path), "trainer.args.max_steps=8"]
    assert (main(words), main([*words, "--allow", "trainer.args.max_steps"])) == (2, 0)
    by_hand = [*(RATE * (1 - step / 5) for step in range(3)), *(RATE * (1 - step / 8) for step in range(3, 8))]
    assert rates(folder) == pytest.approx(by_hand, rel=1e-12)
    assert main(words[:2]) == 0  # the new configuration is the one that is known now


@pytest.mark.fault(11)
def test_an_allowed_learning_rate_is_used(whole, workplace: Path) -> None:
    """transformers restores the old one with optimizer and schedule: the header would show a value that is not used."""
    folder = cut(whole(CONSTANT), 6, workplace / "cut")
    typed = ["trainer.args.learning_rate=0.25", "--allow", "trainer.args.learning_rate"]
    assert main(["resume", str(folder.path), *typed]) == 0
    assert rates(folder) == [RATE] * 6 + [0.25] * 2


def test_how_often_is_saved_and_logged_is_what_was_typed(whole, workplace: Path) -> None:
    """The Trainer's state in the checkpoint holds both, and is loaded after the arguments were read."""
    folder = cut(whole(), 4, workplace / "cut")
    words = ["trainer.args.save_steps=2", "trainer.args.logging_steps=4", "trainer.args.save_total_limit=2"]
    assert main(["resume", str(folder.path), *words]) == 0
    assert [path.name for path in sorted(folder.checkpoints.iterdir())] == ["checkpoint-6", "checkpoint-8"]
    assert [event["step"] for event in events(folder)] == [1, 2, 3, 4, 8]
    assert is_same(folder, whole())


LATE = """
import importlib
def late(completions, trainer_state, **kwargs):
    sign = importlib.import_module("sign" + "_of").K if trainer_state.global_step == 2 else 1.0
    return [sign * (len(completion) % 7) for completion in completions]
"""


def test_a_helper_whose_name_is_made_up_while_it_trains(train, workplace: Path) -> None:
    (workplace / "mine.py").write_text(LATE)
    (helper := workplace / "sign_of.py").write_text("K = 1.0\n")
    code, folder = train("rewards.mine.fn=./mine.py:late", "trainer.args.lr_scheduler_type=constant")
    assert code == 0
    longer = ["resume", str(folder.path)]
    assert main([*longer, "trainer.args.max_steps=4"]) == 0  # negative control: it has not changed
    helper.write_text("K = -1.0\n")
    assert main([*longer, "trainer.args.max_steps=5"]) == 2
    assert main([*longer, "trainer.args.max_steps=5", "--allow", "code"]) == 0
    assert main([*longer, "trainer.args.max_steps=6"]) == 0  # the new one is known now


MINE = '''
import random

class Dice:
    """A number that the rollout cannot see."""

    def reset(self, **row):
        self.luck = random.random()

    def roll(self, sides: int) -> int:
        """Roll.

        Args:
            sides: How many.
        """
        self.luck = random.random()
        return random.randint(1, int(sides))

    def get_reward(self):
        return self.luck
'''
INTERACTIVE = [
    *("+exp=toy_calculator", "launch=cpu", "track=none", "run.name=one", "expect=[]"),
    *("environment.class=./mine.py:Dice", "rewards.luck={environment: get_reward, weight: 0.1}"),
    *("trainer.args.per_device_train_batch_size=4", "trainer.args.num_generations=4", "trainer.args.max_steps=6"),
    *("trainer.args.steps_per_generation=4", "trainer.args.gradient_accumulation_steps=2", "guards.no_signal=off"),
    *("trainer.args.save_steps=1", "trainer.args.save_total_limit=null", "trainer.args.log_completions=true"),
]
"""Two steps of training a round, three rounds: the odd checkpoints are in the middle of one."""
FILTER = ["sampling.keep_groups={by: correct, tries: 3}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [FILTER, PPO_SMALL, [*FILTER, "launch.processes=2"]], ids=["grpo", "ppo", "grpo, two processes"]
)
def test_with_tools_an_environment_and_a_filter_of_groups_in_mid_round(workplace: Path, words: list[str]) -> None:
    (workplace / "mine.py").write_text(MINE)
    assert main(["train", *words, *INTERACTIVE]) == 0
    whole = RunFolder(workplace / "runs" / "toy_calculator" / "one")
    logged = events(whole)
    assert sum(event["tools/add/calls"] for event in logged if "tools/add/calls" in event) > 0
    if words[0] == FILTER[0]:
        assert max(event.get("sampling/draws", 0) for event in logged) > 1
    rest = cut(whole, 3, workplace / "cut")
    assert main(["resume", str(rest.path)]) == 0
    assert json.dumps(events(rest)) == json.dumps(logged)
    assert is_same(rest, whole)
