"""Load the policy's tokenizer alone, and list the rewards that need it. No weights, no torch."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ModelError
from rlhf_cli.plan.checks.hub_checks import require_on_hub
from rlhf_cli.remote.hub_lookup import Question
from rlhf_cli.stack.reward_functions import RewardFunction, resolve

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def policy_tokenizer(experiment: Experiment, *, wanted_by: str) -> PreTrainedTokenizerBase:
    """Return the policy's tokenizer, to count tokens or render prompts exactly like the policy.

    `wanted_by` names what needs it in error messages. Raise ModelError if no tokenizer is configured or it cannot be
    loaded.
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
    if not Path(name).expanduser().exists():
        asked = Question("model", name, None if model.tokenizer else model.revision, needs_weights=False)
        require_on_hub(asked, where=where, local=f"{where}=FOLDER")
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


def reads_tokens(function: RewardFunction) -> bool:
    """Return whether a reward reads token ids. A reward that measures in another unit does not."""
    parameters = inspect.signature(function).parameters
    unit = parameters["unit"].default if "unit" in parameters else "tokens"
    return "completion_ids" in parameters and unit == "tokens"


def rewards_without_tokenizer(experiment: Experiment) -> dict[str, str]:
    """Return reward name -> reason, for the rewards that count tokens when no policy is configured."""
    model = experiment.model
    if model.build is not None or model.tokenizer is not None or model.path not in (None, NOT_GIVEN):
        return {}
    why = "it counts the policy's tokens, and no policy is named: model.path=FOLDER_OR_HUB_ID, or model=tiny"
    return {
        name: why
        for name, reward in experiment.rewards.items()
        if reward.fn is not None and reads_tokens(resolve(reward.fn, reward.args, where=f"rewards.{name}.fn"))
    }


NOT_GIVEN = "(not given)"
"""Placeholder for a model path that is not needed and not configured."""
