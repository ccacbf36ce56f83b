"""Find or build the embedded tiny policy and its byte tokenizer.

The warm start is deliberately short: the model then adds small numbers sloppily, in several styles and often wrongly,
which leaves reinforcement learning something to improve.

The models of conf/model are shipped with their weights in `embedded/`, because a warm start amplifies rounding
differences between processors into another model. Other recipes are built on first use and cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_cli.models.byte_tokenizer import byte_tokenizer

Recipe = Mapping[str, Any]
"""The section `model.build`, all of it in the cache key: a tiny model's shape, and its warm start or None."""

Demonstration = dict[str, str]
"""A demonstration with `prompt` and `completion`, both texts."""

EMBEDDED = Path(__file__).with_name("embedded")
"""The folder with one subfolder per shipped model; scripts/embedded_models.py builds them."""
RECIPE_FILE = "recipe.json"
"""The file in such a subfolder with the model's `build`."""
_RECIPE_VERSION = 2  # part of the cache key: increase it when the same settings build other weights


def tiny_model_path(
    build: Recipe, demonstrations: Callable[[], list[Demonstration]], on_progress: Callable[[int, int], None]
) -> Path:
    """Return the folder of the model that `build` describes: a shipped one, or one built on first use.

    `on_progress(step, steps)` is called during the warm start. Safe to call from several processes at once: the first
    builds, the others wait.
    """
    for recipe in EMBEDDED.glob(f"*/{RECIPE_FILE}"):
        if json.loads(recipe.read_text(encoding="utf-8")) == build:
            return recipe.parent
    from rlhf_cli.models.cache import build_once  # not for a shipped model

    key = hashlib.sha256(json.dumps([_RECIPE_VERSION, build], sort_keys=True).encode()).hexdigest()[:12]
    return build_once(f"tiny-{key}", lambda folder: build_tiny_model(build, demonstrations, on_progress, folder))


def build_tiny_model(
    build: Recipe,
    demonstrations: Callable[[], list[Demonstration]],
    on_progress: Callable[[int, int], None],
    folder: Path,
) -> None:
    """Write the model that `build` describes and its tokenizer into `folder`; deterministic on one machine."""
    from rlhf_cli.models.cache import save_whole

    tokenizer = byte_tokenizer(build["context_tokens"])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=build["hidden_size"],
        intermediate_size=4 * build["hidden_size"],
        num_hidden_layers=build["num_layers"],
        num_attention_heads=build["num_heads"],
        max_position_embeddings=build["context_tokens"],
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]), contextlib.ExitStack() as afterwards:
        afterwards.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # the rounding of sums depends on the number of threads, and would change the model
        torch.manual_seed(build["seed"])
        model = LlamaForCausalLM(config)
        if settings := build["warm_start"]:
            steps = settings["steps"]
            rising = max(1, steps // 16)
            optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], weight_decay=0.0)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min((step + 1) / rising, 1) * (1 - step / steps)
            )
            input_ids, labels = _tensors(tokenizer, demonstrations())
            model.train()
            for step in range(steps):
                rows = torch.randint(len(input_ids), (settings["batch_size"],))
                width = int((input_ids[rows] != tokenizer.pad_token_id).sum(dim=1).max())
                batch, targets = input_ids[rows, :width], labels[rows, :width]
                loss = model(input_ids=batch, attention_mask=batch.ne(tokenizer.pad_token_id), labels=targets).loss
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                on_progress(step + 1, steps)
            model.eval()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    save_whole(model, folder)
    tokenizer.save_pretrained(folder)


def _tensors(
    tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return right-padded (input_ids, labels), both (rows, longest); labels are -100 on prompt and padding."""
    texts = [
        (tokenizer.encode(row["prompt"]), [*tokenizer.encode(row["completion"]), tokenizer.eos_token_id])
        for row in demonstrations
    ]
    ids = [torch.tensor([*prompt, *completion]) for prompt, completion in texts]
    learned = [torch.tensor([-100] * len(prompt) + completion) for prompt, completion in texts]
    padded = pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id)
    return padded, pad_sequence(learned, batch_first=True, padding_value=-100)
