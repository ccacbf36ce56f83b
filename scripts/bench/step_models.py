"""Models of random weights, prompts, and answers with lengths drawn in advance, for benchmarks of a step."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, PreTrainedTokenizerFast, set_seed

SHAPE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4}
PAD, EOS = 0, 1
MEAN, DEVIATION = 36, 0.9
"""Mean length of an answer, and the deviation of its logarithm."""


def make_policy(
    folder: Path,
    *,
    vocab: int,
    prompts: tuple[int, int],
    shape: dict[str, int] = SHAPE,
    dtype: torch.dtype | None = None,
) -> LlamaForCausalLM:
    """Write FOLDER/policy (a Llama of random weights) and prompts.jsonl: 256 prompts of `prompts` words each."""
    set_seed(0)
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": None, "tie_word_embeddings": False}
    policy = LlamaForCausalLM(LlamaConfig(vocab_size=vocab, **ids, **shape))
    (policy.to(dtype) if dtype else policy).save_pretrained(folder / "policy")
    word_tokenizer(vocab).save_pretrained(folder / "policy")
    lengths = torch.randint(prompts[0], prompts[1] + 1, (256,)).tolist()
    texts = [" ".join(f"w{word}" for word in torch.randint(2, vocab, (length,)).tolist()) for length in lengths]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return policy


def word_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each of the words w2, w3, ..."""
    names = {"<pad>": PAD, "<eos>": EOS} | {f"w{number}": number for number in range(2, vocab)}
    words = Tokenizer(models.WordLevel(names, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def ragged(rows: int, limit: int, seed: int, *, mean: float, deviation: float) -> list[int]:
    """Draw log-normal lengths with that mean and that deviation of their logarithms, at most `limit`."""
    chance = torch.Generator().manual_seed(seed)
    drawn = math.log(mean) - deviation**2 / 2 + deviation * torch.randn(rows, generator=chance)
    lengths: list[int] = drawn.exp().round().long().clamp(1, limit).tolist()
    return lengths


class EndsInTime(LogitsProcessor):
    """End rows such that the answers have the given lengths; the same rows end on both sides."""

    def __init__(self, lengths: Tensor, width: int, end: int = EOS) -> None:
        self.counts, self.width, self.end = torch.bincount(lengths, minlength=int(lengths.max()) + 2), width, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """Forbid EOS and padding, and force EOS in the first unfinished rows if some have this length."""
        scores[:, [PAD, self.end]] = -torch.inf
        ending = int(self.counts[input_ids.shape[1] - self.width + 1])
        if ending:
            rows = (~(input_ids[:, self.width :] == self.end).any(dim=1)).nonzero().squeeze(1)[:ending]
            scores[rows] = -torch.inf
            scores[rows, self.end] = 0.0
        return scores
