"""The library as a whole: every conf/reward file, pickling, and what importing it costs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.rewards.stack.reward_functions import resolve

ELSEWHERE = {"server", "judge", "judge_ranking", "code_runs", "code_passes_tests"}
"""Rewards that talk to servers or run code are not called here."""
FILES = sorted((Path(__file__).parents[2] / "conf" / "reward").glob("*.yaml"))

NEED_MATH_VERIFY = {"trl_accuracy", "trl_cosine_length"}

BATCH: dict[str, Any] = {
    "prompts": [[{"role": "user", "content": "How much is 3 + 4?"}]] * 2,
    "completions": [[{"role": "assistant", "content": text}] for text in ("7", "<think>It is easy</think>It is 8")],
    "completion_ids": [[5, 2], list(range(30))],
    **dict.fromkeys(("trainer_state", "log_metric", "log_extra")),
    **{"answer": ["#### 7", "7"], "a": [3, 3], "b": [4, 4], "speaker_a": ["A"] * 2, "speaker_b": ["B"] * 2},
    "entry": [None, None],
}


def load(path: Path) -> dict[str, Any]:
    entry = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(entry, dict)
    return entry


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scores_a_batch_and_pickles(path: Path) -> None:
    entry = load(path)
    reward = resolve(entry["fn"], entry["args"], where=path.stem)
    copy = pickle.loads(pickle.dumps(reward))
    if path.stem in NEED_MATH_VERIFY | ELSEWHERE:
        return  # the first are TRL's business, and the package is an extra
    scores = reward(**BATCH)
    assert len(scores) == 2
    assert all(score is None or isinstance(score, float) for score in scores)
    assert copy(**BATCH) == scores


def test_resolving_them_imports_nothing_heavy() -> None:
    entries = [load(path) for path in FILES if "rlhf_cli" in load(path)["fn"]]
    assert len(entries) > 10
    heavy = ["torch", "transformers", "trl", "datasets", "accelerate", "numpy"]
    code = f"""
import sys
from rlhf_cli.rewards.stack.reward_functions import resolve
for entry in {entries}:
    resolve(entry["fn"], entry["args"], where="rewards.x")
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
