"""Test the mutation tester on a project of one function, whose tests notice one mistake and miss another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.mutants.mutations import drawn, mutants_of
from scripts.mutants.project import OURS
from scripts.mutants.reach import MeasuredTest, chosen

pytestmark = pytest.mark.whole

LITTLE = '''"""Prices."""


def price(count: int, each: int, rebate: int) -> int:
    """Return what `count` cost."""
    if count >= 10:
        rebate += 1
    return count * each - rebate
'''
LONELY = "def lonely(count: int) -> int:\n    return count + 1\n"
TESTS = """from little.price import price


def test_price():
    assert price(2, 3, 0) == 6
    assert price(20, 3, 0) == 59
"""
COMMAND = """
import sys
from pathlib import Path
from scripts.mutants.__main__ import main
from scripts.mutants.project import Project
little = Project(Path(sys.argv[1]), ("little", "tests"), ("little",))
sys.exit(main(sys.argv[2:], little))
"""


@pytest.fixture
def judge(tmp_path: Path):
    for place in ("little/alone", "tests", "docs/development", "scripts/mutants"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "little" / "price.py").write_text(LITTLE)
    (tmp_path / "little" / "alone" / "lonely.py").write_text(LONELY)
    (tmp_path / "tests" / "test_price.py").write_text(TESTS)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", COMMAND, str(tmp_path), *words]
        return subprocess.run(command, cwd=OURS.root, capture_output=True, text=True, timeout=120, check=False)

    return run


def outcomes(output: str) -> dict[str, str]:
    lines = [line.split("]", 1) for line in output.splitlines() if line[:1].isdigit() and "/" in line.split()[0]]
    return {change.split("  tests")[0].strip(): head.split()[1] for head, change in lines}


@pytest.mark.slow
def test_mutants_are_killed_survive_or_are_unreached(judge, tmp_path: Path) -> None:
    ended = judge("--lines", "1")
    assert ended.returncode == 1, ended.stderr
    found = outcomes(ended.stdout)
    assert found["count * each  ->  (count / each)"] == "killed"
    assert found["count * each - rebate  ->  (count * each + rebate)"] == "killed"
    assert found["count >= 10  ->  (count > 10)"] == "survived"  # no test buys ten
    assert found["count + 1  ->  (count - 1)"] == "unreached"
    page = (tmp_path / "docs" / "development" / "mutants.md").read_text()
    assert "| little/price.py:6 | price | `count >= 10` | `(count > 10)` |" in page
    assert "no test reaches it" in page
    assert ", seed 0: " in page  # without a commit: the folder is not in git
    assert (tmp_path / "little" / "price.py").read_text() == LITTLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_a_test_mounts_is_not_mounted_on_the_machine(judge, tmp_path: Path) -> None:
    """A mutant of the sandbox, which no longer separates its mounts, once hid this machine's root."""
    test = tmp_path / "tests" / "test_price.py"
    mounts = f"assert os.system('mount -t tmpfs none {tmp_path}/little/alone') == 0"
    test.write_text(f"import os\n\n{TESTS}\n\ndef test_mount():\n    {mounts}\n    assert price(1, 1, 1) == 0\n")
    assert judge("--file", "little/price.py").returncode in (0, 1)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_an_explained_survivor_is_counted_but_not_listed(judge, tmp_path: Path) -> None:
    (tmp_path / "scripts" / "mutants" / "survivors.toml").write_text(
        '[[survivor]]\nin = "little/price.py: price"\nchange = "count >= 10 -> (count > 10)"\n'
        'equivalent = "Ten cost the same in both."\n'
    )
    ended = judge("--lines", "1", "--grep", "count >= 10")
    assert ended.returncode == 0, ended.stderr
    page = ended.stdout
    assert "little/price.py:6 | price" not in page
    assert "| all | 1 | 0 | 1 | 1 | 0.0 % |  |" in page


@pytest.mark.slow
def test_verdicts_are_kept_while_file_and_killer_are_there(judge, tmp_path: Path) -> None:
    kept = ("--lines", "1", "--grep", "price.py", "--keep-kills")
    first = outcomes(judge(*kept).stdout)
    again = judge(*kept).stdout
    assert outcomes(again) == first
    killed = sum(outcome == "killed" for outcome in first.values())
    assert 0 < killed < len(first)
    assert f" {killed} of the verdicts are from earlier commits" in again
    (tmp_path / "tests" / "test_price.py").write_text(TESTS.replace("test_price()", "test_other()"))
    assert "earlier commits" not in judge(*kept).stdout
    (tmp_path / "little" / "price.py").write_text(LITTLE.replace('"""Prices."""', '"""All prices."""'))
    assert f" {killed} of the verdicts are from" in judge(*kept).stdout
    (tmp_path / "little" / "price.py").write_text(LITTLE.replace("Return what", "Return all that"))
    assert "earlier commits" not in (changed := judge(*kept).stdout)
    assert outcomes(changed) == first


def test_a_test_that_fails_unmutated_or_ends_its_process_stops_the_run(judge, tmp_path: Path) -> None:
    for tests in (TESTS.replace("59", "60"), TESTS + "    __import__('os')._exit(0)\n"):
        (tmp_path / "tests" / "test_price.py").write_text(tests)
        ended = judge()
        assert ended.returncode == 2
        assert "tests/test_price.py is red without a mutation" in ended.stderr
        assert outcomes(ended.stdout) == {}


def test_a_test_that_only_fails_after_others_kills_nothing(judge, tmp_path: Path) -> None:
    """It is slower than the one that disturbs it, so the tester runs it second, and pytest first."""
    slow = "def test_slow():\n    assert sum(range(10**7)) and price(20, 3, 0) and not SEEN\n"
    disturbed = TESTS.replace("def test_price():", f"SEEN = []\n\n{slow}\n\ndef test_price():\n    SEEN.append(1)")
    (tmp_path / "tests" / "test_price.py").write_text(disturbed)
    ended = judge("--file", "little/price.py", "--jobs", "1")
    assert "left out: tests/test_price.py::test_slow fails unmutated, too, after 1 others" in ended.stderr
    found = outcomes(ended.stdout)
    assert found["count >= 10  ->  (count > 10)"] == "survived"
    assert found["count * each  ->  (count / each)"] == "killed"


def test_every_mutant_is_one_change_that_parses() -> None:
    files = list(OURS.mutated_files())
    assert len(files) == len(set(files)) > 100  # none twice
    for file in files[::40]:
        source = (OURS.root / file).read_text(encoding="utf-8")
        mutants = mutants_of(source, file)
        for mutant in mutants:
            compile(mutant.applied(source), file, "exec")
            assert mutant.applied(source) != source
        assert len({mutant.name for mutant in mutants}) == len(mutants)


def test_invisible_code_is_not_mutated() -> None:
    source = '''"""One < two."""
from __future__ import annotations
from dataclasses import dataclass
@dataclass(frozen=True)
class A:
    b: list[int] | None
    def c(self, d: int) -> int:
        raise ValueError(f"{d + 1}")
    def draw(self, axes):
        axes = axes.plot(self, color="red", linewidth=1 + 2)
'''
    assert mutants_of(source, "a.py") == []


def test_a_seed_gives_the_same_sample_with_the_count_of_each_room() -> None:
    by_room = [mutants_of(LITTLE, "a.py"), mutants_of(LITTLE + LITTLE, "b.py")]
    sample = drawn(by_room, [4, 4], seed=1)
    assert sample == drawn(by_room, [4, 4], seed=1) != drawn(by_room, [4, 4], seed=2)
    assert [mutant.file for mutant in sample] == ["a.py"] * 4 + ["b.py"] * 4
    assert len(set(drawn(by_room, [999, 999], seed=1))) == len(by_room[0]) + len(by_room[1])


def test_a_file_belongs_to_the_innermost_room() -> None:
    assert [place for place in (*OURS.rooms, *OURS.not_judging) if not (OURS.root / place).exists()] == []
    assert OURS.room("rlhf_cli/trainers/ppo/critic.py") == "rlhf_cli/trainers/ppo"
    assert OURS.room("rlhf_cli/trainers/pass_mixin.py") == "rlhf_cli/trainers"


def test_the_nearest_tests_come_first_and_the_budget_ends_them() -> None:
    mutant = next(mutant for mutant in mutants_of(LITTLE, "little/price.py") if mutant.before == "count >= 10")
    lines = {"little/price.py": frozenset([6, 8])}
    far = MeasuredTest("tests/far/test_all.py::test_a", 0.1, 0.1, lines)
    near = [MeasuredTest(f"tests/little/test_price.py::test_{n}", n, n, lines) for n in (3, 1)]
    elsewhere = MeasuredTest("tests/little/test_price.py::test_b", 0.1, 0.1, {"little/price.py": frozenset([12])})
    stranger = MeasuredTest("tests/other/test_other.py::test_c", 0.1, 0.1, {})
    assert list(chosen(mutant, [far, *near, elsewhere, stranger], 60)) == [[near[1], near[0], elsewhere], [far]]
    assert list(chosen(mutant, [far, *near], 2)) == [[near[1]], [far]]
    # What runs at import is tested by its folder and its importers: conftest.py may have imported it before the trace.
    (mutant,) = mutants_of("LIMIT = 3\n", "package/other/limits.py")
    importer = MeasuredTest("tests/import/test_it.py::test_d", 1, 1, {"package/other/limits.py": frozenset([1])})
    assert list(chosen(mutant, [stranger, importer, far], 60)) == [[stranger], [importer]]
