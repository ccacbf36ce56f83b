"""The screen as a rank sees it: whoever starts the rank passes one in (rlhf_cli/jobs/rank_process.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import RenderableType

if TYPE_CHECKING:
    from rlhf_cli.measure.scored_pairs import ScoredPair


class TrainingScreen(Protocol):
    """What a rank tells of its progress; only rank 0 calls more than `spinner` and `stop`.

    display/progress_bars.py describes the methods. `spinner` yields a function that takes the current activity, its
    step and its number of steps. `show_pairs` shows scored pairs above the bar and in the log.
    """

    def spinner(self, doing: str, *, shown: bool) -> AbstractContextManager[Callable[[str, int, int], None]]: ...
    def start(self, step: int, max_steps: int) -> None: ...
    def move_to(self, step: int) -> None: ...
    def say_latest(self, latest: str) -> None: ...
    def say_line(self, step: int, latest: str) -> None: ...
    def print(self, shown: RenderableType) -> None: ...
    def show_pairs(self, pairs: Sequence[ScoredPair], log: Path) -> None: ...
    def stop(self) -> None: ...
