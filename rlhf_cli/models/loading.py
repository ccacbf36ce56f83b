"""Load models whole beside the one in training, look them up on the hub, count prompt tokens.

transformers shards every model it loads once a process's TrainingArguments enable ZeRO-3. That includes a reward model,
which each rank runs on its own, a critic, which is trained outside the engine, and the base that an adapter is merged
into.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from transformers import AutoConfig, PreTrainedTokenizerBase, TrainingArguments
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config
from trl import is_conversational

from rlhf_cli.errors import ModelError, with_causes


def require_model(name: str, *, where: str, revision: str | None, trust_remote_code: bool) -> None:
    """Read the configuration of a hub model, or its cached copy; do nothing for a local folder.

    Raise ModelError if the model is gated, does not exist, or is unreachable and not in the cache.
    """
    if Path(name).expanduser().exists():
        return
    try:
        AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except OSError as error:
        raise _model_error(name, where, error) from error


def _model_error(name: str, where: str, error: OSError) -> ModelError:
    causes = list(with_causes(error))
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return ModelError(
            f"the hub gives {name} only to whom its owner has let in",
            where=where,
            got="a gated repository, and no token in the environment that opens it",
            advice=f"ask for access at https://huggingface.co/{name}, then export HF_TOKEN=...",
        )
    if any(isinstance(cause, RepositoryNotFoundError | RevisionNotFoundError) for cause in causes):
        return ModelError(
            f"there is no model {name} on the hub, nor a folder of that name",
            where=where,
            got=str(error).splitlines()[0],
            hint="export HF_TOKEN=... for a private one",
        )
    return ModelError(
        f"{name} cannot be reached on the hub, and is not in the cache",
        where=where,
        got=str(error).splitlines()[0],
        hint=f"hf download {name}, or model.path=FOLDER",
    )


@contextlib.contextmanager
def loading_unsharded(args: TrainingArguments) -> Iterator[None]:
    """Open a context in which transformers loads models unsharded under every strategy."""
    # From our own argument, or from accelerate's config file; transformers checks both.
    config = getattr(args, "hf_deepspeed_config", None) or getattr(args.deepspeed_plugin, "dschf", None)
    if config is None:
        yield
        return
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(config)


_ADDED = 8
"""Upper bound of the special tokens that a tokenizer adds to a plain text."""


@dataclass(frozen=True)
class PromptTokens:
    """A token counter for prompts with the policy's tokenizer. A prompt is a text or a list of messages.

    `chat_template_kwargs` is TRL's argument of that name.
    """

    tokenizer: PreTrainedTokenizerBase
    chat_template_kwargs: Mapping[str, object] | None = None

    def longer_than(self, limit: int, prompts: Sequence[object]) -> dict[int, int]:
        """Return index -> tokens of the prompts that have more than `limit` tokens."""
        # A token of an ASCII text has at least one character, so most prompts need no tokenisation.
        unsure = [
            row
            for row, prompt in enumerate(prompts)
            if not (isinstance(prompt, str) and prompt.isascii() and len(prompt) + _ADDED <= limit)
        ]
        counted = self._count([prompts[row] for row in unsure]) if unsure else []
        return {row: tokens for row, tokens in zip(unsure, counted, strict=True) if tokens > limit}

    def last(self, text: str, limit: int) -> str:
        """Return the end of a text that has at most `limit` tokens when tokenised again."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        for kept in range(min(limit, len(ids)), 0, -1):
            # A token may be part of a character.
            end = str(self.tokenizer.decode(ids[-kept:])).lstrip("\ufffd")
            if len(self.tokenizer(end)["input_ids"]) <= limit:
                return end
        return ""

    def _count(self, prompts: Sequence[object]) -> list[int]:
        if not is_conversational({"prompt": prompts[0]}):
            return [len(ids) for ids in self.tokenizer(list(prompts))["input_ids"]]
        render: Callable[..., object] = self.tokenizer.apply_chat_template  # its return type depends on the arguments
        settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        rendered = cast(
            "Mapping[str, list[list[int]]]", render(list(prompts), **settings, **(self.chat_template_kwargs or {}))
        )
        return [len(ids) for ids in rendered["input_ids"]]
