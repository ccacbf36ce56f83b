"""Penalise repetition by the share of n-grams that occurred before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import Ge

from rlhf_cli.rewards.completion_text import Completion, text_of


def repetition(
    completions: Sequence[Completion],
    *,
    ngram_size: Annotated[int, Ge(1)] = 3,
    unit: Literal["words", "characters"] = "words",
    **kwargs: object,
) -> list[float]:
    """Score minus the share of the completion's n-grams that are repeats, in (-1.0, 0.0]; thinking counts.

        -(1 - U / T)    T = number of n-grams, U = number of different ones

    0.0 if no n-gram repeats or if the text is too short to have one.

    The scalar penalty in the code of "Demystifying Long Chain-of-Thought Reasoning in LLMs" (Yeo et al. 2025,
    arXiv:2502.03373) with maximum -1: lower-cased words, split at white space. The paper's own experiments use a dense
    variant. TRL's `get_repetition_penalty_reward` (`trl_repetition`) is the same share over token ids.

    Args:
        ngram_size: words or characters in an n-gram, 1 or more. The smaller, the more ordinary prose is penalised.
        unit: `words`, or `characters` for writing without spaces (Chinese, Japanese, Thai); white space is dropped.
    """

    def score(text: str) -> float:
        words = text.lower().split()
        items: Sequence[str] = words if unit == "words" else "".join(words)
        ngrams = [tuple(items[start : start + ngram_size]) for start in range(len(items) - ngram_size + 1)]
        return len(set(ngrams)) / len(ngrams) - 1.0 if ngrams else 0.0

    return [score(text_of(completion, reasoning=True)) for completion in completions]
