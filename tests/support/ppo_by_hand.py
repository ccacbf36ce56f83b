"""PPO's numbers by arithmetic of our own: row by row, without padding, in float64, with loops and plain models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from rlhf_cli.runs.metrics_file import read_metrics
from tests.support.float64 import in_float64
from tests.support.tolerances import FLOAT32, assert_close

PAD, EOS = 0, 1
ENDINGS = [EOS, *range(2, 60)]
"""As if the model declared that many: about a fifth of all tokens ends a completion, so that rows are ragged."""

LIMIT = 6
GAMMA, LAMBDA = 0.9, 0.8

REWARDS = """
def first(completion_ids, **kwargs):
    return [ids[0] % 5 / 4 for ids in completion_ids]

def length(completion_ids, **kwargs):
    return [len(ids) / 3 for ids in completion_ids]

def odd_only(completion_ids, **kwargs):
    return [1.0 + len(ids) if ids[0] % 2 else None for ids in completion_ids]

def odd(completion_ids, **kwargs):
    return [float(ids[0] % 2) for ids in completion_ids]

def two(completion_ids, **kwargs):
    return [2.0] * len(completion_ids)

def each(completion_ids, **kwargs):
    return [[None if token % 3 == 0 else token % 7 - 3.0 for token in ids] for ids in completion_ids]
"""

DROP = ("~rewards.correct", "~rewards.format", "~rewards.brevity")
PLAIN = ("++rewards.first={fn: './mine.py:first'}", "++rewards.length={fn: './mine.py:length', weight: 0.5}")
DISCOUNTED = (f"trainer.args.gamma={GAMMA}", f"trainer.args.gae_lambda={LAMBDA}")


def total_of(completion: list[int]) -> float:
    """What PLAIN gives, by its definition."""
    return completion[0] % 5 / 4 + 0.5 * len(completion) / 3


@dataclass
class Row:
    """One row of a rollout without padding. `values` has one more than there are tokens."""

    prompt: list[int]
    completion: list[int]
    logps: list[float]
    ref_logps: list[float]
    values: list[float]

    @property
    def is_truncated(self) -> bool:
        return len(self.completion) == LIMIT and self.completion[-1] not in (*ENDINGS, PAD)

    @property
    def kl(self) -> list[float]:
        return [p - q for p, q in zip(self.logps, self.ref_logps, strict=True)]


@dataclass
class Rollouts:
    """What a run put into its rollouts, and the same rows without padding as they were then."""

    trainer: Any = None
    outputs: list[dict[str, Tensor]] = field(default_factory=list)
    rows: list[list[Row]] = field(default_factory=list)
    found: list[Any] = field(default_factory=list)
    settled: list[Any] = field(default_factory=list)
    folder: Any = None

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for event in read_metrics(self.folder.metrics) if "loss" in event]


def plain(model: Any, auto: Any) -> Any:
    """The same weights in a model that neither TRL nor we have touched, in float64."""
    with torch.random.fork_rng(devices=[]):
        copy = in_float64(auto.from_config(model.config))
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def logps_of(model: Any, prompt: list[int], completion: list[int], temperature: float = 1.0) -> Tensor:
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0] / temperature
    chosen = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=1)
    return chosen.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)


def values_of(critic: Any, prompt: list[int], completion: list[int]) -> Tensor:
    """One more than there are tokens: the last is of the state after them."""
    logits = critic(input_ids=torch.tensor([prompt + completion])).logits[0, :, 0]
    return logits[len(prompt) - 1 :]


def unpadded(batch: dict[str, Tensor]) -> Iterator[tuple[list[int], list[int]]]:
    columns = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    for prompt, prompt_mask, completion, mask in zip(*(batch[name] for name in columns), strict=True):
        yield prompt[prompt_mask.bool()].tolist(), completion[mask.bool()].tolist()


def rows_of(trainer: Any, output: dict[str, Tensor]) -> list[Row]:
    policy = plain(trainer.model, AutoModelForCausalLM)
    reference = policy if trainer.ref_model is None else plain(trainer.ref_model, AutoModelForCausalLM)
    critic = plain(trainer.critic.model, AutoModelForTokenClassification)
    rows = []
    with torch.no_grad():
        for prompt, completion in unpadded(output):
            if not completion:
                rows.append(Row(prompt, [], [], [], []))
                continue
            temperature = trainer.args.temperature
            logps = [logps_of(model, prompt, completion, temperature).tolist() for model in (policy, reference)]
            rows.append(Row(prompt, completion, *logps, values_of(critic, prompt, completion).tolist()))
    return rows


def gae_of(rewards: list[float], values: list[float], last: float, gamma: float, lam: float) -> list[float]:
    """By its definition as a sum: A_t = sum_l (gamma lambda)^l delta_{t+l}."""
    following = [*values[1:], last]
    deltas = [r + gamma * after - v for r, after, v in zip(rewards, following, values, strict=True)]
    return [
        sum((gamma * lam) ** l * delta for l, delta in enumerate(deltas[start:]))  # noqa: E741
        for start in range(len(deltas))
    ]


def whitened(rows: list[list[float]]) -> list[list[float]]:
    tokens = [value for row in rows for value in row]
    mean, deviation = statistics.fmean(tokens), math.sqrt(statistics.variance(tokens) + 1e-8)
    return [[(value - mean) / deviation for value in row] for row in rows]


def raw_advantages(
    rows: list[Row], totals: list[float], *, coef: float = 0.0, is_bootstrapped: bool = False
) -> list[list[float]]:
    found = []
    for row, total in zip(rows, totals, strict=True):
        rewards = [-coef * kl for kl in row.kl]
        if rewards:
            rewards[-1] += total
        goes_on = is_bootstrapped and row.is_truncated
        last = row.values[-1] if goes_on else 0.0
        found.append(gae_of(rewards, row.values[:-1], last, GAMMA, LAMBDA))
    return found


def assert_rows(found: Tensor, expected: list[list[float]], *, within: float = FLOAT32) -> None:
    """`found` (B, T) holds the rows of `expected`, and 0 behind them."""
    padded = torch.zeros(found.shape, dtype=torch.float64)
    for row, values in enumerate(expected):
        padded[row, : len(values)] = torch.tensor(values, dtype=torch.float64)
        assert not found[row, len(values) :].any()
    assert_close(found, padded, within=within)


def stir(module: Any, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
