"""Gives the policy's tokenizer alone: no weights, no torch, a second of `transformers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def policy_tokenizer(experiment: Experiment, *, wanted_by: str) -> PreTrainedTokenizerBase:
    """Return the policy's tokenizer: what counts tokens, or renders a prompt, does it as the policy would.

    `wanted_by` says in a message what takes it.

    Raises ModelError where none is named, or the one named cannot be loaded.
    """
    model = experiment.model
    if model.build is not None:
        from rlhf_cli.models.byte_tokenizer import byte_tokenizer

        return byte_tokenizer(model.build.context_tokens)
    name = model.tokenizer or model.path
    where = "model.tokenizer" if model.tokenizer else "model.path"
    if name is None or name == NOT_GIVEN:
        raise ModelError(
            f"{wanted_by} takes the policy's tokenizer, and no policy is named",
            where=where,
            expected="a model folder or a hub id; only its tokenizer is read",
            hint="model.path=FOLDER_OR_HUB_ID, or model=tiny",
        )
    from transformers import AutoTokenizer

    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name,
            revision=None if model.tokenizer else model.revision,
            trust_remote_code=model.trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise ModelError(
            "the tokenizer cannot be loaded",
            where=where,
            got=f"{name} ({type(error).__name__}: {str(error).splitlines()[0]:.160})",
            expected="a folder with a tokenizer, or a hub id that is in the cache or can be reached",
            hint="hf download " + name,
        ) from error
    return loaded


NOT_GIVEN = "(not given)"
"""Stands for a model's path where no model is needed and none was named."""
