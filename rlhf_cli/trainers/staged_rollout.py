"""Generate in two stages: s1, then s2 from the prompt and s1; rewards come when both are known (trlX issue 79).

It is a rollout function, as `rollout.fn` names one, and an example of one: copy it for stages of your own.
"""

from __future__ import annotations

from collections.abc import Callable

from rlhf_cli.trainers.trl_protocol import TrlTrainer

_BREAK = "\n"


def two_lines(prompts: list[str], trainer: TrlTrainer) -> dict[str, object]:
    """Return rollouts whose first line is s1, and whose second line, s2, the policy writes after it.

    `prompts` has a prompt as often as it is sampled. The line break between the two is not the policy's: its tokens
    have 0 in `env_mask`, which also tells where a turn ends. `is_truncated` marks rows whose s2 is cut: with a short
    s1 they are below the limit. Rewards read the columns `s1` and `s2`.
    """
    tokenizer, room = trainer.processing_class, trainer.max_completion_length // 2
    between = tokenizer(_BREAK, add_special_tokens=False)["input_ids"]
    prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
    written, _ = trainer._generate_single_turn(prompt_ids, images, fields, 1)
    first = [_line(ids[:room], lambda token: str(tokenizer.decode([token]))) for ids in written]
    longer = [[*prompt, *line, *between] for prompt, line in zip(prompt_ids, first, strict=True)]
    written, _ = trainer._generate_single_turn(longer, images, fields, 1)
    left = trainer.max_completion_length - room - len(between)
    second = [ids[:left] for ids in written]
    pairs = list(zip(first, second, strict=True))
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [[*one, *between, *two] for one, two in pairs],
        "logprobs": None,
        "env_mask": [[*[1] * len(one), *[0] * len(between), *[1] * len(two)] for one, two in pairs],
        "is_truncated": [len(ids) > left for ids in written],
        "s1": tokenizer.batch_decode(first, skip_special_tokens=True),
        "s2": tokenizer.batch_decode(second, skip_special_tokens=True),
    }


def _line(ids: list[int], decode: Callable[[int], str]) -> list[int]:
    """Return the tokens before the first line break or end of text, at least one: a turn is what the policy chose."""
    end = next((place for place, token in enumerate(ids) if _BREAK in decode(token)), len(ids))
    return ids[: max(1, end)]
