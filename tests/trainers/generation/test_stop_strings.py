"""A completion that ends at a stop string has finished, for every trainer, truncation policy and way to generate.

The model ends nothing by itself: its ending and padding tokens are never sampled (`suppress_tokens`). What is expected
of a row is read off its decoded text: up to the first vowel, or cut at the limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from tests.support.small_runs import PPO_SMALL

pytestmark = pytest.mark.whole

LIMIT = 6
STOPS = list("aeiouAEIOU0123456789 =+-")
WITH_STOPS = [
    f"trainer.args.generation_kwargs={{stop_strings: {json.dumps(STOPS)}, suppress_tokens: [0, 1]}}",
    *(f"trainer.args.max_completion_length={LIMIT}", "trainer.args.max_steps=1", "guards.no_signal=off"),
    *("trainer.args.per_device_train_batch_size=32", "trainer.args.temperature=3.0"),
]
"""Some twenty of 256 bytes end a row, so that within six tokens about half of the rows end."""


def is_right(ids: list[int], text: str) -> bool:
    """Whether a row ends behind its first stop string, or has none and is as long as the limit."""
    if any(stop in text for stop in STOPS):
        return text[-1] in STOPS and not any(stop in text[:-1] for stop in STOPS) and len(ids) <= LIMIT
    return len(ids) == LIMIT


@pytest.mark.parametrize("way", ["auto", "plain"])
@pytest.mark.parametrize("words", [[], ["trainer=rloo"], PPO_SMALL], ids=["grpo", "rloo", "ppo"])
def test_every_trainer(
    train: Callable[..., Any], before_training: Callable[..., None], words: list[str], way: str
) -> None:
    seen: list[tuple[list[int], str]] = []
    masks: list[int] = []

    def watch(trainer: Any) -> None:
        scored, find = trainer._generate_and_score_completions, trainer._find_endings

        def found(inputs: Any, completions: list[Any], completion_ids: list[list[int]]) -> Any:
            seen.extend((list(ids), trainer._tokenizer.decode(ids)) for ids in completion_ids)
            return find(inputs, completions, completion_ids)

        def generated(inputs: Any) -> Any:
            output = scored(inputs)
            masks.extend(output["completion_mask"].sum(dim=1).tolist())
            return output

        trainer._find_endings, trainer._generate_and_score_completions = found, generated

    before_training(watch)
    code, run = train(*words, *WITH_STOPS, f"trainer.generation={way}", "truncation=eos_penalty")
    assert code == 0
    assert all(is_right(*row) for row in seen), seen
    assert masks == [len(ids) for ids, _ in seen]  # nothing behind the stop string is trained on
    has_ended = torch.tensor([any(stop in text for stop in STOPS) for _, text in seen])
    lengths = torch.tensor([float(len(ids)) for ids, _ in seen])
    assert 0 < has_ended.sum() < len(seen)
    logged = next(line for line in read_metrics(run.metrics) if "completions/clipped_ratio" in line)
    cut = (~has_ended).float().mean().item()
    assert logged["completions/clipped_ratio"] == pytest.approx(cut)
    assert logged["rewards/truncation/fraction"] == pytest.approx(cut)
    assert logged["completions/mean_terminated_length"] == pytest.approx(lengths[has_ended].mean().item())


def test_an_evaluation_and_generated_rows_stop_as_in_training(train: Callable[..., Any], workplace: Path) -> None:
    code, run = train(*WITH_STOPS, "data.eval={path: null, fraction: 0.2}", "trainer.args.eval_strategy=steps")
    assert code == 0
    assert main(["eval", str(run.path), "--samples", "4"]) == 0
    tables = [*run.path.glob("eval/**/*.completions.jsonl")]
    assert len(tables) >= 2
    for table in tables:
        rows = [json.loads(line) for line in table.read_text().splitlines()]
        assert rows
        for row in rows:
            text = row["completion"]
            assert row["is_truncated"] == (not any(stop in text for stop in STOPS)), row
            assert not any(stop in text[:-1] for stop in STOPS), row
