"""Check that a critic from the hub has the policy's vocabulary, after downloading it."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedModel

from rlhf_cli.models.model_folders import other_tokens


def check_tokens(critic: PreTrainedModel, path: str, tokenizer: str, *, trust_remote_code: bool = False) -> None:
    """Compare a critic loaded from `path` with the tokenizer of its policy, a folder or hub id.

    Raise ModelError if a token of the policy has another id in the critic, or none. Skip the check if both are local
    folders: `describe_critic` compared them before loading.
    """
    if Path(path).expanduser().is_dir() and Path(tokenizer).expanduser().is_dir():
        return
    written = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code).get_vocab()
    size = critic.config.get_text_config().vocab_size
    if max(written.values()) >= size:
        raise other_tokens(f"vocab_size {size}, the policy writes {max(written.values()) + 1} tokens", "critic.init")
    try:
        read = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code).get_vocab()
    except (OSError, ValueError):  # a critic is saved without a tokenizer, so only the sizes can be compared
        return
    for token, number in sorted(written.items(), key=lambda one: one[1]):  # a vocabulary is not sorted
        if read.get(token) != number:
            known = read.get(token, "unknown")
            raise other_tokens(f"token {token!r} is {number} to the policy and {known} to the critic", "critic.init")
