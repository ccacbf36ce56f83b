"""Holds facts about an experiment that the checks share: each check reads what it needs and adds its results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.peeking import Preview
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import UserError
from rlhf_cli.models.tokenizer_files import TokenizerFiles, read_json
from rlhf_cli.plan.batches import BatchPlan, StagePlan
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.text.json_values import JsonTree


@dataclass
class CheckContext:
    """Facts about a run. A field stays empty if its check has not run yet or has no result.

    `folder` is that of a resumed run; None for a new one, which will be created in `run.root`.
    """

    experiment: Experiment
    processes: int
    folder: Path | None = None
    cached: dict[str, Path] = field(default_factory=dict)
    """Maps a hub model to its folder in the cache."""
    tokenizer: TokenizerFiles | None = None
    """The policy's tokenizer, if its files are on this machine."""
    model: str = ""
    data: str = ""
    columns: tuple[str, ...] = ()
    used_columns: set[str] = field(default_factory=set)
    """The columns that the trainer reads; empty if that is not known."""
    num_rows: int | None = None
    num_held_out: int | None = None
    """Rows that evaluations run on; None if there are none, or if that is not known yet."""
    sources: list[ReadSource] = field(default_factory=list)
    """The training sources, then the held-out one, as far as they could be read."""
    held_out: list[ReadSource] = field(default_factory=list)
    """The held-out source; empty if there is none or it could not be read."""
    reward_columns: dict[str, list[str]] = field(default_factory=dict)
    """Maps a reward's name to the columns it requires."""
    read_by_rewards: set[str | None] = field(default_factory=set)
    """The columns that reward functions take; None among them if one takes all (`**columns`)."""
    missing_arguments: dict[str, list[str]] = field(default_factory=dict)
    """Maps a reward's name to those of its columns that, by their annotation, are arguments without a value."""
    batches: BatchPlan | None = None
    stage: StagePlan | None = None
    steps: int | None = None
    """Optimizer steps of the run; None if the data decides."""
    accelerate_env: dict[str, str] = field(default_factory=dict)
    """What accelerate makes of the file in `launch.accelerate_config`: variables for the ranks."""
    files: dict[str, Path] = field(default_factory=dict)
    modules: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))
    """The modules that were imported before any user code."""
    notices: list[Notice] = field(default_factory=list)
    most_prompt_tokens: int | None = None
    """Upper bound on the tokens of a training prompt, if longer ones are dropped or cut; None if they are kept."""

    def named_models(self) -> dict[str, str | None]:
        """Return key -> the model that it names, for every key that names a model whose weights are loaded."""
        critic, rewards = self.experiment.critic, self.experiment.rewards
        named = {"model.path": self.experiment.model.path}
        if critic is not None and critic.init != "policy":
            named["critic.init"] = critic.init
        return named | {f"rewards.{name}.model": reward.model for name, reward in rewards.items()}

    def folder_of(self, path: str | None) -> Path | None:
        """Return the local folder of a model; None for a hub model that is not in the cache."""
        if path is None:
            return None
        place = Path(path).expanduser()
        return place if place.is_dir() else self.cached.get(path)

    def config_of(self, path: str | None) -> JsonTree:
        """Return a model's config.json; empty if it does not exist or is not JSON."""
        folder = self.folder_of(path)
        try:
            return read_json(folder / "config.json") if folder and (folder / "config.json").is_file() else {}
        except UserError:
            return {}  # the check that describes the model reports it


@dataclass(frozen=True)
class ReadSource:
    """A source that was read, and its columns after renaming and building the prompt.

    `rows` are its rows in that form (only the first ones of a very large source); None if they are not available yet.
    `num_selected` is the number of rows that `select` takes, None if unknown.
    """

    source: DataSource
    preview: Preview
    columns: tuple[str, ...]
    rows: RowTable | None
    num_selected: int | None


Check: TypeAlias = Callable[[Experiment, Composed, CheckContext], Iterable[UserError] | None]
