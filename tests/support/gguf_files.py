"""A GGUF file of a small Llama with random weights, whole or without some of its tensors."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

VOCABULARY = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", *map(chr, range(0x100, 0x100 + 58))]
WIDTH, INNER, LAYERS, HEADS = 32, 64, 2, 4


def write_llama(file: Path, *, without: str = "") -> None:
    """Write the file. without: leave out the tensors whose names begin with this."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3, 3, *[1] * (len(VOCABULARY) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (len(VOCABULARY), WIDTH), "output_norm": (WIDTH,), "output": (len(VOCABULARY), WIDTH)}
    for layer in range(LAYERS):
        square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        feed = {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        norms = dict.fromkeys(("attn_norm", "ffn_norm"), (WIDTH,))
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in (square | feed | norms).items()}
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        if not (without and name.startswith(without)):
            writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32) * 0.02)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
