"""What is typed after -m is what Hydra makes of it: its own sweeper is asked, and what it leaves open is refused."""

from __future__ import annotations

import itertools
import re

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from rlhf_cli.errors import UserError
from rlhf_cli.sweeps.sweep_grid import grid_of, names_of, short_keys

pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize(
    "typed",
    [
        ["+exp=quickstart", "rewards.brevity.weight=0,0.1,0.5", "seed=range(0,3)"],
        ["exp=a,b", "truncation=none,bootstrap"],
        ["trainer.args.learning_rate=choice(1e-5,1e-4)", "seed=7"],
        ["a=sort(3,1,2,reverse=true)", "b=range(0,1,0.25)"],
        ["reward@rewards.x=a,b", "+rewards.x.weight=1,2"],
        ["a='b, c',\"d=e\",[1,2],{x: 1}"],
        ["a=true,false,null,''"],
    ],
    ids=" ".join,
)
def test_the_jobs_are_those_of_hydra_s_own_sweeper(typed: list[str]) -> None:
    """Held against BasicSweeper, word for word and in its order; what is not swept stays as it was typed."""
    (theirs,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(typed), None)
    assert [list(job.words) for job in grid_of(typed).jobs] == theirs


def test_a_glob_is_the_files_of_a_group_also_the_user_s(write) -> None:
    write("conf/exp/toy_mine.yaml", "# @package _global_\n")
    (axis,) = grid_of(["exp=glob([toy_*],exclude=*_*_*)"]).axes
    assert "toy_mine" in axis.texts
    assert {"toy_dpo", "toy_sft"} < set(axis.texts)
    assert not {"quickstart", "toy_speakers_ppo"} & set(axis.texts)


def test_a_shuffled_range_is_each_value_once() -> None:
    (axis,) = grid_of(["seed=shuffle(range(0,30))"]).axes
    assert sorted(map(int, axis.texts)) == list(range(30))
    assert [job.values["seed"] for job in grid_of(["seed=1,2"]).jobs] == ["1", "2"]


def test_what_the_environment_holds_stays_a_reference() -> None:
    assert [job.words for job in grid_of(["model.path=${oc.env:MODEL},other"]).jobs] == [
        ("model.path=${oc.env:MODEL}",),
        ("model.path=other",),
    ]


def test_the_folder_of_a_job_can_be_typed_as_it_is_called(place) -> None:
    """Without quotes Hydra refuses `=` in a value and takes the comma for another value."""
    (place / "weight=0.5,seed=2").mkdir()
    (axis,) = grid_of(["model.path=weight=0.5,seed=2", "seed=1,2"]).axes
    assert axis.key == "seed"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["seed=interval(0,1)"], "a search could"),
        (["seed=range(5,5)"], "nothing to sweep over in seed"),
        (["exp=glob(nothing_*)"], "no exp is called so"),
        (["seed=glob(*)"], "seed is no group of files"),
        (["seed=1,2", "+seed=3"], "seed is typed twice"),
        (["seed=1,,2"], "cannot be read"),
        (["seed=range(0,2),7"], "cannot be one value among others"),
        (["seed=7"], "nothing is swept over"),
        (["hydra/launcher=joblib", "seed=1,2"], "-j N"),
        (["run.name=a,b"], "where the whole sweep lies"),
    ],
)
def test_what_is_no_grid_is_refused(typed: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        grid_of(typed)
    assert "where:    command line" in str(refused.value)


def test_all_of_it_is_said_at_once() -> None:
    with pytest.raises(UserError) as refused:
        grid_of(["seed=interval(0,1)", "a=1,1", "hydra/sweeper=optuna"])
    assert str(refused.value).count("where:") == 3


# Names of jobs: what differs, in as few words as tell it apart, and always a folder's.


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
