"""Where a speed path is off, the start of a run, log.txt and `rlhf why` say so once each, with the reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.models.live_generation import GenerationMode
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.trainers.rollout_mixin import RolloutMixin
from tests.support.random_reward_model import save_random_reward_model

pytestmark = pytest.mark.whole


def told(text: str) -> list[str]:
    """The notes about paths that are off, without line breaks and endings of a screen."""
    words = " ".join(text.replace("│", " ").split())
    parts = words.split(" is off: ")
    return [part.rpartition("note: ")[2].rpartition("slower: ")[2] for part in parts[:-1]]


def heard(train, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], list[str], list[str]]:
    """What the screen, log.txt and `why` name, in one run."""
    code, folder = train(*words)
    assert code == 0
    screen = capsys.readouterr().out
    assert main(["why", str(folder.path)]) == 0
    why = capsys.readouterr().out
    named = list(read_json(folder.provenance)["slow_paths"])  # type: ignore[call-overload]
    assert named == told(why)
    return told(screen), told(folder.log.read_text()), told(why)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], []),  # control
        (["trainer.generation=plain"], ["live generation"]),
        (["trainer.args.generation_kwargs.num_beams=2", "trainer.args.temperature=1.0"], ["live generation"]),
        (["trainer.passes=trimmed"], ["packing of rows"]),
        (["+model.lora.r=2", "model.lora.lora_dropout=0.5"], ["packing of rows"]),
        (["trainer=rloo", "trainer.passes=plain"], ["packing of rows", "live generation"]),
    ],
    ids=str,
)
def test_what_is_off_from_the_start(
    train, capsys: pytest.CaptureFixture[str], words: list[str], names: list[str]
) -> None:
    assert heard(train, capsys, *words) == (names, names, names)


def test_what_the_first_step_shows(
    train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    """An unknown score processor, and a reward model whose trial fails."""
    monkeypatch.setattr("rlhf_cli.models.live_generation.why_not_call", lambda *_: "a processor may look at other rows")
    monkeypatch.setattr("rlhf_cli.models.reward_model_scorer.RewardModelScorer._packed", lambda *_: [0.0, 0.0, 0.0])
    save_random_reward_model(Path("rm"))
    found = heard(train, capsys, "rewards.judged.model=./rm")
    names = {"live generation", "packing of texts for rewards.judged"}
    assert [set(one) for one in found] == [names] * 3
    assert [len(one) for one in found] == [2] * 3


@pytest.mark.parametrize(("vllm", "batching"), [(True, False), (False, True), (False, False)])
def test_where_an_engine_generates_it_is_no_slow_path_that_the_model_does_not(vllm: bool, batching: bool) -> None:
    trainer: Any = object.__new__(RolloutMixin)
    vars(trainer).update(use_vllm=vllm, use_transformers_continuous_batching=batching)
    vars(trainer).update(_generating=SimpleNamespace(mode=GenerationMode("plain", "why")))
    trainer.train_dataset = SimpleNamespace(column_names=[])
    assert trainer.slow_paths() == ({} if vllm or batching else {"live generation": "why"})
    if vllm or batching:
        trainer._generating.mode = None  # before the first completions
        engine = "vLLM" if vllm else "transformers' continuous batching"
        assert trainer.generation_mode == GenerationMode("plain", f"{engine} generates")
