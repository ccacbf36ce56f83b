"""Ask a reward server: send prompts, completions and the dataset's columns, and receive one number per row."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from rlhf_cli.errors import RewardError
from rlhf_cli.services.http_client import JsonClient, together
from rlhf_cli.tables.trl_values import TRAINERS_OWN
from rlhf_cli.text.json_values import finite_or_none


@dataclass(eq=False, repr=False)
class RewardServer:
    """A reward that asks a server over HTTP: one `POST` per batch of rows.

    Sent: `{"prompts": [...], "completions": [...], "columns": {NAME: [...]}}`, with prompts and completions as texts or
    lists of messages, and every dataset column that JSON can represent, with null for NaN. Expected:
    `{"rewards": [0.5, null, ...]}`, a number for each completion, null if the reward does not apply.

    Args:
        url: of one server, or a list of equivalent URLs, which are used in turn.
        api_key_env: name of the environment variable that holds the key, sent as a bearer token.
        timeout_s: limit for one attempt.
        retry_budget_s: limit for one batch with all attempts; 429, 5xx and lost connections are retried.
        batch_size: rows per request.
        max_concurrency: number of simultaneous requests.
    """

    url: str | list[str]
    api_key_env: str | None = None
    timeout_s: float = 30.0
    retry_budget_s: float = 60.0
    batch_size: Annotated[int, Ge(1)] = 32
    max_concurrency: int = 8

    def __post_init__(self) -> None:
        self._client = JsonClient.of(self)

    def __repr__(self) -> str:
        return f"RewardServer({self._client})"

    async def __call__(
        self, prompts: Sequence[object], completions: Sequence[object], **columns: object
    ) -> list[float | None]:
        """Return a reward per row. Raise RewardError if a server does not answer in the form above."""
        sent: dict[str, Sequence[object]] = {}
        for name, values in columns.items():
            is_own = name == "completion_ids" or name in TRAINERS_OWN
            if not is_own and isinstance(values, list | tuple) and len(values) == len(completions):
                finite = list(map(finite_or_none, values))
                with contextlib.suppress(TypeError, ValueError):  # JSON has no images, for example
                    json.dumps(finite, allow_nan=False)
                    sent[name] = finite
        starts = range(0, len(completions), self.batch_size)
        batches = [
            {
                "prompts": list(prompts[part]),
                "completions": list(completions[part]),
                "columns": {name: values[part] for name, values in sent.items()},
            }
            for part in (slice(start, start + self.batch_size) for start in starts)
        ]
        async with self._client.session() as post:
            answers = await together([post(batch) for batch in batches])
        rewards: list[float | None] = []
        for start, batch, answer in zip(starts, batches, answers, strict=True):
            rewards += self._checked(answer, start, len(batch["completions"]))
        return rewards

    def _checked(self, answer: object, start: int, num_rows: int) -> list[float | None]:
        """Return the rewards of one answer, for the rows from `start` on."""
        rewards = answer.get("rewards") if isinstance(answer, Mapping) else None
        got = repr(answer)
        if isinstance(rewards, list):
            numbered = enumerate(rewards, start)
            wrong = [f"{value!r} for row {row}" for row, value in numbered if not isinstance(value, int | float | None)]
            if not wrong and len(rewards) == num_rows:
                return rewards
            got = wrong[0] if wrong else f"{len(rewards)} rewards"
        what = "the reward server did not answer with a number for each completion"
        expected = f'{{"rewards": [...]}} with {num_rows} numbers, or null if the reward does not apply'
        raise RewardError(what, where=str(self._client), got=got[:200], expected=expected)
