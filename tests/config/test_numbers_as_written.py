"""YAML 1.1 reads 12:30:45 in base 60 and 017 in base 8: such a number is refused with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlhf_cli.config.compose import compose
from rlhf_cli.config.validate import validate
from rlhf_cli.errors import ConfigError, Problems


def problems_of(place: Path, lines: str, *typed: str) -> list[ConfigError]:
    (place / "conf" / "exp").mkdir(parents=True, exist_ok=True)
    (place / "conf" / "exp" / "odd.yaml").write_text("# @package _global_\n# odd\n" + lines)
    try:
        validate(compose(["+exp=odd", *typed]))
    except (Problems, ConfigError) as error:
        found = error.problems if isinstance(error, Problems) else [error]
        return [error for error in found if "YAML reads" in str(error.got)]
    return []


@pytest.mark.parametrize(
    ("lines", "key", "line", "hint"),
    [
        ("seed: 12:30:45", "seed", 3, "seed=123045"),
        ("seed: 017", "seed", 3, "seed=17"),
        ("trainer:\n  args:\n    max_steps: 1:30", "trainer.args.max_steps", 5, "trainer.args.max_steps=130"),
        ("data:\n  args: {num_rows: 010}", "data.args.num_rows", 4, "data.args.num_rows=10"),
        (
            "rewards:\n  brevity:\n    args: {most: 2:00}",
            "rewards.brevity.args.most",
            5,
            "rewards.brevity.args.most=200",
        ),
        ("rewards:\n  brevity:\n    clip: [0, 1:30]", "rewards.brevity.clip", 5, None),
    ],
)
def test_a_number_in_another_base_is_refused(place: Path, lines: str, key: str, line: int, hint: str | None) -> None:
    (error,) = problems_of(place, lines)
    assert error.where == f"{key} (conf/exp/odd.yaml:{line})"
    assert error.hint == hint


@pytest.mark.parametrize("written", ["12", "0", "0x1F", "1_000", "-3", "'12:30:45'"])
def test_negative_control_other_numbers(place: Path, written: str) -> None:
    assert problems_of(place, f"seed: {written}") == []


def test_the_numbers_that_yaml_reads() -> None:
    """PyYAML reads the refused numbers as others."""
    read = yaml.safe_load("[12:30:45, 017, 1:30]")
    assert read == [12 * 3600 + 30 * 60 + 45, 15, 90]


def test_a_number_that_a_typed_one_replaces_is_accepted(place: Path) -> None:
    assert problems_of(place, "seed: 12:30:45")
    assert problems_of(place, "seed: 12:30:45", "seed=3") == []
