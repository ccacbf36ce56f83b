"""What evaluations write and print, key for key and cell for cell, as the files of `as_written/` have it.

They were made by the code before its results were dataclasses; they change only where a format is to change.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rlhf_cli.cli import main
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.evaluation import generation
from rlhf_cli.evaluation.generation import Completion
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.assemble.stack_building import reward_stack
from rlhf_cli.trainers.assemble.trainer import TrainingEvaluation
from rlhf_cli.trainers.policy_answers import PolicyAnswer, PolicyAnswers
from tests.support.golden_reward_model import save_golden_reward_model
from tests.support.tolerances import MODEL

_CLOCKS = {"time": 0.0, "pairs_per_second": 0.0}
CORRECT = {"fn": "rlhf_cli.rewards.toy:sums_correct", "weight": 2.0}
SHORT = {
    "fn": "rlhf_cli.rewards.length:length_ramp",
    "args": {"full": 1, "zero": 11, "unit": "characters"},
    "gate": {"by": "correct", "at_least": 1, "otherwise": "exclude"},
}
SUMS = [{"prompt": f"{a}+1=", "a": a, "b": 1, "answer": str(a + 1)} for a in (1, 2, 3)]
PAIRS = [
    {"prompt": "q:", "chosen": "ax", "rejected": "y", "subset": "hep-js"},
    {"prompt": "q:", "chosen": "x", "rejected": "bby", "subset": "odd"},
    {"prompt": "q:", "chosen": "y", "rejected": "x", "subset": "odd"},
    {"prompt": "q:", "chosen": "x", "rejected": "ccz", "subset": "odd"},
]


class Says:
    """A policy that gives known answers: greedily the first, sampled one after the other; its folder decides which."""

    device = torch.device("cpu")

    def __init__(self, path: Path, **_: Any) -> None:
        self.answers = ("2", "3", "it is 2.", "4") if "one" in path.parts else ("3", "2")

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))

    def complete(self, prompts: list[Any], settings: Any, *, greedy: bool, **_: Any) -> list[Completion]:
        texts = [self.answers[0 if greedy else row % len(self.answers)] for row in range(len(prompts))]
        return [Completion(text, list(map(ord, text)), is_truncated=len(text) > 4) for text in texts]


def _config(**more: Any) -> dict[str, Any]:
    return {"seed": 0, "model": {"path": "x"}, **{name: {} for name in ("launch", "track", "run")}, **more}


def _rows(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file.name


def _run(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "status.json").write_text(json.dumps({"state": "finished", "updated_at": 1.0, "step": 3}))


def _policy_run(folder: Path, rows: str) -> None:
    data = {"path": rows, "eval": {"path": rows}}
    trainer = {"name": "grpo", "trl": "GRPOTrainer"}
    _run(folder, _config(trainer=trainer, data=data, rewards={"correct": CORRECT, "short": SHORT}))
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))


def _printed(*words: str) -> str:
    screen = io.StringIO()
    with redirect_stdout(screen):
        assert main([*words]) == 0
    return screen.getvalue()


def _without_place(text: str, place: Path) -> str:
    return text.replace(str(place), "PLACE")


def _written(file: Path, place: Path) -> str:
    content = json.loads(_without_place(file.read_text(), place))
    return json.dumps({name: _CLOCKS.get(name, value) for name, value in content.items()}, indent=1) + "\n"


def reward_model(place: Path, rows: list[dict[str, Any]], *words: str) -> dict[str, str]:
    """Return the JSON and the screen of `rlhf eval` of a reward model that scores x 2, y 0.5 and z -1."""
    folder = place / "runs" / "rm" / "one"
    save_golden_reward_model(folder / "model", {"x": 2.0, "y": 0.5, "z": -1.0})
    data = {"world": "toy_preferences", "eval": {"path": _rows(place / "pairs.jsonl", rows)}}
    _run(folder, _config(trainer={"name": "reward", "trl": "RewardTrainer"}, data=data))
    screen = _printed("eval", "run:rm", *words)
    (file,) = (folder / "eval").glob("*.json")
    return {"json": _written(file, place), "txt": _without_place(screen, place)}


def policy(place: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, str]:
    """Return the JSON and the screen of `rlhf eval` of a policy that answers three sums."""
    monkeypatch.setattr(generation, "PolicyModel", Says)
    sums = _rows(place / "sums.jsonl", SUMS)
    for name in ("one", "two"):
        _policy_run(place / "runs" / "policy" / name, sums)
    screen = _printed("eval", "runs/policy/one", *words)
    (file,) = (place / "runs" / "policy" / "one" / "eval").glob("*.json")
    return {"json": _written(file, place), "txt": _without_place(screen, place)}


def during_training(place: Path) -> dict[str, str]:
    """Return the JSON of an evaluation at step 7 of a training, and the metrics that it logs."""
    config = _config(trainer={"name": "grpo", "trl": "GRPOTrainer"}, data={"world": "toy_sums"})
    stack = reward_stack(
        Experiment.model_validate({**config, "rewards": {"correct": CORRECT, "short": SHORT}}), device="cpu"
    )

    def answer(row: dict[str, Any], text: str, right: float) -> PolicyAnswer:
        kept = [right, 0.75 if right else None]
        return PolicyAnswer(row, text, list(map(ord, text)), len(text) > 4, kept, [None, None])

    greedy = [answer(row, "2", float(row["answer"] == "2")) for row in SUMS]
    sampled = [answer(row, text, float(row["answer"] in text)) for row in SUMS for text in ("2", "it is 3.")]
    folder = RunFolder(place / "runs" / "policy" / "one")
    sum_up = TrainingEvaluation(folder, stack.components, "the 25% held out", writes=True)
    metrics = {}
    for step in (5, 7):
        metrics = sum_up(
            {"greedy": PolicyAnswers(1, greedy[: step - 4]), "sampled": PolicyAnswers(2, sampled)}, [2.0, 1.0], step
        )
    stack.close()
    written = folder.path / "eval" / "training"
    return {
        "json": _written(written / "step-7.json", place),
        "metrics.json": json.dumps(metrics, indent=1) + "\n",
        "completions.jsonl": (written / "step-7.completions.jsonl").read_text(),
    }


def scores(place: Path) -> dict[str, str]:
    """Return the JSON and the screen of `rlhf score` on three completions, one of them behind a gate."""
    rows = [{**row, "completion": text} for row, text in zip(SUMS, ("2", "it is 4", "4"), strict=True)]
    file = _rows(place / "completions.jsonl", rows)
    gate = "rewards.brevity.gate={by: correct, at_least: 1, otherwise: exclude}"
    words = ["score", "+exp=quickstart", gate, "--completions", file]
    return {"json": _printed(*words, "--json"), "txt": _printed(*words)}


SMALL: dict[str, Callable[[Path, pytest.MonkeyPatch], dict[str, str]]] = {
    "pairs": lambda place, _: reward_model(place, PAIRS, "--slice", "chosen"),
    "pairs_plain": lambda place, _: reward_model(
        place, [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in PAIRS], "--eos"
    ),
    "policy": lambda place, monkeypatch: policy(place, monkeypatch, "--samples", "2"),
    "policy_greedy": lambda place, monkeypatch: policy(place, monkeypatch, "--samples", "0"),
    "during_training": lambda place, _: during_training(place),
    "scores": lambda place, _: scores(place),
}
"""Name of an evaluation -> what makes it, below an empty working directory: kind of text -> the text."""


AS_WRITTEN = Path(__file__).parent / "as_written"


def shape(value: Any) -> Any:
    """Everything but numbers that are no whole ones: keys in their order, texts, counts, null."""
    if isinstance(value, dict):
        return [(key, shape(one)) for key, one in value.items()]
    if isinstance(value, list):
        return [shape(one) for one in value]
    return "a number" if isinstance(value, float) else value


def numbers(value: Any) -> list[float]:
    """The numbers that are no whole ones, in their order."""
    if isinstance(value, dict | list):
        return [one for inner in (value.values() if isinstance(value, dict) else value) for one in numbers(inner)]
    return [value] if isinstance(value, float) else []


def test_every_file_is_compared() -> None:
    assert {file.name.partition(".")[0] for file in AS_WRITTEN.iterdir()} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_as_before(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for suffix, text in SMALL[name](place, monkeypatch).items():
        before = (AS_WRITTEN / f"{name}.{suffix}").read_text()
        if suffix.endswith("json"):
            ours, theirs = json.loads(text), json.loads(before)
            assert shape(ours) == shape(theirs)
            assert numbers(ours) == pytest.approx(numbers(theirs), **MODEL)
        else:
            assert text == before
