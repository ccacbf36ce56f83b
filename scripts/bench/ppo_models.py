"""Models of random weights and prompts for the PPO benchmarks, with a length of the answers that can be chosen.

`make` writes FOLDER/policy, reward, value (Llama, 12.6M parameters, 8,192 tokens), small (a reward model of 2.1M,
for a smaller critic) and prompts.jsonl. The tokenizer has a word a token, so that a text and its tokens are the same.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    set_seed,
)

SHAPE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4}
SMALL = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 2}
PAD, EOS = 0, 1
_NEVER = -20.0


def make(folder: Path, *, vocab: int, end_probability: float) -> None:
    """The four folders with one tokenizer, and 256 prompts of 8 to 24 words.

    end_probability: of every token of an answer to be its last; 0 for answers that all run to the longest allowed.
    """
    set_seed(0)
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": None}
    config = LlamaConfig(vocab_size=vocab, tie_word_embeddings=False, **ids, **SHAPE)
    classifier = LlamaConfig(vocab_size=vocab, num_labels=1, **ids, **SHAPE)
    tokenizer = word_tokenizer(vocab)
    policy = LlamaForCausalLM(config)
    set_end(policy, end_probability)
    made = {
        "policy": policy,
        "reward": LlamaForSequenceClassification(classifier),
        "value": LlamaForSequenceClassification(classifier),
        "small": LlamaForSequenceClassification(LlamaConfig(vocab_size=vocab, num_labels=1, **ids, **SMALL)),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    lengths = torch.randint(8, 25, (256,)).tolist()
    prompts = [" ".join(f"w{word}" for word in torch.randint(2, vocab, (n,)).tolist()) for n in lengths]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))


def word_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words w2, w3, ..., a token each."""
    names = {"<pad>": PAD, "<eos>": EOS} | {f"w{number}": number for number in range(2, vocab)}
    words = Tokenizer(models.WordLevel(names, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left")


@torch.no_grad()
def set_end(policy: LlamaForCausalLM, probability: float) -> None:
    """Make every token the last one with `probability`, whatever came before, and padding never.

    Dimension 0 of the residual stream is a constant that no layer writes to, and far larger than the others, so that
    what the last norm makes of it hardly varies. The head reads the logits of EOS and padding from it alone.
    """
    policy.model.embed_tokens.weight[:, 0] = 10.0
    for layer in policy.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    head = policy.lm_head.weight
    num_tokens = len(head)
    constant = policy.model(torch.randint(2, num_tokens, (4, 64))).last_hidden_state[..., 0].mean()
    head[:, 0] = 0.0
    end = math.log(num_tokens - 2) + math.log(probability / (1 - probability)) if probability else _NEVER
    for token, logit in ((PAD, _NEVER), (EOS, end)):
        head[token] = 0.0
        head[token, 0] = logit / constant
