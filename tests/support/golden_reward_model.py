"""A reward model whose score is known: it reads the last letter of a text, and each letter stands for a number.

A transformer without attention and feed-forward, so that the score is that of the last token alone.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from rlhf_cli.models.byte_tokenizer import byte_tokenizer

HIDDEN = 16


def save_golden_reward_model(folder: Path, scores: dict[str, float]) -> None:
    """A sequence classifier that scores a text by its last letter, a key of `scores`; every other letter by 0."""
    tokenizer = byte_tokenizer(128)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
        max_position_embeddings=128,
        rms_norm_eps=1e-12,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = LlamaForSequenceClassification(config)
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
