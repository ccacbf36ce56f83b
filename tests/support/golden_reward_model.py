"""A reward model whose score is known: it reads the last letter of a text, and each letter stands for a number.

A transformer without attention and feed-forward, so that the score is that of the last token alone.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tests.support.random_reward_model import HIDDEN, small_classifier


def save_golden_reward_model(folder: Path, scores: dict[str, float]) -> None:
    """A sequence classifier that scores a text by its last letter, a key of `scores`; every other letter by 0."""
    model, tokenizer = small_classifier(rms_norm_eps=1e-12)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        # The last norm makes every embedding of length sqrt(HIDDEN): letter n points along axis n, the others along 0.
        embeddings = model.model.embed_tokens.weight
        embeddings.zero_()
        embeddings[:, 0] = 1.0
        model.score.weight.zero_()
        for axis, (letter, score) in enumerate(scores.items(), 1):
            (token,) = tokenizer.encode(letter)
            embeddings[token, 0], embeddings[token, axis] = 0.0, 1.0
            model.score.weight[0, axis] = score / HIDDEN**0.5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
