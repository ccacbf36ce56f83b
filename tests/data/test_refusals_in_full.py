"""Errors about data name the source that they are about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from rlhf_cli.data import worlds
from rlhf_cli.data.dialogues import split_transcripts
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.model_limits import without_overlong
from rlhf_cli.data.peeking import Preview, first_rows, peek, prepare_preview
from rlhf_cli.data.preferences import PairRules, check_pair_columns, judge_pairs, leave_out
from rlhf_cli.data.preparing import prepare
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import DataSource

LONE = Preview(("chosen",), [], 1, "")
MINE = "data.mix.mine"


@pytest.mark.parametrize(
    ("named", "prompt", "where", "got", "hint"),
    [
        ({"rename": {"q": "n"}}, None, f"{MINE}.rename.q", "q: n", None),
        ({"select": (0, 9)}, None, f"{MINE}.select", (0, 9), f"'~{MINE}.select'"),
        ({"split": "dev"}, None, f"{MINE}.split", "dev", f"'~{MINE}.split'"),
        ({}, "{zz}", "data.prompt", None, None),
        ({}, "{nothing}", f"data.prompt, row 1 of {MINE}", "nothing (null)", None),
    ],
)
def test_training_and_preview_name_the_same_key(
    named: dict[str, Any], prompt: str | None, where: str, got: object, hint: str | None, jsonl, refusal
) -> None:
    source = DataSource(path=jsonl([{"q": "x", "n": 1, "nothing": None}]), name=MINE, **named)
    errors = [refusal(load_split, [source], prompt=prompt, seed=0)]
    if "select" not in named:
        errors.append(refusal(first_rows, [source], prompt=prompt, seed=0, limit=3))
    for error in errors:
        assert (error.where, error.got, error.hint) == (where, got, hint)
        assert error.expected or error.advice


def dataset(**row: object) -> datasets.Dataset:
    return datasets.Dataset.from_list([row])


def judged(rules: PairRules, name: str = MINE, **row: object) -> datasets.Dataset:
    return judge_pairs(dataset(**row), rules, name=name)


def cut(policy: Any, prompt: object) -> object:
    given: dict[str, Any] = {"longer_than": lambda limit, prompts: {0: 9}, "last": lambda text, limit: text}
    return without_overlong(dataset(prompt=prompt), 2, policy=policy, **given, name=MINE)


NO_SUM = DataSource(world="toy_sums", args={"max_value": 0}, name=MINE)


@pytest.mark.parametrize(
    "call",
    [
        lambda: split_transcripts(dataset(chosen="a", rejected="b"), name=MINE),
        lambda: prepare_preview(DataSource(path="x", name=MINE, transcripts=True), LONE, None),
        lambda: prepare(RowTable([{"a": [{"b": 1}]}], ["a"]), DataSource(path="x", name=MINE), "{a}"),
        lambda: check_pair_columns(["chosen", "rejected"], PairRules(column="m"), name=MINE),
        lambda: judged(PairRules(), chosen="", rejected="a"),
        lambda: judged(PairRules(column="m"), chosen="a", rejected="b", m=-1),
        lambda: leave_out(judged(PairRules(drops_bad_pairs=True), "data", chosen="a", rejected="a"), name=MINE),
        lambda: cut("truncate", []),
        lambda: worlds.generate("toy", {}, seed=0, name=MINE),
        lambda: peek(DataSource(world="toy_sums", args={"num_rows": 0}, name=MINE)),
        lambda: load_split([NO_SUM], seed=0),
        lambda: first_rows([NO_SUM], prompt=None, seed=0, limit=1),
    ],
)
def test_every_check_names_the_source(call: Callable[[], object], refusal) -> None:
    assert MINE in refusal(call).where


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ConnectionError("no route"), f"{MINE}.path=FILE"),
        (RuntimeError("we are OFFLINE"), f"{MINE}.path=FILE"),
        (RuntimeError("Unknown Split"), f"{MINE}.split=NAME"),
        (RuntimeError("no Config"), f"{MINE}.subset=NAME"),
    ],
)
def test_a_hub_dataset_that_cannot_be_loaded(
    error: Exception, hint: str, monkeypatch: pytest.MonkeyPatch, refusal
) -> None:
    asked = []

    def load_dataset(*args: object, **named: object) -> None:
        asked.append((args, named))
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = DataSource(path="o/n", subset="sub", revision="main", name=MINE)
    found = refusal(load_split, [source], seed=0)
    assert (found.where, found.got) == (f"{MINE}.path", f"{type(error).__name__}: {str(error)[:400]}")
    assert (hint in found.hint, str(Path("o/n").absolute()) in found.expected) == (True, True)
    assert asked == [(("o/n",), {"name": "sub", "split": "train", "revision": "main"})]
