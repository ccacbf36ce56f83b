"""Two CPU processes through accelerate's launcher: as many as asked, and the failing rank's own words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from peft import AutoPeftModelForTokenClassification
from transformers import AutoModelForTokenClassification

from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.status import read_status
from tests.support.small_runs import PPO_SMALL, SMALL

TWO = [*SMALL, "launch.processes=2", "trainer.args.per_device_train_batch_size=4"]


def rlhf(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlhf_cli", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def folder(workplace: Path) -> RunFolder:
    return RunFolder(workplace / "runs" / "quickstart" / "two")


def test_two_processes_are_seen_and_written_down(workplace: Path, folder: RunFolder) -> None:
    done = rlhf("train", *TWO, "run.name=two", cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert read_json(folder.provenance)["world_size"] == 2
    assert read_json(folder.provenance)["distributed_type"] == "MULTI_CPU"
    assert read_status(folder).state == "finished"
    assert [event["step"] for event in read_metrics(folder.metrics)] == [1, 2, 3, 3]
    assert done.stdout.rstrip().endswith("run folder: runs/quickstart/two")


def test_two_processes_go_on_in_the_middle_of_their_rollouts(workplace: Path, folder: RunFolder) -> None:
    """Each rank has rollouts and random numbers of its own in the one checkpoint; the model is equal bit for bit."""
    words = ["steps_per_generation=4", "max_steps=3", "save_steps=1", "save_total_limit=null"]
    settings = [f"trainer.args.{word}" for word in [*words, "gradient_accumulation_steps=2"]]
    done = rlhf("train", *TWO, "run.name=two", *settings, cwd=workplace)
    assert done.returncode == 0, done.stderr
    checkpoint = folder.checkpoints / "checkpoint-1"
    names = {path.name for path in checkpoint.iterdir()}
    assert {"rollout-rank0.pt", "rollout-rank1.pt", "rng_state_0.pth", "rng_state_1.pth", "manifest.json"} <= names
    never_stopped = (folder.model / "model.safetensors").read_bytes()
    assert [problem_with(path) for path in folder.checkpoints.iterdir()] == [None] * 3
    for later in (2, 3):
        shutil.rmtree(folder.checkpoints / f"checkpoint-{later}")
    shutil.rmtree(folder.model)
    folder.status.write_text(json.dumps({**read_json(folder.status), "state": "failed"}))
    done = rlhf("resume", str(folder.path), cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("going on from checkpoint-1") == 1
    assert (folder.model / "model.safetensors").read_bytes() == never_stopped


def test_the_failing_rank_is_shown_with_its_traceback(workplace: Path, folder: RunFolder) -> None:
    (workplace / "mine.py").write_text(
        "import os\n"
        "def bad(completions, **kwargs):\n"
        "    if os.environ['RANK'] == '1':\n        raise ValueError('rank one is unhappy')\n"
        "    return [0.0] * len(completions)\n"
    )
    done = rlhf("train", *TWO, "run.name=two", "rewards.mine.fn=./mine.py:bad", cwd=workplace)
    assert done.returncode == 1
    assert 'mine.py", line 4' in done.stderr
    assert "error: rank 1 failed: reward 'mine' failed on row 0" in done.stderr
    assert "ValueError: rank one is unhappy" in done.stderr
    status = read_status(folder)
    assert (status.state, status.failing_rank) == ("failed", 1)
    assert "ValueError: rank one is unhappy" in status.reason


def test_fewer_processes_than_asked_are_refused(workplace: Path, train, capsys) -> None:
    """The worker alone, as a launcher leaves it that fell back to one process."""
    _, folder = train()
    config = folder.config.read_text().replace("processes: 1", "processes: 2")
    assert "processes: 2" in config
    folder.config.write_text(config)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    worker = [sys.executable, "-m", "rlhf_cli.launch.worker", str(folder.path)]
    done = subprocess.run(worker, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    failure = json.loads((folder.path / "failure-rank0.json").read_text())
    assert "2 processes were asked for and 1 came up" in failure["message"]
    assert read_status(folder).state == "failed"


SPY = """
import gc, hashlib, os, pathlib

from rlhf_cli.trainers.ppo.critic import Critic


def spy(completions, trainer_state, **kwargs):
    (critic,) = (one for one in gc.get_objects() if isinstance(one, Critic))
    for name, parameters in (("critic", critic.parameters()), ("values", critic.model.parameters())):
        digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in parameters)).hexdigest()
        file = pathlib.Path(f"rank{os.environ['RANK']}-step{trainer_state.global_step}-{name}")
        file.write_text(digest)
    return [float(len(completion)) for completion in completions]
"""


FOR_DDP = ["+model.lora.r=4", "critic.share=lora"]


@pytest.mark.parametrize("words", [[], pytest.param(FOR_DDP, marks=pytest.mark.slow)], ids=["separate", "shared"])
def test_the_critic_of_two_processes_is_one(workplace: Path, folder: RunFolder, train, words: list[str]) -> None:
    """Every rank looks at its own before each rollout: equal among ranks, another one after every step."""
    train("trainer.args.max_steps=1")  # builds the model, which two processes at once may get wrong
    (workplace / "mine.py").write_text(SPY)
    settings = ["steps_per_generation=2", "gradient_accumulation_steps=2"]  # a rollout a step, of two micro-batches
    ours = [*PPO_SMALL, *words, *(f"trainer.args.{setting}" for setting in settings), "rewards.spy.fn=./mine.py:spy"]
    done = rlhf("train", *TWO, *ours, "critic.learning_rate=0.01", "run.name=two", cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert read_json(folder.provenance)["world_size"] == 2
    for name in ("critic", "values"):
        seen = [[(workplace / f"rank{rank}-step{step}-{name}").read_text() for rank in (0, 1)] for step in (0, 1, 2)]
        assert [len(set(of_ranks)) for of_ranks in seen] == [1, 1, 1], name
        assert len({of_ranks[0] for of_ranks in seen}) == 3, name
    events = read_metrics(folder.metrics)
    for metric in ("ppo/explained_variance", "ppo/value_loss", "critic/grad_norm", "critic/learning_rate"):
        assert len(series(events, metric)[1]) == 3, metric
    auto = AutoPeftModelForTokenClassification if words else AutoModelForTokenClassification
    critic = auto.from_pretrained(folder.critic, num_labels=1)
    head = critic.score.modules_to_save["default"] if words else critic.score
    assert head.weight.any()


def test_two_processes_evaluate_each_held_out_prompt_once(workplace: Path, folder: RunFolder, train) -> None:
    """13 prompts: the last batch is filled up with rows that are there already, and they must not count twice."""
    words = ["data.eval.fraction=0.2", "trainer.args.eval_strategy=steps", "trainer.args.eval_on_start=true"]
    words += ["trainer.args.eval_steps=3", "trainer.args.num_generations_eval=2"]
    train(*words)  # builds the model, which two processes at once may get wrong
    done = rlhf("train", *TWO, "run.name=two", *words, cwd=workplace)
    assert done.returncode == 0, done.stderr
    alone, both = (
        read_json(path / "eval" / "training" / "step-0.json") for path in (folder.path.with_name("one"), folder.path)
    )
    assert both["rows"] == alone["rows"] == 13
    assert both["parts"]["greedy"] == alone["parts"]["greedy"]
    lines = (folder.path / "eval" / "training" / "step-3.completions.jsonl").read_text().splitlines()
    asked = [(one["prompt"], one["part"], one["sample"]) for one in map(json.loads, lines)]
    assert len(set(asked)) == len(asked) == 13 * 3
    (event,) = [one for one in read_metrics(folder.metrics) if one["step"] == 3 and "eval_greedy/total" in one]
    assert (
        event["eval_greedy/total"]
        == read_json(folder.path / "eval" / "training" / "step-3.json")["parts"]["greedy"]["total"]["mean"]
    )
