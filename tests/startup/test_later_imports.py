"""A package that waits is what it would have been, whenever it is used, and is not imported where it is not."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rlhf_cli.startup import later_imports
from rlhf_cli.startup.later_imports import Later

_ADAPTERS = """
class Adapted:
    most = 8

    def __init__(self, rank=1):
        self.rank = rank

class Other: ...

def adapt(model, **arguments):
    return Adapted(**arguments)

__version__ = "3.1"
run = "begun"
"""

_LIBRARY = """
import adapters
from adapters import Adapted, adapt, missing
from adapters.deep.down import depth
import adapters.deep.down as down

def adapted(model: Adapted | None = None, other: None | Adapted = None) -> bool:
    return isinstance(model, Adapted)

def build(rank):
    return adapt(None, rank=rank)

def own_class():
    class Mine(Adapted): ...
    return Mine

def begun():
    return adapters.run
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library that has imported `adapters` while that waited; `adapters` counts as if it were wandb."""
    (tmp_path / "adapters" / "deep").mkdir(parents=True)
    (tmp_path / "adapters" / "__init__.py").write_text(_ADAPTERS)
    (tmp_path / "adapters" / "deep" / "__init__.py").write_text("")
    (tmp_path / "adapters" / "deep" / "down.py").write_text("def depth(): return 2")
    (tmp_path / "library.py").write_text(_LIBRARY)
    (tmp_path / "users.py").write_text("import adapters; from adapters import Adapted")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(later_imports, "WAITING", ("adapters", "not_installed"))
    monkeypatch.setattr(later_imports, "ASKING", {"library"})
    monkeypatch.setattr(later_imports, "_BEFORE_LOADED", {("adapters", "run"): None})
    for name in [one for one in sys.modules if one.partition(".")[0] in ("adapters", "library", "users")]:
        monkeypatch.delitem(sys.modules, name)
    with later_imports.later_imports():
        library = importlib.import_module("library")
    yield library
    for name in [one for one in sys.modules if one.partition(".")[0] in ("adapters", "library", "users")]:
        del sys.modules[name]


def test_it_is_not_imported_until_it_is_used(library: ModuleType) -> None:
    assert "adapters" not in sys.modules
    assert library.adapted("a model") is False
    assert issubclass(int, library.Adapted) is False
    assert library.begun() is None
    assert "adapters" not in sys.modules
    made = library.build(rank=4)
    assert "adapters" in sys.modules
    assert made.rank == 4


def test_once_it_is_imported_nothing_is_different(library: ModuleType) -> None:
    real = importlib.import_module("adapters")
    assert library.adapted(real.Adapted()) is True
    assert library.adapted(real.Other()) is False
    assert issubclass(real.Adapted, library.Adapted)
    assert library.begun() == "begun"
    assert library.adapters.__version__ == "3.1"
    assert library.Adapted.most == 8
    assert library.own_class().__mro__[1] is real.Adapted
    assert library.depth() == library.down.depth() == 2


def test_who_reads_a_version_gets_it(library: ModuleType) -> None:
    assert library.adapters.__version__ == "3.1"
    assert "adapters" in sys.modules


def test_a_name_that_is_not_there_is_missed_when_it_is_used(library: ModuleType) -> None:
    assert isinstance(library.missing, Later)
    with pytest.raises(ImportError, match="'missing' from 'adapters'"):
        library.missing()


def test_whoever_else_imports_it_gets_it(library: ModuleType) -> None:
    del sys.modules["library"]
    with later_imports.later_imports():
        users = importlib.import_module("users")
        assert isinstance(users.Adapted, type)
        assert users.adapters is sys.modules["adapters"]
        # and then there is nothing to wait for
        with pytest.raises(ImportError, match="missing"):
            importlib.import_module("library")


def test_negative_controls_what_is_needed_and_what_is_outside_does_not_wait(library: ModuleType) -> None:
    del sys.modules["library"]
    with later_imports.later_imports(but=["adapters"]), pytest.raises(ImportError, match="missing"):
        importlib.import_module("library")
    assert "adapters" in sys.modules


def test_what_is_not_installed_is_not_stood_in_for(library: ModuleType) -> None:
    with later_imports.later_imports(), pytest.raises(ModuleNotFoundError):
        exec("import not_installed", {"__name__": "library"})


def test_imports_are_as_before_when_it_is_over(library: ModuleType) -> None:
    before = __import__
    with later_imports.later_imports():
        assert __import__ is not before
    assert __import__ is before
    with pytest.raises(ZeroDivisionError), later_imports.later_imports():
        _ = 1 / 0
    assert __import__ is before
