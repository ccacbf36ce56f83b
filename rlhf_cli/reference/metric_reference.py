"""Describe the logged metrics, read from the tables of docs/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_cli.errors import ConfigError
from rlhf_cli.suggest import nearest

_PACKAGE = Path(__file__).resolve().parents[1]
_HEADING = re.compile(r"^#+ (.+)$")
_NAME = re.compile(r"`([^`]+)`")
_CELL = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@dataclass(frozen=True)
class MetricReference:
    """A metric of metrics.jsonl. `group` is its heading; `more` maps the other column heads to their cells."""

    name: str
    text: str
    group: str
    more: dict[str, str] = field(default_factory=dict)


def metrics_about(words: Sequence[str]) -> list[MetricReference]:
    """Return the metrics with all of `words` in their name or meaning; all metrics for no words.

    Raises ConfigError if there is no such metric.
    """
    known = list(all_metrics())
    wanted = [word.lower() for word in words]
    found = [one for one in known if all(word in f"{one.name} {one.text}".lower() for word in wanted)]
    if not found:
        close = nearest(" ".join(words), [one.name for one in known])
        raise ConfigError(
            f"no metric has {' and '.join(map(repr, words))} in its name or meaning",
            where="rlhf list metrics",
            hint=f"rlhf list metrics {close}" if close else "rlhf list metrics",
        )
    return sorted(found, key=lambda one: not all(word in one.name.lower() for word in wanted)) if wanted else found


def all_metrics() -> Iterator[MetricReference]:
    """Yield the metrics in the tables' order. Raises FileNotFoundError if the installation lacks the document."""
    group, heads = "", list[str]()
    for line in _file().read_text(encoding="utf-8").splitlines():
        if match := _HEADING.match(line):
            group, heads = match[1], []
        elif not line.startswith("|"):
            heads = []
        elif not heads:
            heads = _cells(line)
        elif heads[0] == "metric" and not line.startswith("|-"):
            yield from _of_row(_cells(line), heads, group)


def _of_row(cells: list[str], heads: list[str], group: str) -> Iterator[MetricReference]:
    """Yield the metrics of a row; a name that begins with `/` replaces the last part of the name before it."""
    before = ""
    text = _plain(cells[1]) if len(cells) > 1 else ""
    more = {head: _plain(cell) for head, cell in zip(heads[2:], cells[2:], strict=False) if cell}
    for name in _NAME.findall(cells[0]):
        whole = f"{before.rpartition('/')[0]}{name}" if name.startswith("/") else name
        before = whole
        yield MetricReference(whole, text, group, more)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in _CELL.split(line)[1:-1]]


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text).replace("\\|", "|")


def _file() -> Path:
    """Return the document: inside the package in a wheel, beside it in a checkout."""
    beside, inside = _PACKAGE.parent / "docs" / "metrics.md", _PACKAGE / "metrics.md"
    return beside if (_PACKAGE.parent / "pyproject.toml").is_file() else inside
