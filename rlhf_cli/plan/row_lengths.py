"""Count the tokens of a run's longest rows, with the policy's own tokenizer and without torch.

Only the rows with the most characters are counted. The template of a chat is rendered for prompts; in longer rows a
message counts a few more tokens than its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.rendering import TEMPLATE_ERRORS
from rlhf_cli.models.tokenizer_files import TokenizerFiles
from rlhf_cli.plan.checks.facts import DataFacts
from rlhf_cli.plan.checks.prompt_checks import rendered
from rlhf_cli.plan.memory_estimate import RowLengths

_AROUND_A_MESSAGE = 8
"""Tokens that a chat template puts around a message (role, start and end markers); more than most templates use."""
_COUNTED = 64
"""How many rows are counted, those with the most characters: tokenizing a hundred thousand rows would take seconds."""
_ANSWERS = ("completion", "chosen", "rejected", "reference")
_WHOLE = ("messages", "conversations", "text")
_IDS = ("input_ids", "chosen_ids", "rejected_ids")


def longest_rows(
    experiment: Experiment, data: DataFacts, tokenizer: TokenizerFiles | None, most_prompt_tokens: int | None
) -> RowLengths | None:
    """Return the longest prompt and row of all sources, in tokens.

    Return None if the rows or the policy's tokenizer are not on this machine. Prompts with more than
    `most_prompt_tokens` are dropped or cut.
    """
    rows = [table[number] for read in data.sources if (table := read.rows) is not None for number in range(len(table))]
    if not rows or tokenizer is None or tokenizer.lengths([""], special_tokens=False) is None:
        return None

    def count(text: str) -> int:
        return sum(tokenizer.lengths([text], special_tokens=False) or ())

    settings = experiment.trainer.args.get("chat_template_kwargs")

    def count_prompt(prompt: object) -> int:
        if isinstance(prompt, list) and tokenizer.chat_template is not None:
            try:
                return count(rendered(prompt, tokenizer, settings if isinstance(settings, Mapping) else {}))
            except TEMPLATE_ERRORS:
                pass  # the run reports a template that fails on this conversation
        return _tokens(prompt, count)

    prompts = sorted((row.get("prompt") for row in rows), key=lambda prompt: _tokens(prompt, len), reverse=True)
    longest = max(count_prompt(prompt) for prompt in prompts[:_COUNTED])
    if experiment.trainer.row.generates:
        return RowLengths(min(longest, most_prompt_tokens or longest), 0)
    by_size = sorted(rows, key=lambda row: _whole(row, len, lambda prompt: _tokens(prompt, len)), reverse=True)
    return RowLengths(longest, max(_whole(row, count, count_prompt) for row in by_size[:_COUNTED]))


def _whole(row: Mapping[str, object], count: Callable[[str], int], count_prompt: Callable[[object], int]) -> int:
    """Return the tokens of a row that is trained on: the prompt with its longest answer, or the whole text."""
    ids = [len(value) for name in _IDS if isinstance(value := row.get(name), list)]
    wholes = [_tokens(row[name], count) for name in _WHOLE if row.get(name)]
    answers = [_tokens(row[name], count) + 1 for name in _ANSWERS if row.get(name)]  # 1: the end of the sequence
    return max([*ids, *wholes, count_prompt(row.get("prompt")) + max(answers, default=0)])


def _tokens(value: object, count: Callable[[str], int]) -> int:
    if isinstance(value, str):
        return count(value)
    if isinstance(value, list):
        texts = [message.get("content", message.get("value")) for message in value if isinstance(message, Mapping)]
        return sum(count(str(text)) + _AROUND_A_MESSAGE for text in texts)
    return 0
