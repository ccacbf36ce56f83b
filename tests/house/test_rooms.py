"""The house has no circle: the graph of imports is computed, of files and of rooms, and held against what a room is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import structure

MODULES = structure.modules()
FILES = structure.file_graph(MODULES)
ROOMS = structure.room_graph(FILES)
TESTS = sorted((structure.ROOT / "tests").rglob("*.py"))
MOST_LINES = 500

MUST_NOT_KNOW = {
    "numerics": set(ROOMS) - {"json_values"},
    "tables": set(ROOMS),
    "errors": set(ROOMS),
    "suggest": set(ROOMS),
    "sandbox": set(ROOMS) - {"errors"},
    "remote": set(ROOMS) - {"errors", "suggest", "template_grammar", "cache_folder"},
    "rewards": {"config", "stack", "models", "trainers", "runs", "plan"},
    "stack": {"config", "plan", "data", "models", "trainers", "runs"},
    "models": {"config", "plan", "data", "rewards", "stack", "trainers", "runs"},
    "data": {"config", "plan", "models", "rewards", "stack", "trainers", "runs"},
    "tracking": {"config", "plan", "data", "models", "rewards", "stack", "trainers", "launch", "screen"},
    "runs": {"config", "plan", "data", "models", "rewards", "stack", "trainers"},
    "trainers": {"config", "plan", "data", "models", "rewards"},
    "comparison": {"config", "plan", "data", "models", "rewards", "stack", "trainers", "launch", "jobs", "screen"},
    "measure": {"config", "plan", "trainers"},
    "redaction": set(ROOMS),
    "cli": set(ROOMS)
    - {
        "verbs",
        "usage",
        "tables",
        "told",
        "folded_help",
        "errors",
        "suggest",
        "immediate_exit",
        "lasting_output",
        "json_output",
        "launch",  # how a process is left
        "redaction",
        "stopped_early",
        "terminal_output",
    },
}
"""Room -> the rooms whose words it must not use, whether or not that would close a circle."""


def trespasses(rooms: structure.Graph) -> list[tuple[str, str]]:
    """Every (room, other) where a room imports one that it must not know."""
    return [(room, other) for room, walls in MUST_NOT_KNOW.items() for other in sorted(rooms[room] & walls - {room})]


def test_there_are_files() -> None:
    assert len(MODULES) > 200
    assert {"config", "plan", "launch", "assemble", "stack", "trainers"} <= set(ROOMS)


def test_no_circle_of_rooms() -> None:
    assert structure.circles(ROOMS) == []


def test_no_circle_of_files() -> None:
    assert structure.circles(FILES) == []


def test_no_room_knows_what_it_must_not() -> None:
    assert trespasses(ROOMS) == []


def test_negative_control_a_planted_import_closes_a_circle(tmp_path: Path) -> None:
    package = tmp_path / structure.PACKAGE
    for module, source in {
        "top.one": "from rlhf_cli.middle import two",
        "middle.two": "def later():\n    from rlhf_cli.bottom.three import name",
        "bottom.three": "from rlhf_cli.top.one import name",
        "aside.four": "import rlhf_cli.bottom.three",
    }.items():
        room, name = module.split(".")
        (package / room).mkdir(parents=True, exist_ok=True)
        (package / room / f"{name}.py").write_text(source)
    known = structure.modules(tmp_path)
    files = structure.file_graph(known)
    assert structure.circles(files) == [["rlhf_cli.bottom.three", "rlhf_cli.middle.two", "rlhf_cli.top.one"]]
    assert structure.circles(structure.room_graph(files)) == [["bottom", "middle", "top"]]


@pytest.mark.parametrize(("room", "other"), [("trainers", "config"), ("numerics", "errors"), ("data", "models")])
def test_negative_control_a_trespass_is_seen(room: str, other: str) -> None:
    assert trespasses({**ROOMS, room: ROOMS[room] | {other}}) == [(room, other)]


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}, [["a", "b", "c"], ["d", "e"]]),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}, []),
    ],
)
def test_circles_of_small_graphs(graph: structure.Graph, found: list[list[str]]) -> None:
    assert structure.circles(graph) == found


@pytest.mark.parametrize("file", [*MODULES.values(), *TESTS], ids=lambda file: str(file.relative_to(structure.ROOT)))
def test_a_file_is_short_and_says_what_it_is(file: Path) -> None:
    assert structure.num_lines(file) <= MOST_LINES
    source = file.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source)) or not source.strip()
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(source)))


def test_a_name_stands_for_one_file() -> None:
    assert len(structure.shared_basenames(MODULES.values())) <= 4


def test_no_test_takes_from_a_conftest() -> None:
    assert [file for file in TESTS if ".conftest import" in file.read_text() and file != Path(__file__)] == []
