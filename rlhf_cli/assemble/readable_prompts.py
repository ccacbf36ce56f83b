"""Check before loading any weights that the policy can read the rows and has room to answer them."""

from __future__ import annotations

import logging

from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, TrainingArguments
from trl import is_conversational

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.overlong_prompts import describe_overlong, overlong_in, without_overlong
from rlhf_cli.errors import ModelError, Prose
from rlhf_cli.models.prompt_tokens import PromptTokens
from rlhf_cli.plan.prompt_room import prompt_limit

_Rows = tuple[Dataset, Dataset | None]


def readable_rows(
    experiment: Experiment, args: TrainingArguments, policy: str, train: Dataset, held_out: Dataset | None
) -> _Rows:
    """Return training and held-out rows that the model at `policy` can read.

    Raise ModelError if its tokenizer has no end-of-sequence token or, for conversations, no chat template. Raise
    DataError for prompts that leave no room to answer, unless `data.overlong_prompts` says how to handle them.
    """
    model = experiment.model
    tokenizer = AutoTokenizer.from_pretrained(
        model.tokenizer or policy,
        revision=None if model.tokenizer else model.revision,
        trust_remote_code=model.trust_remote_code,
    )
    where = "model.tokenizer" if model.tokenizer else "model.path"
    _check_end(tokenizer, where)
    # TRL replaces the tokenizer's template by the one of `chat_template_path`.
    if is_conversational(train[0]) and getattr(args, "chat_template_path", None) is None:
        _check_chat_template(tokenizer, where)
    limit = _prompt_limit(experiment, args, policy) if experiment.trainer.row.generates else None
    if limit is None:
        return train, held_out
    tokens = PromptTokens(tokenizer, getattr(args, "chat_template_kwargs", None))
    return (
        _fitting(experiment, args, train, limit, tokens, "data"),
        None if held_out is None else _fitting(experiment, args, held_out, limit, tokens, "data.eval"),
    )


def _fitting(
    experiment: Experiment, args: TrainingArguments, rows: Dataset, limit: int, tokens: PromptTokens, name: str
) -> Dataset:
    overlong = overlong_in(rows, limit, tokens.longer_than)
    policy = experiment.data.overlong_prompts
    why = f"at most {limit}, what the model reads less trainer.args.max_completion_length"
    fitting = without_overlong(rows, overlong, limit, policy=policy, last=tokens.last, why=why, name=name)
    if overlong and args.process_index == 0:
        said = f"{name}: {describe_overlong(overlong, len(rows), limit, policy)}"
        logging.getLogger("rlhf").warning(said)
        print(f"warning: {said}")
    return fitting


def _prompt_limit(experiment: Experiment, args: TrainingArguments, policy: str) -> int | None:
    """Return the maximum number of prompt tokens, None if the model declares no context length."""
    model = experiment.model
    config = AutoConfig.from_pretrained(policy, revision=model.revision, trust_remote_code=model.trust_remote_code)
    read = getattr(config.get_text_config(), "max_position_embeddings", None)
    served = getattr(args, "vllm_max_model_length", None)
    completion = getattr(args, "max_completion_length", None)
    return prompt_limit(read, served, completion, where="trainer.args.max_completion_length")


def _check_end(tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "the tokenizer has no token for the end of a text: nothing could end, and nothing be padded",
            where=where,
            got=f"{tokenizer.name_or_path}: eos_token is not set",
            expected="eos_token in its tokenizer_config.json",
            hint="model.tokenizer=FOLDER_OR_HUB_ID",
        )


def _check_chat_template(tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    if tokenizer.chat_template is None:
        raise ModelError(
            "the model has no chat template, and the rows are conversations",
            where=where,
            got=str(tokenizer.name_or_path),
            expected="a chat_template.jinja, or chat_template in tokenizer_config.json",
            hint=Prose(
                "plain prompts (data.prompt='{question}'), or model.tokenizer=FOLDER_OR_HUB_ID of its chat model"
            ),
        )
