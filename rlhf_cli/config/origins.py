"""Record where each value came from: the file and line, or the command line, that set it last in Hydra's order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rlhf_cli.errors import ConfigError
from rlhf_cli.text.regular_files import SAFE_LOADER

COMMAND_LINE = "command line"
_OTHER_BASE = re.compile(r"[-+]?\d[\d_]*:|[-+]?0[0-7_]+$")


@dataclass(frozen=True)
class Origin:
    """Where a value was set. `file` is None for the command line, `line` (from 1) is None if it is unknown."""

    file: Path | None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return COMMAND_LINE
        relative = os.path.relpath(self.file)
        shown = relative if not relative.startswith("../..") else f"{self.file.parent.name}/{self.file.name}"
        return f"{shown}:{self.line}" if self.line else shown


@dataclass
class Origins:
    """A map of dotted key -> Origin, filled in the order of the merge."""

    by_key: dict[str, Origin] = field(default_factory=dict)
    single: set[str] = field(default_factory=set)
    """Keys that a file sets to a value without keys below it, usually null."""
    not_as_written: dict[str, str] = field(default_factory=dict)
    """Key -> a number's text in a file, where YAML 1.1 reads another one: 12:30:45 in base 60, 017 in base 8."""
    shapes: dict[str, type[yaml.Node | None]] = field(default_factory=dict)
    """Whether a file sets a key to a mapping, a list or a plain value."""
    unlike: list[tuple[str, Origin, Origin]] = field(default_factory=list)
    """Keys that are a list in one file and a mapping in an earlier one, or the reverse; OmegaConf merges neither."""
    chosen_twice: list[ConfigError] = field(default_factory=list)
    """An error for each group that one defaults list chooses twice; of two overrides Hydra reads the first."""

    def add_file(self, file: Path, package: str) -> None:
        """Record every key of a YAML file whose content goes under `package` ('' for the top level)."""
        if package:
            self.by_key.setdefault(package, Origin(file))
        waiting = [(package, 0, yaml.compose(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER))]
        while waiting:
            key, line, node = waiting.pop()
            entries = node.value if isinstance(node, yaml.MappingNode) else None
            if line:
                self.note_shape(key, type(node), Origin(file, line))
                self.by_key[key] = Origin(file, line)
                self.single.discard(key)
                self.single |= {key} if entries is None else set()
                self.not_as_written.pop(key, None)
                parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
                ints = [part.value for part in parts if isinstance(part, yaml.ScalarNode) and part.tag.endswith(":int")]
                for text in filter(_OTHER_BASE.match, ints):
                    self.not_as_written[key] = text
            for key_node, below in reversed(entries or ()):
                name = f"{key}.{key_node.value}" if key else str(key_node.value)
                if key != package or key_node.value != "defaults":
                    waiting.append((name, key_node.start_mark.line + 1, below))
                else:
                    self._note_choices(file, below)

    def _note_choices(self, file: Path, defaults: yaml.Node) -> None:
        """Record an error for each group that stands twice in the defaults list of a file."""
        lines = dict[str, int]()
        entries = [node for node in defaults.value if isinstance(node, yaml.MappingNode) and node.value]
        for group in (entry.value[0][0] for entry in entries):
            chosen, at = str(group.value).removeprefix("override ").strip(" /"), group.start_mark.line + 1
            if lines.setdefault(chosen, at) != at:
                what, where = "a defaults list chooses one group twice", str(Origin(file, at))
                expected = f"either this line or line {lines[chosen]}"
                self.chosen_twice.append(ConfigError(what, where=where, got=group.value, expected=expected))

    def note_shape(self, key: str, shape: type[yaml.Node | None], origin: Origin) -> None:
        """Record the shape of a key's value, and whether it is unlike the one before."""
        if {self.shapes.get(key), shape} == {yaml.MappingNode, yaml.SequenceNode}:
            self.unlike.append((key, self.by_key[key], origin))
        self.shapes[key] = shape

    def add_command_line(self, keys: Iterable[str]) -> None:
        """Record that these dotted keys were given on the command line."""
        for key in keys:
            # A value from the command line also replaces every value that the files set below it.
            for known in [known for known in self.by_key if known.startswith(key + ".")]:
                self.by_key[known] = Origin(None)
            self.by_key[key] = Origin(None)
            self.not_as_written.pop(key, None)
            # A null becomes a section when a key below it is given: `stop.when=...` is then all of `stop`.
            parts = key.split(".")
            for parent in (".".join(parts[:place]) for place in range(1, len(parts))):
                if parent in self.single:
                    self.by_key[parent] = Origin(None)

    def of(self, key: str) -> Origin | None:
        """Return the origin of `key`, or of a key below it, or of the nearest parent that has one; else None."""
        below = [known for known in self.by_key if known.startswith(key + ".")]
        if below and key not in self.by_key:
            return self.by_key[below[-1]]
        while key:
            if key in self.by_key:
                return self.by_key[key]
            key = key.rpartition(".")[0]
        return None

    def where(self, key: str) -> str:
        """Return `rewards.x.weight (conf/exp/mine.yaml:12)` for error messages; without an origin only the key."""
        origin = self.of(key)
        return f"{key} ({origin})" if origin else key

    def error(
        self, key: str, what: str, got: object = None, hint: str | None = None, **words: str | None
    ) -> ConfigError:
        """Return an error about a key, with its place; `words` are what was `expected` and an `advice`."""
        return ConfigError(what, where=self.where(key), got=got, hint=hint, **words)
