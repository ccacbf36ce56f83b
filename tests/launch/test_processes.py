"""Two CPU processes through accelerate's launcher: as many as asked, all in step, the failing rank's own words, and
real signals to one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from peft import AutoPeftModelForTokenClassification
from transformers import AutoModelForTokenClassification

from rlhf_cli.cli import main
from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.heartbeat import heartbeats
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import PPO_SMALL, SMALL
from tests.support.waiting import until

pytestmark = pytest.mark.processes

TWO = ["launch.processes=2", "trainer.args.per_device_train_batch_size=4"]
FOR_DDP = ["+model.lora.r=4", "critic.share=lora"]

SPY = """
import gc, hashlib, os, pathlib

from rlhf_cli.trainers.ppo.critic import TrainedCritic


def spy(completions, trainer_state, **kwargs):
    gc.unfreeze()  # training hides all objects from the collector that were there when it began
    (critic,) = (one for one in gc.get_objects() if issubclass(type(one), TrainedCritic))
    for name, parameters in (("critic", critic.parameters()), ("values", critic.model.parameters())):
        digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in parameters)).hexdigest()
        file = pathlib.Path(f"rank{os.environ.get('RANK', '0')}-step{trainer_state.global_step}-{name}")
        assert not file.exists() or file.read_text() == digest
        file.write_text(digest)
    return [float(len(completion)) for completion in completions]
"""

BEGINNING = [*SMALL, *PPO_SMALL, "rewards.spy.fn=./mine.py:spy", "critic.learning_rate=0.01"]
HELD_OUT = [
    *("data.eval.fraction=0.2", "trainer.args.num_generations_eval=2"),
    *("trainer.args.eval_strategy=steps", "trainer.args.eval_on_start=true", "trainer.args.eval_steps=1"),
]
"""13 prompts. Rewards, and with them the spy, see every evaluation: after each step, not only before a rollout."""
WINDOWS = [
    *("trainer.args.steps_per_generation=4", "trainer.args.gradient_accumulation_steps=2"),
    *("trainer.args.save_steps=1", "trainer.args.save_total_limit=null"),
]
"""Two steps a rollout: the first checkpoint is in the middle of one."""


def rlhf(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlhf_cli", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@dataclass(frozen=True)
class Both:
    """The run of two processes, which left files in `place`, and one of a single process that began as it did."""

    place: Path
    folder: RunFolder
    alone: RunFolder
    words: list[str]


@pytest.fixture(scope="module", params=[[], pytest.param(FOR_DDP, marks=pytest.mark.slow)], ids=["separate", "shared"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Both:
    """The run that most tests here look at: PPO, evaluated at every step, four processes' imports only once."""
    place = tmp_path_factory.mktemp("both")
    (place / "mine.py").write_text(SPY)
    words = [*BEGINNING, *HELD_OUT, "rewards.spy.trial=false", *request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLHF_CACHE", str(model_cache))
        # The spy of this one is in a folder apart.
        (place / "aside").mkdir()
        patch.chdir(place / "aside")
        alone = ["run.name=one", f"run.root={place / 'runs'}", "rewards.spy.fn=../mine.py:spy"]
        assert main(["train", *words, *alone, "trainer.args.max_steps=1"]) == 0
        done = rlhf("train", *words, *TWO, *WINDOWS, "run.name=two", cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("run folder: runs/quickstart/two")
    two, one = (RunFolder(place / "runs" / "quickstart" / name) for name in ("two", "one"))
    return Both(place, two, one, request.param)


def test_two_processes_are_seen_and_written_down(both: Both) -> None:
    folder = both.folder
    assert read_json(folder.provenance)["world_size"] == 2
    assert read_json(folder.provenance)["distributed_type"] == "MULTI_CPU"
    assert read_status(folder).state == "finished"
    trained = [event["step"] for event in read_metrics(folder.metrics) if "loss" in event or "train_loss" in event]
    assert trained == [1, 2, 3, 3]


def test_the_critic_of_two_processes_is_one(both: Both) -> None:
    """Every rank looks at its own before and after every step: equal among ranks, another one after every step."""
    for name in ("critic", "values"):
        steps = [[(both.place / f"rank{rank}-step{step}-{name}").read_text() for rank in (0, 1)] for step in range(4)]
        assert [len(set(of_ranks)) for of_ranks in steps] == [1] * 4, name
        assert len({of_ranks[0] for of_ranks in steps}) == 4, name
    events = read_metrics(both.folder.metrics)
    for metric in ("ppo/explained_variance", "ppo/value_loss", "critic/grad_norm", "critic/learning_rate"):
        assert len(series(events, metric)[1]) == (2 if metric == "ppo/explained_variance" else 3), metric
    auto = AutoPeftModelForTokenClassification if both.words else AutoModelForTokenClassification
    critic = auto.from_pretrained(both.folder.critic, num_labels=1)
    head = critic.score.modules_to_save["default"] if both.words else critic.score
    assert head.weight.any()


def test_two_processes_evaluate_each_held_out_prompt_once(both: Both) -> None:
    """13 prompts: the last batch is filled up with rows that are there already, and they must not count twice."""
    alone, together = (read_json(run.path / "eval" / "training" / "step-0.json") for run in (both.alone, both.folder))
    assert together["rows"] == alone["rows"] == 13
    assert together["parts"]["greedy"] == alone["parts"]["greedy"]
    evaluations = both.folder.path / "eval" / "training"
    lines = (evaluations / "step-3.completions.jsonl").read_text().splitlines()
    asked = [(one["prompt"], one["part"], one["sample"]) for one in map(json.loads, lines)]
    assert len(set(asked)) == len(asked) == 13 * 3
    (event,) = [one for one in read_metrics(both.folder.metrics) if one["step"] == 3 and "eval_greedy/total" in one]
    assert event["eval_greedy/total"] == read_json(evaluations / "step-3.json")["parts"]["greedy"]["total"]["mean"]


@pytest.mark.fault(7)
def test_two_processes_go_on_in_the_middle_of_their_rollouts(both: Both, workplace: Path) -> None:
    """Each rank has rollouts and random numbers of its own in the one checkpoint; the model is equal bit for bit."""
    names = {path.name for path in (both.folder.checkpoints / "checkpoint-1").iterdir()}
    assert {"rollout-rank0.pt", "rollout-rank1.pt", "rng_state_0.pth", "rng_state_1.pth", "manifest.json"} <= names
    assert [problem_with(path) for path in both.folder.checkpoints.iterdir()] == [None] * 3
    folder = RunFolder(workplace / "cut")
    shutil.copytree(both.folder.path, folder.path, ignore=shutil.ignore_patterns("model", "critic", "checkpoint-[23]"))
    shutil.copytree(both.folder.checkpoints / "checkpoint-1", folder.checkpoints / "checkpoint-1", dirs_exist_ok=True)
    folder.status.write_text(json.dumps({**read_json(folder.status), "state": "failed"}))
    done = rlhf("resume", str(folder.path), cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("going on from checkpoint-1") == 1
    for place in ("model", "critic"):
        (never_stopped,) = (both.folder.path / place).glob("*.safetensors")
        assert (folder.path / place / never_stopped.name).read_bytes() == never_stopped.read_bytes(), place


# A guard that fires on one rank stops both at the same step, with one message.


OWN = """
import os
import torch
from trl import GRPOTrainer

class Faulty(GRPOTrainer):
    '''The second rank's loss is infinite in the second step, by a constant: its gradient is as good as the first's.'''

    def _compute_loss(self, model, inputs):
        is_bad = os.environ["RANK"] == "1" and self.state.global_step == 1
        return super()._compute_loss(model, inputs) + (torch.inf if is_bad else 0.0)
"""


@pytest.mark.fault(37)
def test_a_bad_loss_on_the_second_rank(workplace: Path) -> None:
    """Gradients are averaged over ranks and losses are not: by its own numbers the first rank would go on."""
    (workplace / "mine.py").write_text(OWN)
    words = [*TWO, "trainer.class=./mine.py:Faulty", "trainer.args.save_steps=1", "run.name=two"]
    ended = rlhf("train", *SMALL, *words, cwd=workplace)
    folder = RunFolder(workplace / "runs" / "quickstart" / "two")
    status = read_status(folder)
    assert (ended.returncode, status.state, status.step, status.last_checkpoint) == (1, "failed", 1, "checkpoint-1")
    assert ended.stderr.count("the loss is not finite: stopped before optimizer step 2") == 1
    assert "goes on from checkpoint-1, the last good checkpoint" in ended.stderr
    assert "Traceback" not in ended.stderr
    failures = [read_json(file) for file in sorted(folder.path.glob("failure-rank*.json"))]
    assert [failure["is_by_guard"] for failure in failures] == [True] * len(failures)
    assert failures
    batches = [json.loads(file.read_text()) for file in sorted((folder.path / "non_finite").iterdir())]
    assert [batch["micro_batches"][0]["loss"] == "inf" for batch in batches] == [False, True]  # each rank its own


LONG = ["trainer.args.max_steps=2000", "trainer.args.save_steps=1000", "run.name=long", "guards.no_signal=off"]
_LIMIT_S = 240.0


def listening(pid: int) -> set[str]:
    """The addresses at which a process, and all that it has started, wait for connections."""
    addresses = set[str]()
    with contextlib.suppress(psutil.NoSuchProcess):
        command = psutil.Process(pid)
        for process in (command, *command.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                sockets = process.net_connections(kind="tcp")
                addresses |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    return addresses


class Started:
    def __init__(self, place: Path, *words: str) -> None:
        command = [sys.executable, "-m", "rlhf_cli", "train", *SMALL, *LONG, *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=place, stdout=pipe, stderr=pipe, text=True)
        self.folder = RunFolder(place / "runs" / "quickstart" / "long")

    def until(self, condition: Callable[[], object]) -> None:
        until(lambda: self.process.poll() is not None or condition(), _LIMIT_S)
        assert self.process.poll() is None, self.process.communicate()[1]

    def ranks(self) -> list[int]:
        """The processes that train, by their rank; each has a child that watches it and has its command line."""
        wanted = {"rlhf_cli.launch.rank_process", str(self.folder.path)}
        processes = [one.info for one in psutil.process_iter(["pid", "ppid", "cmdline", "environ"])]
        ours = {one["pid"]: one for one in processes if wanted <= {*(one["cmdline"] or ())}}
        ranks = {pid: one["environ"]["RANK"] for pid, one in ours.items() if one["ppid"] not in ours}
        return sorted(ranks, key=lambda pid: int(ranks[pid]))

    def ends_saved(self) -> int:
        """Wait until the run has stopped on request; return the step that it saved."""
        said = self.process.communicate(timeout=_LIMIT_S)[1]
        assert self.process.returncode == 75, said
        status = read_status(self.folder)
        assert status.state == "preempted"
        (checkpoint,) = self.folder.checkpoints.iterdir()
        assert problem_with(checkpoint) is None
        assert f"saved step {status.step}; `rlhf resume runs/quickstart/long`" in " ".join(said.split())
        assert checkpoint.name == f"checkpoint-{status.step}"
        return status.step


@pytest.fixture
def started(workplace: Path):
    commands: list[Started] = []

    def start(*words: str) -> Started:
        commands.append(Started(workplace, *words))
        return commands[-1]

    yield start
    for command in commands:
        command.process.kill()
        command.process.wait()


@pytest.mark.fault(17, 18)
def test_one_rank_of_two_is_told_and_both_save(started) -> None:
    run = started(*TWO)
    run.until(lambda: run.folder.status.is_file() and read_status(run.folder).step >= 2)
    ranks = run.ranks()
    assert len(ranks) == 2
    assert listening(run.process.pid) == {"127.0.0.1"}
    os.kill(ranks[1], signal.SIGTERM)
    step = run.ends_saved()
    assert step >= 2
    assert (run.folder.checkpoints / f"checkpoint-{step}" / "rng_state_1.pth").is_file()
    assert run.ranks() == []


@pytest.mark.fault(19)
def test_a_long_evaluation_is_broken_off_on_both_ranks(started) -> None:
    """One of 2,000 batches, by far longer than the grace; the step before it is saved by no one else."""
    rows = ("data.args.num_rows=20000", "data.eval.fraction=0.8", "trainer.args.per_device_eval_batch_size=4")
    run = started(*TWO, *rows, "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=3", "launch.grace_s=15")
    run.until(lambda: any("evaluation" in beat.phase for beat in heartbeats(run.folder.path).values()))
    os.kill(run.ranks()[1], signal.SIGTERM)
    assert run.ends_saved() == 3
    assert "eval_" not in run.folder.metrics.read_text()
