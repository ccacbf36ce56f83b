"""Imports go one way. What each part of the house may import is written here, and every file is held against it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "rlhf_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 300

FOR_ALL = {"errors", "suggest"}
ROOMS = {"models", "data", "rewards", "trainers"}

MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"cli"},
    "cli": {"verbs"},
    "verbs": {"config", "plan", "launch", "runs", "screen", "score", "evaluate"},
    "screen": {"config", "plan", "runs"},
    "plan": {"config", "launch.devices", "data", "rewards", "models.locate", "runs"},
    "launch": {"config", "runs", "worker"},
    "worker": {"config.schema", "assemble", "runs", "trainers"},
    "assemble": {
        *("config.schema", "assemble_model", "assemble_ppo", "assemble_reward_model", "assemble_rewards"),
        *("plan.sources", "runs.folder", "evaluate.during", *ROOMS),
    },
    "assemble_model": {"config.schema", "models"},
    "assemble_ppo": {"config.schema", "models", "trainers"},
    "assemble_reward_model": {"config.schema", "data", "plan.pairs", "runs.folder", "trainers"},
    "assemble_rewards": {"config.schema", "plan.components", "models", "rewards"},
    "score": {"config.schema", "assemble_rewards", *ROOMS},
    "evaluate": {"config.schema", "score", "plan.sources", "runs", "numerics", *ROOMS},
    "testing": {"rewards"},
    "config": {"numerics.intervals"},
    "runs": {"numerics"},
    "models": {"numerics"},
    "data": {"numerics"},
    "rewards": {"numerics"},
    "trainers": {"runs", "numerics"},
    "numerics": set(),
    "errors": set(),
    "suggest": set(),
}
"""Part -> the parts (or single modules) it may import, beside itself and, numerics excepted, errors and suggest."""


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(source: str) -> Iterator[str]:
    """Dotted names below rlhf_cli, deferred imports included: `config.schema`, or `config.schema.Experiment`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield "a relative import"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        yield from (name.removeprefix("rlhf_cli.") for name in names if name.startswith("rlhf_cli."))


def trespasses(part: str, source: str) -> list[str]:
    """The imports of a source text that `part` may not make."""
    allowed = {part, *MAY_IMPORT[part]} | (FOR_ALL if part not in {"numerics", *FOR_ALL} else set())
    allowed |= {"__version__"}
    return [name for name in imported(source) if not any(name == one or name.startswith(one + ".") for one in allowed)]


def test_there_are_files() -> None:
    assert len(FILES) > 60


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_file(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert part_of(file) in MAY_IMPORT, "a new part of the house: say above what it may import"
    assert trespasses(part_of(file), source) == []
    assert len(source.splitlines()) <= MOST_LINES
    assert ast.get_docstring(ast.parse(source)) or not source.strip() or part_of(file) == "__init__"


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("config", "from rlhf_cli.runs.folder import RunFolder"),
        ("runs", "import rlhf_cli.data.load"),
        ("runs", "from rlhf_cli import rewards"),
        ("rewards", "from rlhf_cli.models import locate"),
        ("models", "from rlhf_cli.config.schema import Model"),
        ("trainers", "def f():\n    from rlhf_cli.rewards.stack import RewardStack"),
        ("trainers", "from rlhf_cli.config.schema import Trainer"),
        ("plan", "from rlhf_cli.launch.local import run"),
        ("plan", "from rlhf_cli.models.tiny import tiny_model_path"),
        ("cli", "from rlhf_cli.config.compose import compose"),
        ("launch", "from rlhf_cli.assemble import assemble"),
        ("assemble", "from rlhf_cli.config.compose import compose"),
        ("assemble_rewards", "from rlhf_cli.trainers.settle import settle"),
        ("score", "from rlhf_cli.assemble import assemble"),
        ("testing", "from rlhf_cli.trainers.settle import settle"),
        ("data", "from ..rewards import toy"),
        ("numerics", "from rlhf_cli.errors import UserError"),
        ("errors", "from rlhf_cli.suggest import nearest"),
    ],
)
def test_negative_control_a_trespass_is_seen(part: str, source: str) -> None:
    assert len(trespasses(part, source)) == 1


def test_negative_control_what_is_allowed_is_not_one() -> None:
    source = "import os\nimport rlhf_cli\nfrom rlhf_cli.launch.devices import num_gpus\nfrom rlhf_cli.data import peek"
    assert trespasses("plan", source) == []
