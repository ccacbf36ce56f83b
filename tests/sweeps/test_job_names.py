"""Names of jobs: what differs, in as few words as tell it apart, and always a folder's."""

from __future__ import annotations

import itertools
import re

import pytest

from rlhf_cli.sweeps.sweep_grid import names_of, short_keys


def test_the_shortest_end_that_is_unambiguous() -> None:
    keys = ["rewards.a.weight", "rewards.b.weight", "seed", "data.seed", "reward@rewards.x", "exp"]
    assert short_keys(keys) == {
        "rewards.a.weight": "a.weight",
        "rewards.b.weight": "b.weight",
        "seed": "seed",
        "data.seed": "data.seed",
        "reward@rewards.x": "x",
        "exp": "exp",
    }


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["0", "0.5", "-1"], ["k=0", "k=0.5", "k=-1"]),
        (["1e-05", "0.0001"], ["k=1e-5", "k=0.0001"]),
        (["[1,2]", "{x:1}"], ["k=1-2", "k=x-1"]),
        (["a b", ""], ["k=a-b", "k=empty"]),
    ],
)
def test_values_as_one_would_type_them(values: list[str], names: list[str]) -> None:
    assert names_of([{"a.k": value} for value in values]) == names


def test_any_value_makes_a_folder_of_its_own() -> None:
    """Three hundred values that a shell, a path or a cut would make equal."""
    texts = ["".join(letters) for letters in itertools.product("/ .,='", "ab$", "/*x", "\n~é")]
    texts += [f"{'/long/path' * 20}/{number}" for number in range(90)]
    names = names_of([{"model.path": text, "seed": "1"} for text in texts])
    assert len(set(names)) == len(texts)
    assert all(re.fullmatch(r"path=[A-Za-z0-9._+-]+,seed=1(~[0-9a-f]{6})?", name) for name in names)
    assert max(map(len, names)) < 60
