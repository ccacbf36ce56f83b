"""Define what the checks are about (a Subject), the facts that they return, and the Report of problems and notices.

A check is a generator that decides itself if it applies: it yields errors and notices, or raises an error if it cannot
continue, and returns its facts, which later checks take as arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.peeking import Preview
from rlhf_cli.data.rows import RowTable, hold_out_places
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import Problems, UserError
from rlhf_cli.models.tokenizer_files import TokenizerFiles, adapter_base, read_json
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.rewards.completion_text import ColumnCheck
from rlhf_cli.text.json_values import JsonTree

Facts = TypeVar("Facts")
Check: TypeAlias = Generator[UserError | Notice, None, Facts]
Findings: TypeAlias = Check[None]  # a check without facts


@dataclass
class Report:
    """The problems and notices of all checks."""

    problems: dict[str, UserError] = field(default_factory=dict)  # by their text: two checks may read the same bad file
    notices: list[Notice] = field(default_factory=list)

    def run(self, check: Check[Facts], otherwise: Facts) -> Facts:
        """Run a check; return its facts, or `otherwise` if it raised an error."""
        try:
            while True:
                finding = next(check)
                if isinstance(finding, Notice):
                    self.notices.append(finding)
                else:
                    self.problems[str(finding)] = finding
        except StopIteration as end:
            facts: Facts = end.value
            return facts
        except Problems as error:
            self.problems |= {str(problem): problem for problem in error.problems}
        except UserError as error:
            self.problems[str(error)] = error
        return otherwise

    def run_all(self, *checks: Findings) -> None:
        """Run checks without facts, in order."""
        for check in checks:
            self.run(check, None)


def config_in(folder: Path, name: str = "config.json") -> JsonTree:
    """Return a JSON file in a folder; empty if it does not exist or is not JSON."""
    try:
        return read_json(folder / name) if (folder / name).is_file() else {}
    except UserError:
        return {}  # the check that describes the model reports it


@dataclass(frozen=True)
class Subject:
    """The experiment to check, where its values come from, its processes and its models.

    `folder` is that of a resumed run, None for a new one in `run.root`. `cached` maps a hub model to its cache folder,
    and `tokenizer` is the policy's: empty, and None, until their checks have found them, or if they are not on this
    machine. `modules` are those that were imported before any user code.
    """

    experiment: Experiment
    composed: Composed
    processes: int
    folder: Path | None = None
    cached: Mapping[str, Path] = field(default_factory=dict)
    tokenizer: TokenizerFiles | None = None
    modules: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))

    def where(self, key: str) -> str:
        """Return a key with the file and line that set it."""
        return self.composed.origins.where(key)

    def named_models(self) -> dict[str, str]:
        """Return key -> the model that it names, for every key that names a model whose weights are loaded."""
        critic, rewards, teacher = self.experiment.critic, self.experiment.rewards, self.experiment.teacher
        named = {"model.path": self.experiment.model.path, "teacher.path": teacher.path if teacher else None}
        if critic is not None and critic.init != "policy":
            named["critic.init"] = critic.init
        named |= {f"rewards.{name}.model": reward.model for name, reward in rewards.items()}
        return {key: path for key, path in named.items() if path is not None}

    def folder_of(self, path: str | None) -> Path | None:
        """Return the local folder of a model; None for a hub model that is not in the cache."""
        if path is None:
            return None
        place = Path(path).expanduser()
        return place if place.is_dir() else self.cached.get(path)

    def loaded_models(self) -> Iterator[tuple[str, Path]]:
        """Yield the key and the folder of every model that is loaded, and of the bases of adapters."""
        own = [(key, self.folder_of(path)) for key, path in self.named_models().items()]
        bases = [(key, self.folder_of(adapter_base(folder))) for key, folder in own if folder is not None]
        for key, folder in [*own, *bases]:
            # Without either file, the check that describes the model reports the error.
            if folder is not None and any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
                yield key, folder

    def config_below(self, path: str | None, name: str = "config.json") -> JsonTree:
        """Return a model's config.json, or that of an adapter's base; empty if it is not here, or is not JSON."""
        folder = self.folder_below(path)
        return {} if folder is None else config_in(folder, name)

    def folder_below(self, path: str | None) -> Path | None:
        """Return a model's folder, or that of an adapter's base, into which a run merges it; None if it is not here."""
        folder = self.folder_of(path)
        return self.folder_of((folder and adapter_base(folder)) or path)

    @property
    def reads_images(self) -> bool | None:
        """Return whether the model reads images; None if its config.json is not on this machine."""
        model = self.experiment.model
        config = self.config_below(model.path)
        return "vision_config" in config if config or model.build is not None else None


@dataclass(frozen=True)
class ReadSource:
    """A source that was read, and its columns after renaming and building the prompt. `rows` are its rows in that form
    (only the first ones of a very large source); None if they are not available yet. `num_selected` is the number of
    rows that `select` takes, None if unknown.
    """

    source: DataSource
    preview: Preview
    columns: tuple[str, ...]
    rows: RowTable | None
    num_selected: int | None


@dataclass(frozen=True)
class DataFacts:
    """The rows of a run, as far as they could be read; `described` says in words where they come from. `columns` are
    those of all training sources. `num_rows` and `num_held_out` are None if they are not known yet. `dropped` maps the
    name of a source to the rows that these leave out.
    """

    training: tuple[ReadSource, ...] = ()
    held_out: tuple[ReadSource, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    described: str = ""
    columns: tuple[str, ...] = ()
    num_rows: int | None = None
    num_held_out: int | None = None
    dropped: dict[str, set[int]] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[ReadSource, ...]:
        """Return the training sources and the held-out one."""
        return self.training + self.held_out

    def without(self, read: ReadSource, dropped: Collection[int], experiment: Experiment) -> DataFacts:
        """Return the facts without these rows of a source, which a run drops after it has held rows out."""
        fraction, name = experiment.data.fraction, read.source.name
        gone = {*dropped} - self.dropped.get(name, set())
        held = len(gone) if read in self.held_out else 0
        if fraction is not None and read in self.training and gone and read.rows is not None and self.num_rows:
            held = len(gone & {*hold_out_places(read.rows, fraction, experiment.seed)[1]})
        rows = None if self.num_rows is None else self.num_rows - (len(gone) - held)
        held_out = None if self.num_held_out is None else self.num_held_out - held
        known = self.dropped | {name: gone | self.dropped.get(name, set())}
        return replace(self, num_rows=rows, num_held_out=held_out, dropped=known)


@dataclass
class RewardFacts:
    """What the reward functions read. `columns` maps a reward's name to the columns that it requires,
    `missing_arguments` to those of them that, by their annotation, are arguments without a value, `checks` to what a
    ready-made one asks about the values of its columns. `logs` says that a function takes `log_metric`; `comparing`
    names the rewards that compare the rows of a prompt.
    """

    logs: bool = False
    comparing: list[str] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)
    missing_arguments: dict[str, list[str]] = field(default_factory=dict)
    checks: dict[str, Mapping[str, ColumnCheck]] = field(default_factory=dict)
