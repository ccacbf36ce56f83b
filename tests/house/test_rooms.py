"""Test the imports of files and rooms: no circle, no forbidden room, and no large library without a training."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import structure

MODULES = structure.modules()
TESTS = sorted((structure.ROOT / "tests").rglob("*.py"))
MOST_LINES = 500

FOLDERS = set(map(structure.room_of, MODULES)) - {structure.PACKAGE}
WALLS = {
    "config.schema": {"data", "models", "plan", "runs", "launch", "trainers", "display"},
    "numerics": FOLDERS - {"numerics", "text"},
    "tables": FOLDERS - {"tables", "errors"},
    "text": FOLDERS - {"text", "errors"},
    "errors": FOLDERS - {"errors"},
    "services": FOLDERS - {"services", "text", "errors"},
    "rewards": {"config", "plan", "models", "trainers", "runs", "launch", "display"},
    "models": {"config", "plan", "data", "rewards", "trainers", "runs", "launch", "display"},
    "data": {"config", "plan", "models", "rewards", "trainers", "runs", "launch", "display"},
    "runs": {"config", "plan", "data", "models", "rewards", "trainers", "launch", "display"},
    "evaluation": {"trainers", "project", "analysis", "launch", "display"},
    "trainers": {"config", "plan", "data", "launch", "display"},
    "trainers.assemble": {"launch", "display"},
    "analysis": {"display", "launch", "sweeps"},
    "cli": {"trainers", "models", "data"},
}
"""Folder -> folders that it must not import, even if that closes no circle."""


FILES = structure.file_graph(MODULES)
"""Module -> imported modules."""


def trespasses(files: structure.Graph) -> list[tuple[str, str]]:
    """Return (file, room) for every import of a forbidden room."""
    found = []
    for module, imported in files.items():
        name = module.removeprefix(f"{structure.PACKAGE}.")
        folder = max((wall for wall in WALLS if f"{name}.".startswith(f"{wall}.")), key=len, default=None)
        if folder is not None:
            rooms = {structure.room_of(other) for other in imported} & WALLS[folder]
            found += [(name, room) for room in sorted(rooms)]
    return sorted(found)


def test_there_are_files() -> None:
    assert len(MODULES) > 200
    assert {"config", "plan", "launch", "rewards", "trainers"} <= FOLDERS
    assert len({room for room in FOLDERS if (structure.ROOT / structure.PACKAGE / room).is_dir()}) <= 21


def test_no_circle_and_no_import_of_a_forbidden_room() -> None:
    assert structure.circle(FILES) == []
    assert structure.circle(structure.room_graph(FILES)) == []
    assert trespasses(FILES) == []


def test_a_rank_process_does_not_compose() -> None:
    """It reads the frozen file; a process of the command does compose."""

    def reached(start: str) -> set[str]:
        found, to_see = set(), [start]
        while to_see:
            found.add(module := to_see.pop())
            to_see += [other for other in FILES.get(module, set()) if other not in found]
        return found

    assert "rlhf_cli.config.compose" not in reached("rlhf_cli.launch.rank_process")
    assert "rlhf_cli.config.compose" in reached("rlhf_cli.cli.verbs.train")


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
    assert set(structure.circle(files)) == {"rlhf_cli.bottom.three", "rlhf_cli.middle.two", "rlhf_cli.top.one"}
    assert set(structure.circle(structure.room_graph(files))) == {"bottom", "middle", "top"}


@pytest.mark.parametrize(
    ("module", "other"),
    [("trainers.checkpoint_mixin", "config"), ("numerics.ppo", "errors"), ("data.loading", "models")],
)
def test_negative_control_a_forbidden_import_is_noticed(module: str, other: str) -> None:
    key = f"{structure.PACKAGE}.{module}"
    assert trespasses({**FILES, key: FILES[key] | {f"{structure.PACKAGE}.{other}.anything"}}) == [(module, other)]


def test_files_are_short_and_have_a_docstring() -> None:
    """At most MOST_LINES, a docstring at the top, and no relative import."""
    wrong = {}
    for file in [*MODULES.values(), *TESTS]:
        source = file.read_text(encoding="utf-8")
        found = {
            "too long": len(source.splitlines()) > MOST_LINES,
            "no docstring": bool(source) and not source.startswith(('"""', 'r"""')),
            "imports with a dot": re.search(r"^ *from \.", source, re.MULTILINE) is not None,
        }
        if any(found.values()):
            wrong[str(file.relative_to(structure.ROOT))] = [name for name, is_so in found.items() if is_so]
    assert wrong == {}


def test_functions_are_short() -> None:
    long = [
        f"{file.name}: {node.name} has {length} lines"
        for file in MODULES.values()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
        if (length := node.end_lineno - node.lineno + 1) > 60
    ]
    assert long == []


def test_file_names_are_unique() -> None:
    assert len(structure.shared_basenames(MODULES.values())) <= 4


def test_no_test_imports_a_conftest() -> None:
    assert [file for file in TESTS if ".conftest import" in file.read_text() and file != Path(__file__)] == []


# Verbs that train nothing import no training library.

HEAVY = ("torch", "transformers", "trl", "wandb", "datasets", "pandas", "scipy")


def heavy_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('HEAVY', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


COMMANDS = [
    *(["--help"], ["list"], ["show", "+exp=quickstart"], ["check", "+exp=quickstart"]),
    *(["train", "--dry-run", "+exp=quickstart"], ["audit", "+exp=quickstart", "--kinds", "empty"]),
    *(["list", "trainer", "ppo"], ["list", "reward", "trl_repetition"]),
    ["check", "+exp=quickstart", "data=file", "data.path=rows.jsonl", "track=wandb"],
    ["score", "+exp=quickstart", "--completions", "rows.jsonl", "--label", "ok"],  # no reward of it needs a model
]


def test_no_command_that_trains_nothing_imports_a_training_library(place: Path) -> None:
    """One interpreter runs all commands; the first heavy one fails."""
    (place / "rows.jsonl").write_text('{"prompt": "1+1=", "completion": "2", "a": 1, "b": 1, "ok": true}\n' * 9)
    each = f"""
from rlhf_cli.cli import main
for words in {COMMANDS!r}:
    assert main(words) == 0, words
    assert not [name for name in {HEAVY} if name in sys.modules], words
"""
    assert heavy_after(each) == set()


def test_a_rank_process_handles_signals_before_large_imports() -> None:
    assert heavy_after("import rlhf_cli.launch.rank_process") == set()
    assert heavy_after("import rlhf_cli.numerics.intervals, scipy") == {"scipy"}  # negative control
