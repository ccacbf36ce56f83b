"""Rank all answers of a prompt by a language model, in one request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from rlhf_cli.errors import RewardError, ServerSilent
from rlhf_cli.rewards.completion_text import Completion, text_of
from rlhf_cli.rewards.judge import Judge, advice_for, ends_of, prompt_text
from rlhf_cli.services.http_client import Post, together

_RANKING = r"(?:ranking|order)\s*[:=]\s*\[?(\d+\]?(?:\s*[>,]\s*\[?\d+\]?)*)"


@dataclass(eq=False, repr=False)
class RankingJudge(Judge):
    """A judge that ranks the answers to a prompt by a language model: the best gets 1, the worst 0, evenly spaced.

    All different answers of a prompt go into one request to `URL/chat/completions`, in an order that does not depend
    on the order of sampling; equal answers share a rank. Replies are cached on disk. A row gets None if a column that
    the rubric names is null, and if its prompt has no second answer that differs (greedy answers are alone).

    Args:
        rubric: the question: text with `{prompt}`, `{completions}` (numbered `[1]`, `[2]`) and any dataset column.
        retry_budget_s: limit for one prompt with all attempts; 429, 5xx and lost connections are retried.
        ranking_pattern: regular expression, case ignored, whose first group holds the numbers, best first; its last
            match counts.
    """

    score_pattern: str = field(init=False)
    scale: Sequence[float] = field(init=False)
    ranking_pattern: str = _RANKING
    compares_rows = True  # without a type these two are no arguments
    answer_field = "completions"

    def __post_init__(self) -> None:
        self.score_pattern = self.ranking_pattern
        super().__post_init__()

    async def __call__(
        self, prompts: Sequence[Completion], completions: Sequence[Completion], **columns: Sequence[object]
    ) -> list[float | RewardError | None]:
        """Return a score per row, in 0..1, None, or why the reply to its prompt is no ranking."""
        named = {name: columns[name] for name in self._columns}
        groups: dict[str, list[int]] = {}  # prompt and columns -> rows
        for row, prompt in enumerate(prompts):
            groups.setdefault(repr([prompt_text(prompt), *(column[row] for column in named.values())]), []).append(row)
        texts = [text_of(completion) for completion in completions]
        asked: list[tuple[str, list[str], list[int]]] = []  # text, different answers, rows
        for rows in groups.values():
            answers = sorted({texts[row] for row in rows}, key=lambda one: hashlib.sha256(one.encode()).digest())
            listed = "\n\n".join(f"[{number}] {answer}" for number, answer in enumerate(answers, 1))
            values = {name: column[rows[0]] for name, column in named.items()}
            values |= {"prompt": prompt_text(prompts[rows[0]]), "completions": listed}
            text = self._filled(values, rows[0])
            if text is not None and len(answers) > 1:
                asked.append((text, answers, rows))
        async with self._client.session() as post:
            ranked = await together([self._ranked(post, text, answers, rows[0]) for text, answers, rows in asked])
        scores: list[float | RewardError | None] = [None] * len(texts)
        for (_, _, rows), found in zip(asked, ranked, strict=True):
            for row in rows:
                scores[row] = found if isinstance(found, RewardError) else found[texts[row]]
        return scores

    async def _ranked(self, post: Post, text: str, answers: Sequence[str], row: int) -> dict[str, float] | RewardError:
        """Return answer -> score, or why there is none. Raise ServerSilent."""
        try:
            found = await self._reply(post, text, row, partial(self._ranking, row, len(answers)))
        except ServerSilent:
            raise
        except RewardError as error:  # no reason to ask again for single rows: a row alone has no rank
            return error
        return dict(zip(answers, found, strict=True))

    def _ranking(self, row: int, count: int, reply: str, finish: str) -> list[float]:
        """Return the score of each answer in the order in which they were listed."""
        matches = self._matches(reply)
        order = [int(number) for number in re.findall(r"\d+", matches[-1][1] or "")] if matches else []
        if sorted(order) != list(range(1, count + 1)):
            what, where = f"the judge's reply does not rank the {count} answers", f"row {row}, {self!r}"
            expected = f"each of 1 to {count} once, in text that matches {self._pattern.pattern}"
            raise RewardError(what, where=where, got=ends_of(reply), expected=expected, advice=advice_for(finish))
        return [1 - order.index(number) / (count - 1) for number in range(1, count + 1)]
