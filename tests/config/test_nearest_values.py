"""The value that was meant by one that a key does not take: what each was spoilt from, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from rlhf_cli.config.suggestions import meant_inside, meant_value
from rlhf_cli.errors import UserError
from rlhf_cli.jobs.prepare import prepare


class Sample(BaseModel):
    """A field of every kind that a configuration has."""

    count: int = Field(default=1, gt=0)
    share: float = Field(default=0.5, ge=0, le=1)
    wait_s: float | Literal["off"] = 1.0
    mem_gb: float | None = None
    switch: bool = False
    word: Literal["steps", "epoch"] = "steps"
    names: list[str] = Field(default_factory=list)
    on_error: float | Literal["raise", "exclude"] = "raise"


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("count", "7", "count=7"),
        ("count", 7.0, "count=7"),
        ("count", -7, "count=1"),  # the default: a sign is never flipped
        ("share", -0.2, "share=0.5"),
        ("count", 0, "count=1"),
        ("count", "2k", "count=2000"),
        ("count", "1_000", "count=1000"),
        ("count", "2M", "count=2000000"),
        ("on_error", "zero", "on_error=0"),
        ("share", "20%", "share=0.2"),
        ("share", 20, "share=0.2"),
        ("share", "0,5", "share=0.5"),
        ("wait_s", "10min", "wait_s=600"),
        ("wait_s", "1.5h", "wait_s=5400"),
        ("wait_s", "250 ms", "wait_s=0.25"),
        ("mem_gb", "64GB", "mem_gb=64"),
        ("mem_gb", "512 MiB", "mem_gb=0.5"),
        ("switch", "yes", "switch=true"),
        ("switch", 0, "switch=false"),
        ("word", "epohc", "word=epoch"),
        ("names", "one", "names=[one]"),
        ("count", 2.5, "count=2"),
        # nothing that the field takes comes near
        ("count", "many", None),
        ("share", 200, None),
        ("word", "wombat", None),
        ("wait_s", "soon", None),
        ("mem_gb", "64 bananas", None),
        ("share", float("nan"), None),
    ],
)
def test_what_was_meant_and_is_taken(name: str, given: object, meant: str | None) -> None:
    assert meant_value(name, Sample.model_fields[name], given) == meant


def test_a_section_says_which_of_its_keys_takes_it() -> None:
    assert meant_inside("sample", Sample, 3) == "sample.count=3"
    assert meant_inside("sample", Sample, "epoch") == "sample.word=epoch"
    assert meant_inside("sample", Sample, True) == "'sample={}'"
    assert meant_inside("sample", Sample, -5.5) == "sample.wait_s=-5.5"


@pytest.mark.parametrize("typed", ["no", "fp32", "off", "32"])
def test_the_precision_that_accelerate_calls_no(place: Path, typed: str) -> None:
    """accelerate's `mixed_precision: no` is float32 here; YAML 1.1 makes a boolean of a bare `no`."""
    with pytest.raises(UserError) as caught:
        prepare(["+exp=quickstart", f"launch.precision={typed}"])
    assert caught.value.hint == "launch.precision=float32"


def test_a_bare_no_in_a_file_is_that_too(place: Path) -> None:
    (place / "conf" / "exp").mkdir(parents=True)
    header = "# @package _global_\ndefaults: [quickstart, _self_]\n"
    (place / "conf" / "exp" / "mine.yaml").write_text(header + "launch: {precision: no}\n")
    with pytest.raises(UserError) as caught:
        prepare(["+exp=mine"])
    assert caught.value.hint == "launch.precision=float32"
