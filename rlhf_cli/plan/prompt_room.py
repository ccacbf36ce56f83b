"""Which prompts leave a model room to answer: the same ones in training and in an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.images import in_parts
from rlhf_cli.data.model_limits import OverlongPrompts, prompt_limit, without_overlong
from rlhf_cli.data.rows import kind_of_text
from rlhf_cli.models.tokenizer_files import PromptTokens
from rlhf_cli.tables.trl_trainers import IMAGES

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True)
class PromptRoom:
    """A prompt has at most `limit` tokens; `policy` says what happens to a longer one."""

    limit: int
    tokens: PromptTokens
    policy: OverlongPrompts

    def fitting(self, rows: Dataset, name: str) -> tuple[Dataset, list[str]]:
        """Return the rows with prompts that fit, and what happened to others. Raise DataError as `check_overlong`."""
        if "prompt" not in rows.column_names or not set(IMAGES).isdisjoint(rows.column_names) or not len(rows):
            return rows, []  # a processor alone knows how many tokens an image has
        kind = kind_of_text(rows[0]["prompt"])
        if kind is None or (kind == "messages" and self.tokens.tokenizer.chat_template is None):
            return rows, []  # who reads them reports it
        longer, last = self.tokens.longer_than, self.tokens.last
        return without_overlong(rows, self.limit, policy=self.policy, longer_than=longer, last=last, name=name)


def served_tokens(experiment: Experiment) -> object:
    """Return the context that vLLM is given, None if it is not or does not generate."""
    generates = experiment.launch.rollout.startswith("vllm")
    return experiment.trainer.setting("vllm_max_model_length") if generates else None


def prompt_room(
    experiment: Experiment, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> PromptRoom | None:
    """Return the room for prompts; None if the trainer generates nothing, or the model declares no context length."""
    trainer = experiment.trainer
    if not trainer.row.reads_prompts:
        return None
    read = getattr(config.get_text_config(), "max_position_embeddings", None)
    completion, settings = map(trainer.setting, ("max_completion_length", "chat_template_kwargs"))
    limit = prompt_limit(read, served_tokens(experiment), completion, where="trainer.args.max_completion_length")
    if limit is None:
        return None
    write = in_parts if hasattr(config, "vision_config") else list
    tokens = PromptTokens(tokenizer, settings if isinstance(settings, dict) else None, write)
    return PromptRoom(limit, tokens, experiment.data.overlong_prompts)
