"""Computes how many tokens a prompt may have: the model's context minus the length of the completion."""

from __future__ import annotations

from rlhf_cli.errors import ConfigError


def prompt_limit(read: object, served: object, completion: object, *, where: str) -> int | None:
    """Return how many tokens a prompt may have, or None if the model's context is unknown.

    `read` is the model's own limit, `served` the limit of the server that generates, `completion` the most tokens of an
    answer; each may be None. Raise ConfigError, naming `where`, if no token is left for a prompt.
    """
    context = min((number for number in (read, served) if isinstance(number, int) and number > 0), default=None)
    if context is None:
        return None
    written = completion if isinstance(completion, int) and completion > 0 else 1
    if written >= context:
        raise ConfigError(
            "completions leave no room for a prompt",
            where=where,
            got=f"{written}, and the model reads {context} tokens",
            expected="fewer than it reads, prompt and completion together",
            hint=f"trainer.args.max_completion_length={context // 2}",
        )
    return context - written
