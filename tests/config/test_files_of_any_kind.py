"""Experiment files in another encoding, pipes and circles are refused with file and line, without a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main

HEAD = "# @package _global_\n# mine\ndefaults:\n  - quickstart\n  - _self_\n"
DEEP = "${oc.select:" * 500 + "x" + "}" * 500


def _circle(file: Path) -> None:
    file.write_text("# @package _global_\ndefaults:\n  - /exp/other\n")
    file.with_name("other.yaml").write_text("# @package _global_\n# x\ndefaults:\n  - /exp/mine\n")


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "Latin-1": (lambda file: file.write_text(HEAD + "# café\nseed: 3\n", encoding="latin-1"), "mine.yaml:6"),
    "UTF-16": (lambda file: file.write_text(HEAD, encoding="utf-16"), "mine.yaml:1"),
    "UTF-16 without a mark": (lambda file: file.write_text(HEAD, encoding="utf-16-le"), "mine.yaml:1"),
    "a NUL": (lambda file: file.write_text(HEAD + "seed: 3\0\n"), "mine.yaml:6"),
    "a circle of two": (_circle, "mine.yaml:3"),
    "itself": (lambda file: file.write_text("# @package _global_\ndefaults:\n  - /exp/mine\n"), "mine.yaml:3"),
    "deep references": (lambda file: file.write_text(f"{HEAD}seed: {DEEP}\n"), "mine.yaml:6"),
    "a section as a choice": (
        lambda file: file.write_text(HEAD.replace("- _self_", '- override /model: "${oc.select:rewards}"')),
        "mine.yaml:5",
    ),
    "a FIFO": (os.mkfifo, "mine.yaml"),
    "a device": (lambda file: file.symlink_to("/dev/zero"), "mine.yaml"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_refused_with_its_line(
    case: str, by_hydra: None, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write, where = CASES[case]
    (workplace / "conf" / "exp").mkdir(parents=True)
    write(workplace / "conf" / "exp" / "mine.yaml")
    assert main(["check", "+exp=mine"]) == 2
    printed = capsys.readouterr().err
    assert f"conf/exp/{where}" in printed
    assert "Traceback" not in printed


def test_a_bad_file_that_is_not_used_hides_nothing(
    by_hydra: None, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "conf" / "exp").mkdir(parents=True)
    (workplace / "conf" / "exp" / "mine.yaml").write_text(HEAD)
    (workplace / "conf" / "exp" / "other.yaml").write_text("# café\n", encoding="latin-1")
    assert main(["show", "+exp=mine", "seed"]) == 0
    assert main(["list", "exp"]) == 0
    assert "mine" in capsys.readouterr().out
