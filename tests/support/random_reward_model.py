"""A reward model of a few thousand random weights, with the tiny tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerBase

from rlhf_cli.models.byte_tokenizer import byte_tokenizer

HIDDEN = 16


def small_classifier(**changes: Any) -> tuple[LlamaForSequenceClassification, PreTrainedTokenizerBase]:
    """Return a transformer of one layer with one score a text, and its tokenizer."""
    tokenizer = byte_tokenizer(128)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    kind = {"vocab_size": len(tokenizer), "num_labels": 1, "max_position_embeddings": 128}
    return LlamaForSequenceClassification(LlamaConfig(**kind, **sizes, **tokens, **changes)), tokenizer


def save_random_reward_model(folder: Path, *, seed: int = 0) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, tokenizer = small_classifier()
        # A fresh head is near zero; spread the scores so that a wrong row or a wrong padding shows.
        torch.nn.init.normal_(model.score.weight, std=1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
