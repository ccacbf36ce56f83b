"""What the context of quick imports leaves behind in a process that has other things in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers  # noqa: F401  loaded, as by whoever imports this project beside others

from rlhf_cli.startup.quick_imports import quick_imports
from rlhf_cli.startup.read_once import _of_the_same_name


@pytest.fixture
def collecting_again() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.usefixtures("collecting_again")
@pytest.mark.parametrize("is_collecting", [True, False])
def test_the_collector_is_as_it_was(is_collecting: bool) -> None:
    (gc.enable if is_collecting else gc.disable)()
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled() == is_collecting


def test_what_was_there_before_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers was imported by somebody else: what they have by now may be garbage one day."""
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("it was kept"))
    with quick_imports():
        pass


@pytest.mark.parametrize(
    ("distribution", "brings", "found"),
    [("some", "some other", "some"), ("some", "other", None), ("Some", "some", None), (None, "some", None)],
    ids=["it brings it", "it brings another", "another spelling", "not installed"],
)
def test_a_distribution_of_a_package_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str | None, brings: str, found: str | None
) -> None:
    """Only one that says that it brings the package is taken to be where that comes from."""
    if distribution is not None:
        folder = tmp_path / f"{distribution}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (folder / "top_level.txt").write_text("\n".join(brings.split()))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _of_the_same_name("some") == found
