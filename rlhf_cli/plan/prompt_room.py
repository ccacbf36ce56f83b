"""Which prompts leave a model room to answer: the same ones in training and in an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import ENVIRONMENT_COLUMN
from rlhf_cli.data.images import in_parts
from rlhf_cli.data.model_limits import OverlongPrompts, check_overlong, prompt_limit
from rlhf_cli.data.rows import kind_of_text
from rlhf_cli.models.tokenizer_files import prompt_ids
from rlhf_cli.plan.stack_building import told_tools
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.text.json_values import JsonTree

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


_ADDED = 8  # upper bound on the special tokens added to a plain text
_BATCH = 1000


@dataclass(frozen=True)
class PromptRoom:
    """A prompt, a text or a list of messages, has at most `limit` tokens; `policy` says what happens to a longer one.

    `settings` are the variables of the chat template. `write` turns messages into those that the template reads, and
    `told` returns what it is told of a row's tools, by the row's environment.
    """

    limit: int
    policy: OverlongPrompts
    tokenizer: PreTrainedTokenizerBase
    settings: Mapping[str, object] = field(default_factory=dict)
    write: Callable[[Any], object] = list
    told: Callable[[object], list[JsonTree]] = lambda environment: []

    def fitting(self, rows: Dataset, name: str) -> tuple[Dataset, list[str]]:
        """Return the rows with prompts that fit, and what happened to others. Raise DataError as `check_overlong`."""
        if "prompt" not in rows.column_names or not set(IMAGES).isdisjoint(rows.column_names) or not len(rows):
            return rows, []  # a processor alone knows how many tokens an image has
        kind = kind_of_text(rows[0]["prompt"])
        if kind is None or (kind == "messages" and self.tokenizer.chat_template is None):
            return rows, []  # who reads them reports it
        overlong: dict[int, int] = {}
        for first in range(0, len(rows), _BATCH):
            batch = rows[first : first + _BATCH]
            longer = self.longer(batch["prompt"], batch.get(ENVIRONMENT_COLUMN))
            overlong |= {first + row: tokens for row, tokens in longer.items()}
        if not overlong:
            return rows, []
        notes = [f"{name}: {check_overlong(rows, overlong, self.limit, policy=self.policy, name=name)}"]
        if self.policy == "drop":
            return rows.select([row for row in range(len(rows)) if row not in overlong]), notes

        def cut(row: dict[str, str], number: int) -> dict[str, str]:
            return {"prompt": self.last(row["prompt"])} if number in overlong else {}

        return rows.map(cut, with_indices=True, load_from_cache_file=False), notes

    def longer(self, prompts: Sequence[object], environments: Sequence[object] | None = None) -> dict[int, int]:
        """Return index -> tokens of the prompts that have too many."""
        names = environments or [None] * len(prompts)
        # A token of an ASCII text has at least one character, so most prompts need no tokenisation.
        unsure = [
            row
            for row, prompt in enumerate(prompts)
            if not (isinstance(prompt, str) and prompt.isascii() and len(prompt) + _ADDED <= self.limit)
        ]
        asked: list[Any] = [prompts[row] for row in unsure]
        if asked and not isinstance(asked[0], str):
            asked = list(map(self.write, asked))
        tools = [self.told(names[row]) for row in unsure]
        counted = map(len, prompt_ids(self.tokenizer, asked, self.settings, tools)) if asked else ()
        return {row: tokens for row, tokens in zip(unsure, counted, strict=True) if tokens > self.limit}

    def last(self, text: str) -> str:
        """Return the end of a text that fits when it is tokenised again."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        for kept in range(self.limit, 0, -1):
            # A token may be part of a character.
            end = str(self.tokenizer.decode(ids[-kept:])).lstrip("\ufffd")
            if len(self.tokenizer(end)["input_ids"]) <= self.limit:
                return end
        return ""


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
    given = settings if isinstance(settings, dict) else {}
    return PromptRoom(limit, experiment.data.overlong_prompts, tokenizer, given, write, told_tools(experiment))
