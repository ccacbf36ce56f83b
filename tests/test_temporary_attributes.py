"""Temporary attributes are removed, and the object's own are restored."""

from __future__ import annotations

import contextlib
import types

import pytest

from rlhf_cli.process import temporary_attributes


class Thing:
    shown = "by the class"
    kept = "by the class"


def test_own_attributes_are_restored_and_others_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Thing()
    thing.kept = "its own"
    with temporary_attributes(thing, shown=1, kept=2, new=3):
        assert (thing.shown, thing.kept, vars(thing)["new"]) == (1, 2, 3)
    assert vars(thing) == {"kept": "its own"}
    with contextlib.suppress(KeyError), temporary_attributes(thing, kept=2, shown=1):
        del thing.kept
        raise KeyError
    assert vars(thing) == {"kept": "its own"}
    monkeypatch.setattr(Thing, "shown", "changed")  # a copy of the class's value on the instance would hide this
    assert thing.shown == "changed"


def test_nested_contexts() -> None:
    module = types.ModuleType("any")
    with temporary_attributes(module, name=1):
        with temporary_attributes(module, name=2):
            assert module.name == 2
        assert module.name == 1
    assert not hasattr(module, "name")
