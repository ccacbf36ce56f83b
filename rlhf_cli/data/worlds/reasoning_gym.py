"""Give rows of the package reasoning-gym (Apache-2.0): over a hundred reasoning tasks, each with its own verifier.

`python -m rlhf_cli.data.worlds.reasoning_gym` reads a question as JSON and prints the answer, in a process with a fixed
order of sets: five of the package's tasks depend on that order, others draw from global random states, and one runs
programs. The reward imports `build_task` and `unpacked_entry`, to score with a task's verifier.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Protocol, get_type_hints

from pydantic import TypeAdapter, ValidationError

from rlhf_cli.errors import DataError
from rlhf_cli.process import PARENT, die_with
from rlhf_cli.text.suggest import nearest


def generate(
    num_rows: int,
    seed: int,
    task: str | None = None,
    args: dict[str, object] | None = None,
    tasks: dict[str, object] | None = None,
    held_out: bool = False,
) -> list[dict[str, object]]:
    """Return rows of `question`, `answer`, `task`, `difficulty`, and `entry`, which is what the task's verifier reads.

    Give either `task` with its `args`, or `tasks`: name -> {weight, args}, mixed at random by weight (1 if not given).
    Of all questions a fifth is held out, the same ones for every seed: `held_out` draws from these, else from the
    others. `answer` is null for a task that has no single right answer. `difficulty` is a number if the task has one,
    else a text such as `num_terms=3, num_digits=2`, or null. Raise DataError for arguments that the package refuses.
    """
    if (task is None) == (not tasks):
        got, hint = ("neither", "task=chain_sum") if task is None else ("both", "task=null")
        expected = "the name of a task, or null and tasks: {NAME: {weight: 1, args: {}}}"
        raise DataError("give either `task` or `tasks`", where="task", got=got, expected=expected, hint=hint)
    if tasks and args:
        raise DataError("`args` belongs to `task`; each of `tasks` has its own", where="args", got=args)
    shares = [{"task": task, "args": args or {}, "weight": 1, "where": ""}] if task is not None else []
    for name, share in (tasks or {}).items():
        typed = share if isinstance(share, dict) else {"no mapping": share}
        given: dict[str, Any] = {"weight": 1, "args": {}, **typed}
        weight, is_known = given["weight"], set(given) == {"weight", "args"} and isinstance(given["args"], dict)
        if not is_known or type(weight) not in (int, float) or not 0 <= weight < float("inf"):
            what, expected = "a task takes a weight of 0 or more, and arguments", "{weight: 1, args: {}}"
            raise DataError(what, where=f"tasks.{name}", got=share, expected=expected)
        shares.append({"task": name, **given, "where": f"tasks.{name}."})
    if not any(share["weight"] for share in shares):
        raise DataError("every weight is 0", where="tasks", got=tasks, expected="at least one above 0")
    question = {"shares": shares, "num_rows": num_rows, "seed": seed, "held_out": held_out}
    rows: list[dict[str, object]] = json.loads(_ask(json.dumps(question, default=str)))
    return rows


def list_tasks() -> list[dict[str, Any]]:
    """Return `name`, an example and the `arguments` of every task. Raise DataError without the package."""
    tasks: list[dict[str, Any]] = json.loads(_ask(json.dumps({})))
    return tasks


@functools.lru_cache(maxsize=8)
def _ask(question: str) -> str:
    """Return the answer of a process with the package, as JSON. Raise the DataError that it found."""
    path = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-m", "rlhf_cli.data.worlds.reasoning_gym"]
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, PARENT: str(os.getpid())}
    done = subprocess.run(command, input=question, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise RuntimeError(f"the process with reasoning-gym ended with {done.returncode}:\n{done.stderr}")
    found, _, answer = done.stdout.partition("\n")
    if found == "refused":
        raise DataError(**json.loads(answer))
    return answer


RUN_ANSWERS = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
"""Tasks whose verifiers run an answer as code, by sympy.parse_expr, and need names and calls in it."""
_CHUNK = 500  # rows of one dataset of the package: its default, because rows of `acre` depend on it
_TRIES = 100
_HELD_OUT = 52  # of 256: a fifth


class Task(Protocol):
    """A dataset of the package."""

    def __getitem__(self, place: int) -> dict[str, Any]: ...

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float: ...


def build_task(task: str, args: Mapping[str, object], *, seed: int, where: str) -> Task:
    """Return the package's dataset of a task; `where` is `tasks.NAME.` or ''. Raise DataError if it refuses them."""
    known = _registry()
    task_key, args_key = where.removesuffix(".") or "task", f"{where}args"
    if task in RUN_ANSWERS:
        what = f"the verifier of {task} runs what the model wrote as Python code"
        advice = "use another task, or your own answers with your own reward: docs/how-to/data.md"
        raise DataError(what, where=task_key, got=task, expected="a task whose verifier only compares", advice=advice)
    if task not in known:
        close = nearest(task, known)
        listed = "rlhf list data reasoning_gym"
        what, expected = f"reasoning-gym has no task {task!r}", f"one of its {len(known)} tasks: {listed}"
        hint = listed if close is None else f"tasks.{close}={{}}" if where else f"task={close}"
        raise DataError(what, where=task_key, got=task, expected=expected, hint=hint)
    kind, config = known[task]
    defaults = _defaults(config)
    types = get_type_hints(config)
    for key, value in args.items():
        if key not in defaults:
            close = nearest(key, defaults)
            what, expected = f"the task {task} has no argument {key!r}", "one of " + ", ".join(defaults)
            hint = f"{args_key}.{close}={json.dumps(value)}" if close else "rlhf list data reasoning_gym"
            raise DataError(what, where=f"{args_key}.{key}", got=key, expected=expected, hint=hint)
        try:  # JSON has no tuples, and its rules take a list for one
            TypeAdapter(types[key]).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            if type(value) is type(getattr(config, key, None)):  # rearc calls its 0.2 an int
                continue
            wanted = error.errors()[0]["msg"].removeprefix("Input should be ")
            what = f"wrong value for the argument {key} of {task}"
            expected = f"{wanted}, such as {defaults[key]}, the default"
            raise DataError(what, where=f"{args_key}.{key}", got=repr(value), expected=expected) from None
    try:
        return kind(config(**args, seed=seed, size=_CHUNK))
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    except Exception as error:  # asserts, comparisons of a text with a number, ...
        what, got = f"the task {task} refuses its arguments", f"{type(error).__name__}: {error}"
        expected = ", ".join(f"{name} {default}" for name, default in defaults.items())
        raise DataError(what, where=args_key, got=got, expected=expected) from error


def _registry() -> dict[str, tuple[Callable[[object], Task], type[Any]]]:
    """Return the package's tasks: name -> its dataset and the dataclass of its arguments."""
    try:
        tasks = importlib.import_module("reasoning_gym.factory").DATASETS
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return {name: tasks[name] for name in sorted(tasks) if name not in ("composite", *RUN_ANSWERS)}


def _missing(error: ModuleNotFoundError) -> DataError:
    package = "reasoning-gym" if error.name == "reasoning_gym" else f"reasoning-gym needs {error.name}, which"
    return DataError(f"{package} is not installed", where="", hint="pip install reasoning-gym==0.1.25")


def _defaults(config: type[Any]) -> dict[str, str]:
    """Return the arguments of a task: name -> default."""
    return {
        field.name: repr(field.default if field.default_factory is MISSING else field.default_factory())
        for field in fields(config)
        if field.name not in ("seed", "size")
    }


def _draw(share: Mapping[str, Any], seed: int, held_out: bool) -> Iterator[dict[str, Any]]:
    """Yield entries of a task, all held out or none. Raise DataError if the package gives none any more."""
    task, missed, failure = share["task"], 0, "questions of the other part only"
    for chunk in itertools.count():
        # The package adds a row's number to the seed, so seeds next to each other would share their rows.
        begin = _number(seed, task, chunk, held_out) >> 1
        dataset = build_task(task, share["args"], seed=begin, where=share["where"])
        for place in range(_CHUNK):
            random.seed(begin + place)  # two tasks draw from Python's global state
            try:
                entry = dataset[place]
                if (hashlib.blake2b(entry["question"].encode()).digest()[0] < _HELD_OUT) == held_out:
                    missed = 0
                    yield entry
                    continue
            except ModuleNotFoundError as error:
                raise _missing(error) from None
            except Exception as error:  # a solver that finds no puzzle, for example
                failure = f"{type(error).__name__}: {error}"
            missed += 1
            if missed == _TRIES:
                what = f"the task {task} gave no {'held-out ' if held_out else ''}question in {_TRIES} tries"
                advice = "use arguments that allow more questions"
                raise DataError(what, where=f"{share['where']}args", got=failure, advice=advice)


def _number(*parts: object) -> int:
    """Return a number below 2^32 that depends on all parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest())


def _rows(shares: list[Mapping[str, Any]], num_rows: int, seed: int, held_out: bool) -> list[dict[str, object]]:
    drawn = [share for share in shares if share["weight"] > 0]
    streams = {share["task"]: _draw(share, seed, held_out) for share in drawn}
    pick = random.Random(_number(seed, held_out))
    rows: list[dict[str, object]] = []
    for share in pick.choices(drawn, [share["weight"] for share in drawn], k=num_rows):
        task, entry = share["task"], next(streams[share["task"]])
        rows.append(
            {
                "question": entry["question"],
                "answer": entry["answer"] if isinstance(entry["answer"], str) else None,
                "task": task,
                "difficulty": _difficulty(entry["metadata"]),
                "entry": json.dumps(_packed({"task": task, "args": share["args"], **entry})),
            }
        )
    levels: list[Any] = [row["difficulty"] for row in rows]
    is_number = len(drawn) == 1 and all(len(level) == 1 and _is_number(*level.values()) for level in levels)
    for row, level in zip(rows, levels, strict=True):
        text = ", ".join(f"{name}={value}" for name, value in level.items()) or None
        row["difficulty"] = next(iter(level.values())) if is_number else text
    return rows


def _difficulty(metadata: Mapping[str, Any]) -> dict[str, object]:
    """Return what the package names as a row's difficulty: the row's own number, else that or the range of all rows."""
    given = metadata.get("difficulty") or {}
    levels: dict[str, object] = {}
    for name, setting in (given if isinstance(given, Mapping) else {"difficulty": given}).items():
        own = metadata.get(name)
        if _is_number(own) or _is_number(setting):
            levels[name] = own if _is_number(own) else setting
        elif isinstance(setting, tuple) and len(setting) == 2:
            levels[name] = "..".join(map(str, setting))
    return levels


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TUPLE, _PAIRS = "__tuple__", "__pairs__"


def _packed(value: object) -> object:
    """Return a value that JSON keeps whole: some verifiers compare tuples, or look numbers up as keys."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _packed(item) for key, item in value.items()}
        return {_PAIRS: [[key, _packed(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_packed(item) for item in value]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    return value


def unpacked_entry(text: str) -> dict[str, Any]:
    """Return the entry of a row's column `entry`: the package's own, with `task` and `args`."""

    def unpacked(record: dict[str, Any]) -> object:
        if _TUPLE in record:
            return tuple(record[_TUPLE])
        return dict(record[_PAIRS]) if _PAIRS in record else record

    entry: dict[str, Any] = json.loads(text, object_hook=unpacked)
    return entry


def _list() -> list[dict[str, object]]:
    """Return the arguments of every task with their defaults, and an example."""
    pages: list[dict[str, object]] = []
    for name, (_, config) in _registry().items():
        random.seed(1)
        entry = build_task(name, {}, seed=1, where="")[0]
        example = {"question": entry["question"], "answer": entry["answer"]}
        pages.append({"name": name, **example, "arguments": _defaults(config)})
    return pages


def _main() -> None:
    question = json.load(sys.stdin)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # solvers and programs in the package print
            answer = _rows(**question) if question else _list()
        sys.stdout.write("found\n" + json.dumps(answer))
    except DataError as error:
        parts = {name: getattr(error, name) for name in ("what", "where", "got", "expected", "hint", "advice")}
        sys.stdout.write("refused\n" + json.dumps(parts, default=str))


if __name__ == "__main__":
    die_with(int(os.environ[PARENT]))
    _main()
