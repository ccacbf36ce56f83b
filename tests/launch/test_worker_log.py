"""The log of one rank: what libraries log or warn is in log.txt, a repeated warning once, and nothing stays behind."""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from pathlib import Path

import pytest

from rlhf_cli.launch import worker
from rlhf_cli.launch.worker import logging_into
from rlhf_cli.runs.run_folder import RunFolder

LIBRARY = logging.getLogger("some.library")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def messages(folder: RunFolder) -> list[str]:
    """The lines of log.txt without the time they begin with."""
    lines = folder.log.read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} rank", line) for line in lines)
    return [line.split(" ", 2)[2] for line in lines]


def test_a_repeated_warning_is_written_and_counted_once_and_a_log_is_appended_to(folder: RunFolder) -> None:
    with logging_into(folder, 3) as count:
        for step in (1, 1, 2):
            LIBRARY.warning("at step %d", step)
            LIBRARY.error("größer als 3")
            LIBRARY.debug("of interest to nobody")
        assert count() == 2
    with logging_into(folder, 3) as count:
        LIBRARY.info("second")
        assert count() == 0
    warned = [f"rank3 WARNING some.library: at step {step}" for step in (1, 2)]
    wrong = "rank3 ERROR some.library: größer als 3"
    assert messages(folder) == [warned[0], wrong, wrong, warned[1], wrong, "rank3 INFO some.library: second"]


@pytest.mark.parametrize("said_by", ["warnings", "logging"])
def test_a_warning_of_a_library_is_written_and_not_counted(folder: RunFolder, said_by: str) -> None:
    """The same call, compiled as a file of a package and as one of the user's."""
    call = "warnings.warn('it will go', FutureWarning)" if said_by == "warnings" else "LIBRARY.warning('it will go')"
    found = importlib.util.find_spec("transformers")
    assert found is not None
    assert found.origin is not None
    counts = []
    beside = folder.path / "target"  # pip install --target
    for inner in ("package", "package-1.0.dist-info", "package/inner"):
        (beside / inner).mkdir(parents=True)
    for file in ("__init__.py", "inner/__init__.py"):
        (beside / "package" / file).touch()
    files = (f"{Path(found.origin).parent}/trainer.py", "/home/me/rewards.py", "<frozen importlib>", worker.__file__)
    others = ("/envs/other/lib/python3.11/site-packages/trl/x.py", f"{beside}/package/inner/one.py")
    for file in (*files, *others):
        with logging_into(folder, 0) as count, warnings.catch_warnings():
            warnings.simplefilter("always")
            for _ in range(2):
                exec(compile(call, file, "exec"), {"warnings": warnings, "LIBRARY": LIBRARY})
            counts.append(count())
    assert counts == [0, 1, 0, int(said_by == "logging"), 0, 0]
    assert folder.log.read_text().count("it will go") >= 3


def test_each_machine_has_a_log_of_its_own(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that append to one file of a network's file system lose lines."""
    for group, name in (("0", "log.txt"), ("1", "log-machine2.txt")):
        monkeypatch.setenv("GROUP_RANK", group)
        with logging_into(folder, int(group)):
            LIBRARY.info("said on machine %s", group)
        assert f"said on machine {group}" in (folder.path / name).read_text()
    assert "said on machine 1" not in folder.log.read_text()
