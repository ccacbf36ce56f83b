"""Describe the tasks of data=reasoning_gym, which only the package knows."""

from __future__ import annotations

from typing import Any

from rlhf_cli.data.worlds.reasoning_gym import list_tasks
from rlhf_cli.errors import DataError


def described_tasks() -> tuple[list[dict[str, Any]], str]:
    """Return name, example and arguments of every task, and '', or no task and what is missing."""
    try:
        return list_tasks(), ""
    except DataError as error:
        return [], f"its tasks are not listed: {error.what} (try: {error.hint})"
