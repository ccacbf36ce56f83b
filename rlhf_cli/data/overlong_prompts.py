"""Handle prompts that leave no room for an answer: raise an error, drop them, or keep their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rlhf_cli.data.rows import Dataset, Table, at_rows
from rlhf_cli.errors import ConfigError, DataError

OverlongPrompts = Literal["error", "drop", "truncate"]
_BATCH = 1000


def prompt_limit(read: object, served: object, completion: object, *, where: str) -> int | None:
    """Return how many tokens a prompt may have, or None if the model's context is unknown.

    `read` limits the model, `served` its server, `completion` an answer, if known. Raise ConfigError if none is left.
    """
    context = min((number for number in (read, served) if isinstance(number, int) and number > 0), default=None)
    if context is None:
        return None
    written = completion if isinstance(completion, int) and completion > 0 else 1
    if written >= context:
        what, got = "completions leave no room for a prompt", f"{written} tokens; the model's context has {context}"
        expected = "fewer than the context, which holds prompt and completion"
        hint = f"trainer.args.max_completion_length={context // 2}"
        raise ConfigError(what, where=where, got=got, expected=expected, hint=hint)
    return context - written


def without_overlong(
    dataset: Dataset,
    limit: int,
    *,
    policy: OverlongPrompts,
    longer_than: Callable[[int, Sequence[object]], Mapping[int, int]],
    last: Callable[[str, int], str],
    name: str = "data",
) -> tuple[Dataset, list[str]]:
    """Return the rows without prompts of more than `limit` tokens, according to `policy`, and what happened to them.

    `longer_than(limit, prompts)` gives row -> tokens, `last(text, limit)` a text's end. Raise like `check_overlong`.
    """
    overlong: dict[int, int] = {}
    for first in range(0, len(dataset), _BATCH):
        prompts = dataset[first : first + _BATCH]["prompt"]
        overlong |= {first + row: tokens for row, tokens in longer_than(limit, prompts).items()}
    if not overlong:
        return dataset, []
    notes = [f"{name}: {check_overlong(dataset, overlong, limit, policy=policy, name=name)}"]
    if policy == "drop":
        return dataset.select([row for row in range(len(dataset)) if row not in overlong]), notes

    def cut(row: dict[str, str], number: int) -> dict[str, str]:
        return {"prompt": last(row["prompt"], limit)} if number in overlong else {}

    return dataset.map(cut, with_indices=True, load_from_cache_file=False), notes


def check_overlong(table: Table, overlong: Mapping[int, int], limit: int, *, policy: OverlongPrompts, name: str) -> str:
    """Return what happens to the prompts `overlong` (row -> tokens): `3 of 64 prompts ... (the longest 1263) and ...`.

    Raise DataError under `error`, if no prompt is left, or if a conversation would be truncated.
    """
    counts, longest = f"{len(overlong)} of {len(table)}", max(overlong.values())
    hint, advice, where = None, None, at_rows(name, *(row + 1 for row in overlong))
    if policy == "error":
        problem = f"prompts of more than {limit} tokens leave the policy no room to answer"
        advice = "data.overlong_prompts=drop or truncate, or a smaller trainer.args.max_completion_length"
    elif policy == "drop" and len(overlong) == len(table):
        problem, where = f"every prompt has more than {limit} tokens", name
    elif policy == "truncate" and any(isinstance(table[row]["prompt"], list) for row in overlong):
        problem = "rlhf cannot cut off the beginning of a conversation: its first speaker would be lost"
        hint = "data.overlong_prompts=drop"
    else:
        done = "are left out" if policy == "drop" else "lose their beginnings"
        return f"{counts} prompts have more than {limit} tokens (the longest {longest}) and {done}"
    expected = f"at most {limit}, the model's context less trainer.args.max_completion_length"
    got = f"{counts} prompts are longer, the longest has {longest} tokens"
    raise DataError(problem, where=where, got=got, expected=expected, hint=hint, advice=advice)
