"""Holds what the checks of an experiment have found out so far: each reads what it needs, and notes what it finds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import TrainerFields
from rlhf_cli.data.peeking import Preview
from rlhf_cli.data.row_table import RowTable
from rlhf_cli.data.source import Source
from rlhf_cli.errors import UserError
from rlhf_cli.json_values import JsonTree
from rlhf_cli.models.tokenizer_files import TokenizerFiles, read_json
from rlhf_cli.plan.devices import planned_processes
from rlhf_cli.plan.launch_problems import Machine
from rlhf_cli.plan.rollout_batches import BatchPlan
from rlhf_cli.plan.row_batches import StagePlan
from rlhf_cli.plan.run_plan import Notice

HELD_OUT = "data.eval"
"""The name of the source of held-out rows."""


@dataclass
class Known:
    """What is known of a run. A part that no check has come to, or of which it could not say anything, is empty.

    `folder` is that of a run that goes on, None for a new one, which will lie somewhere in `run.root`.
    """

    trainer: TrainerFields
    processes: int
    folder: Path | None = None
    cached: dict[str, Path] = field(default_factory=dict)
    """Maps a model of the hub to its folder in the cache."""
    tokenizer: TokenizerFiles | None = None
    """The policy's, where its files are on this machine."""
    model: str = ""
    data: str = ""
    columns: tuple[str, ...] = ()
    num_rows: int | None = None
    num_held_out: int | None = None
    """Rows that evaluations run on; None where there are none, or nobody can say yet."""
    sources: list[Seen] = field(default_factory=list)
    """The training sources, then the held-out one, as far as they could be looked at."""
    reward_columns: dict[str, list[str]] = field(default_factory=dict)
    """Maps a reward's name to the columns it cannot do without."""
    missing_arguments: dict[str, list[str]] = field(default_factory=dict)
    """Maps a reward's name to those of these columns that are arguments, by their annotation, which nobody gave."""
    batches: BatchPlan | None = None
    stage: StagePlan | None = None
    machine: Machine | None = None
    files: dict[str, Path] = field(default_factory=dict)
    modules: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))
    """The modules that were imported before any code of the user's was."""
    notices: list[Notice] = field(default_factory=list)
    most_prompt_tokens: int | None = None
    """No prompt has more that is trained on: longer ones are left out or cut. None where they stay as they are."""

    def folder_of(self, path: str | None) -> Path | None:
        """Return where the files of a model are on this machine; None for one of the hub that is not in the cache."""
        if path is None:
            return None
        place = Path(path).expanduser()
        return place if place.is_dir() else self.cached.get(path)

    def config_of(self, path: str | None) -> JsonTree:
        """Return what a model's config.json says; nothing where there is none, or where it is no JSON."""
        folder = self.folder_of(path)
        try:
            return read_json(folder / "config.json") if folder and (folder / "config.json").is_file() else {}
        except UserError:
            return {}  # whoever describes the model says so

    @property
    def held_out(self) -> list[Seen]:
        """Return the held-out source in a list, empty where there is none or it could not be looked at."""
        return [seen for seen in self.sources if seen.source.name == HELD_OUT]

    @property
    def steps(self) -> int | None:
        """Return the optimizer steps of the run; None where the data decides when it is read."""
        of = self.stage or self.batches
        return of.steps if of is not None else None


@dataclass(frozen=True)
class Seen:
    """A source that was looked at, and the columns it has once they are renamed and the prompt is made.

    `rows` are its rows in that form, the first of them where they are very many; None where they cannot be had yet.
    """

    source: Source
    preview: Preview
    columns: tuple[str, ...]
    rows: RowTable | None


Check: TypeAlias = Callable[[Experiment, Composed, Known], Iterable[UserError]]


def nothing_known(experiment: Experiment, folder: Path | None = None) -> Known:
    """Return what is known of an experiment before anything was looked at."""
    return Known(
        trainer=trl_args.trainer(experiment.trainer.trl),
        processes=planned_processes(experiment.launch),
        folder=folder,
    )
