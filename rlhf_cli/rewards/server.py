"""Ask a reward server: send prompts, completions and the dataset's columns, and receive one number per row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rlhf_cli.errors import RewardError
from rlhf_cli.services.http_client import JsonClient, shown, together

# Arguments that TRL passes to every reward besides the dataset's columns.
_NO_COLUMNS = frozenset({"completion_ids", "trainer_state", "log_metric", "log_extra", "environments"})


class RewardServer:
    """A reward that asks a server over HTTP: one `POST` a batch of rows.

    Sent: `{"prompts": [...], "completions": [...], "columns": {NAME: [...]}}`, prompts and completions as they are
    (texts, or lists of messages), and every dataset column that JSON can carry. Expected:
    `{"rewards": [0.5, null, ...]}`, a number for each completion, null where the reward does not apply.

    Args:
        url: of one server, or a list of equal ones, which are asked in turn.
        api_key_env: name of the environment variable that holds the key, sent as `Authorization: Bearer`.
        timeout_s: for one try.
        retry_budget_s: for one batch with all its tries: 429, 5xx and lost connections are tried again.
        batch_size: rows a request.
        max_concurrency: requests under way at once.
    """

    def __init__(
        self,
        url: str | list[str],
        api_key_env: str | None = None,
        timeout_s: float = 30.0,
        retry_budget_s: float = 60.0,
        batch_size: int = 32,
        max_concurrency: int = 8,
    ) -> None:
        if batch_size < 1:
            raise RewardError("no row a request", where="args.batch_size", got=batch_size, expected="1 or more")
        self._batch_size = batch_size
        self._client = JsonClient(
            url,
            api_key_env=api_key_env,
            timeout_s=timeout_s,
            retry_budget_s=retry_budget_s,
            max_concurrency=max_concurrency,
        )

    def __repr__(self) -> str:
        return f"RewardServer({', '.join(shown(url) for url in self._client.urls)})"

    async def __call__(
        self, prompts: Sequence[object], completions: Sequence[object], **columns: object
    ) -> list[float | None]:
        """Return a reward per row. Raises RewardError if a server does not answer, or not in the form above."""
        sent = _json_columns(columns, len(completions))
        starts = range(0, len(completions), self._batch_size)
        batches = [
            {
                "prompts": list(prompts[start : start + self._batch_size]),
                "completions": list(completions[start : start + self._batch_size]),
                "columns": {name: values[start : start + self._batch_size] for name, values in sent.items()},
            }
            for start in starts
        ]
        answers = await together([self._client.post(batch) for batch in batches])
        rewards: list[float | None] = []
        for start, batch, answer in zip(starts, batches, answers, strict=True):
            rewards += self._checked(answer, start, len(batch["completions"]))
        return rewards

    def _checked(self, answer: object, start: int, num_rows: int) -> list[float | None]:
        """Return the rewards of one answer, for the rows from `start` on."""
        where = " or ".join(shown(url) for url in self._client.urls)
        expected = f'{{"rewards": [...]}} with {num_rows} numbers, null where the reward does not apply'
        rewards = answer.get("rewards") if isinstance(answer, Mapping) else None
        if not isinstance(rewards, list):
            raise RewardError(
                "the reward server's answer has no list of rewards",
                where=where,
                got=repr(answer)[:200],
                expected=expected,
            )
        if len(rewards) != num_rows:
            raise RewardError(
                f"the reward server answered {len(rewards)} rewards to {num_rows} completions",
                where=where,
                got=repr(rewards)[:200],
                expected=expected,
            )
        for row, value in enumerate(rewards, start):
            if value is not None and not isinstance(value, int | float):
                raise RewardError(
                    f"the reward server answered no number for row {row}",
                    where=where,
                    got=repr(value)[:200],
                    expected=expected,
                )
        return rewards


def _json_columns(columns: Mapping[str, object], num_rows: int) -> dict[str, list[object]]:
    """Return the dataset columns that JSON can represent; images are left out, for example."""
    kept: dict[str, list[object]] = {}
    for name, values in columns.items():
        if name in _NO_COLUMNS or not isinstance(values, list | tuple) or len(values) != num_rows:
            continue
        try:
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError):
            continue
        kept[name] = list(values)
    return kept
