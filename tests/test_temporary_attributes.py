"""What an object had of its own is there again afterwards, and nothing else is."""

from __future__ import annotations

import contextlib
import types

from rlhf_cli.temporary_attributes import temporary_attributes


class Thing:
    shown = "by the class"
    kept = "by the class"


def test_what_was_its_own_is_put_back_and_the_rest_goes() -> None:
    thing = Thing()
    thing.kept = "its own"
    with temporary_attributes(thing, shown=1, kept=2, new=3):
        assert (thing.shown, thing.kept, vars(thing)["new"]) == (1, 2, 3)
    assert vars(thing) == {"kept": "its own"}
    Thing.shown = "changed"  # a copy of the class's value on the instance would hide this
    try:
        assert thing.shown == "changed"
    finally:
        Thing.shown = "by the class"


def test_it_is_put_back_where_something_was_raised_or_deleted() -> None:
    thing = Thing()
    thing.kept = "its own"
    with contextlib.suppress(KeyError), temporary_attributes(thing, kept=2, shown=1):
        del thing.kept
        raise KeyError
    assert vars(thing) == {"kept": "its own"}


def test_one_inside_another() -> None:
    module = types.ModuleType("any")
    with temporary_attributes(module, name=1):
        with temporary_attributes(module, name=2):
            assert module.name == 2
        assert module.name == 1
    assert not hasattr(module, "name")
