"""FSDP 2 and DeepSpeed's ZeRO-2 and ZeRO-3 train what DDP does, to four digits, and continue where they were killed.

Two CPU processes each. FSDP 2 is real (tests/launch/sharded_runs.py); ZeRO runs where DeepSpeed is installed:
`make test-strategies`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import FINISHED, read_status
from tests.launch.sharded_runs import STEPS, TRAINERS, again, logged, prepare_place, run_under
from tests.support.as_many_processes import largest_difference

pytestmark = [pytest.mark.slow, pytest.mark.strategies]
FOUR_DIGITS = 1e-4
BECOMES = {"fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}
HOLDS = {"ddp": 1.0, "zero2": 1.0, "fsdp2": 0.5, "zero3": 0.5}
"""The share of the trained weights that one of two ranks has."""
LOADED_BY = {"lora": AutoPeftModelForCausalLM, "reward": AutoModelForSequenceClassification}
Runs = dict[str, RunFolder]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Callable[..., Runs]:
    """Strategy and more words -> trainer -> its run; made when it is first asked for."""
    made: dict[tuple[str, ...], Runs] = {}

    def of(*words: str) -> Runs:
        if words not in made:
            place = tmp_path_factory.mktemp("place")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(place)
                patch.setenv("RLHF_CACHE", str(model_cache))
                patch.setenv("OMP_NUM_THREADS", "1")
                prepare_place(place)
                made[words] = run_under(*words)
        return made[words]

    return of


@pytest.fixture(scope="module", params=list(BECOMES))
def strategy(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: make test-strategies has it in an environment of its own")
    return str(request.param)


@pytest.fixture(params=TRAINERS)
def both(request: pytest.FixtureRequest, strategy: str, run: Callable[..., Runs]) -> tuple[RunFolder, RunFolder]:
    return run("ddp")[request.param], run(strategy)[request.param]


def loaded(folder: RunFolder, part: str) -> dict[str, torch.Tensor]:
    """Return the weights that loading `part` alone gives, with tied ones twice."""
    auto = LOADED_BY.get(folder.path.name.split("-")[0], AutoModelForCausalLM)
    if part.endswith("critic"):
        auto = AutoModelForTokenClassification
    state: dict[str, torch.Tensor] = auto.from_pretrained(folder.path / part).state_dict()
    return state


def moved(folder: RunFolder, part: str) -> float:
    """How far the last three of the four steps moved the weight that they moved most."""
    first = "checkpoints/checkpoint-1/critic" if part == "critic" else "checkpoints/checkpoint-1"
    return largest_difference(loaded(folder, first), loaded(folder, part))


def test_it_is_what_it_says(both, strategy: str) -> None:
    """Not DDP under another name: in accelerate's words, and by what a rank has of the weights."""
    plain, sharded = both
    facts = read_json(sharded.provenance)
    assert facts["distributed_type"] == BECOMES[strategy]
    assert facts["num_parameters"] == read_json(plain.provenance)["num_parameters"]
    assert read_json(plain.path / "held.json")["share"] == HOLDS["ddp"]
    assert read_json(sharded.path / "held.json")["share"] == pytest.approx(HOLDS[strategy], abs=0.1)


def test_every_step_logs_the_same(both) -> None:
    """Loss, the gradient's norm before it is clipped, learning rate, reward, KL, and the critic's, at every step."""
    plain, sharded = (list(logged(folder)) for folder in both)
    assert [event["step"] for event in plain] == list(range(1, STEPS + 1))
    assert len(plain) == len(sharded)
    for one, other in zip(plain, sharded, strict=True):
        assert other == pytest.approx(one, rel=FOUR_DIGITS, abs=1e-6)
    assert all(event["grad_norm"] > 0.05 for event in plain)  # each of them was clipped


def test_the_same_weights_after_the_first_step_and_the_last(both) -> None:
    """By what was learned: the difference to DDP is less than a ten-thousandth of what training moved."""
    plain, sharded = both
    parts = ["model", *(["critic"] if (plain.path / "critic").is_dir() else [])]
    for part in parts:
        learned = moved(plain, part)
        assert learned > 1e-4
        assert largest_difference(loaded(plain, part), loaded(sharded, part)) < FOUR_DIGITS * learned, part
    first = "checkpoints/checkpoint-1"
    assert largest_difference(loaded(plain, first), loaded(sharded, first)) < FOUR_DIGITS * moved(plain, "model")


def test_a_run_killed_after_its_first_checkpoint_ends_as_it_would_have(both) -> None:
    """Bit for bit, in the middle of a rollout where there are any: weights, critic, and what every step logged."""
    _, sharded = both
    folder = again(sharded)
    assert read_status(folder).state == FINISHED
    assert [problem_with(path) for path in sorted(folder.checkpoints.iterdir())] == [None] * STEPS
    assert list(logged(folder)) == list(logged(sharded))
    for file in (*sharded.path.glob("model/*.safetensors"), *sharded.path.glob("critic/*.safetensors")):
        assert (folder.path / file.relative_to(sharded.path)).read_bytes() == file.read_bytes(), file


def test_control_another_run_does_not_agree(run: Callable[..., Runs]) -> None:
    """The comparison detects a learning rate that is 1 % higher."""
    plain, other = run("ddp"), run("ddp", "trainer.args.learning_rate=0.00101")
    for name in TRAINERS:
        learned = moved(plain[name], "model")
        assert largest_difference(loaded(plain[name], "model"), loaded(other[name], "model")) > FOUR_DIGITS * learned
