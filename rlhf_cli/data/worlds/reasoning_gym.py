"""Give rows of the package reasoning-gym (Apache-2.0): over a hundred reasoning tasks, each with a verifier of its own.

The package runs in a process of its own, `reasoning_gym_process.py`: five of its tasks depend on the order of Python's
sets, which differs from process to process, others draw from global random states, and one runs programs of its own.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

from rlhf_cli.errors import DataError
from rlhf_cli.process import PARENT


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
    else a text such as `num_terms=3, num_digits=2`, or null. Raise DataError for what the package does not take.
    """
    if (task is None) == (not tasks):
        raise DataError(
            "give either `task` or `tasks`",
            where="task",
            got="neither" if task is None else "both",
            expected="the name of a task, or null and tasks: {NAME: {weight: 1, args: {}}}",
            hint="task=chain_sum" if task is None else "task=null",
        )
    if tasks and args:
        raise DataError("`args` are those of `task`; each of `tasks` has its own", where="args", got=args)
    shares = [{"task": task, "args": args or {}, "weight": 1, "where": ""}] if task is not None else []
    for name, share in (tasks or {}).items():
        typed = share if isinstance(share, dict) else {"no mapping": share}
        given: dict[str, Any] = {"weight": 1, "args": {}, **typed}
        weight, is_known = given["weight"], set(given) == {"weight", "args"} and isinstance(given["args"], dict)
        if not is_known or type(weight) not in (int, float) or not 0 <= weight < float("inf"):
            raise DataError(
                "a task has a weight, 0 or more, and arguments",
                where=f"tasks.{name}",
                got=share,
                expected="{weight: 1, args: {}}",
            )
        shares.append({"task": name, **given, "where": f"tasks.{name}."})
    if not any(share["weight"] for share in shares):
        raise DataError("every weight is 0", where="tasks", got=tasks, expected="at least one above 0")
    question = {"shares": shares, "num_rows": num_rows, "seed": seed, "held_out": held_out}
    rows: list[dict[str, object]] = json.loads(_ask(json.dumps(question, default=str)))
    return rows


def list_tasks() -> list[dict[str, Any]]:
    """Return `name`, `question`, `answer` and `arguments` with their defaults of every task.

    Raise DataError without the package.
    """
    tasks: list[dict[str, Any]] = json.loads(_ask(json.dumps({})))
    return tasks


@functools.lru_cache(maxsize=8)
def _ask(question: str) -> str:
    """Return the answer of a process with the package, as JSON. Raise the DataError that it found."""
    path = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rlhf_cli.data.worlds.reasoning_gym_process"],
        input=question,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, PARENT: str(os.getpid())},
    )
    if done.returncode != 0:
        raise RuntimeError(f"the process with reasoning-gym ended with {done.returncode}:\n{done.stderr}")
    found, _, answer = done.stdout.partition("\n")
    if found == "refused":
        raise DataError(**json.loads(answer))
    return answer
