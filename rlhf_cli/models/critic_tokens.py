"""Compares the tokens that a critic from the hub reads with those that its policy writes, once it is here."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedModel

from rlhf_cli.models.model_folders import other_tokens


def check_tokens(critic: PreTrainedModel, path: str, tokenizer: str, *, trust_remote_code: bool = False) -> None:
    """Compare a critic that was loaded from `path` with the tokenizer of its policy, a folder or hub id.

    Raises ModelError where a token of the policy's is another to the critic, or none. Where both are folders nothing is
    done: `describe_critic` compared them before anything was loaded.
    """
    if Path(path).expanduser().is_dir() and Path(tokenizer).expanduser().is_dir():
        return
    written = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code).get_vocab()
    size = critic.config.get_text_config().vocab_size
    if max(written.values()) >= size:
        raise other_tokens(f"vocab_size {size}, the policy writes {max(written.values()) + 1} tokens", "critic.init")
    try:
        read = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code).get_vocab()
    except (OSError, ValueError):  # a critic is saved without a tokenizer: its size is all there is to compare
        return
    for token, number in sorted(written.items(), key=lambda one: one[1]):  # a vocabulary comes in any order
        if read.get(token) != number:
            known = read.get(token, "unknown")
            raise other_tokens(f"token {token!r} is {number} to the policy and {known} to the critic", "critic.init")
