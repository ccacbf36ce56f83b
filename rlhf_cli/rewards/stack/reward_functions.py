"""Import the reward function named by `fn: module:function` or `fn: ./file.py:function`. Does not import torch."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import cast

from rlhf_cli import user_files
from rlhf_cli.errors import RewardError, described, raise_any
from rlhf_cli.rewards.checked_arguments import CHECK
from rlhf_cli.rewards.stack.argument_values import (
    anchored,
    argument_problems,
    refuse_other_signature,
    required_parameters,
)
from rlhf_cli.rewards.stack.global_state import kept
from rlhf_cli.tables.trl_values import REWARD_ARGUMENTS, TEXT_ARGUMENTS
from rlhf_cli.text.suggest import nearest

RewardFunction = Callable[..., object]


class WithArguments(functools.partial[object]):
    """A reward with the `args` of the configuration, called with the columns that its signature has.

    A column of the data does not replace an argument of the same name.
    """

    def __call__(self, /, *given: object, **columns: object) -> object:
        """Call the reward with the columns that it takes and that are not arguments; fill parameters before a `/`."""
        taken = {name: one for name, one in columns.items() if name not in self.keywords}
        parameters = inspect.signature(self.func).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            taken = {name: one for name, one in taken.items() if name in parameters}
        by_place = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_ONLY]
        first = [taken.pop(name) for name in takewhile(taken.__contains__, by_place[len(given) :])]
        return super().__call__(*given, *first, **taken)


@kept("the import of a reward")
def resolve(
    fn: str, args: Mapping[str, object], *, where: str, args_key: str = "args", place: Callable[[str], str] = str
) -> RewardFunction:
    """Return the reward function that `fn` names, with `args` bound to it.

    A callable without TRL's own arguments (`get_soft_overlong_punishment(max_completion_len, ...)`, or a
    class) is a factory: it is called once with `args`, and returns the reward. For messages, `where` is the location of
    `fn`, `args_key` is the key of `args`, and `place` turns a key into its location. Raise RewardError like
    `import_function`, or if it does not take `args`. Raise Problems for several errors in `args`.
    """
    target = import_function(fn, where=where)
    parameters = _parameters_of(target, fn, where)
    is_factory = inspect.isclass(target) or not any(
        parameter.kind is parameter.VAR_KEYWORD or name in TEXT_ARGUMENTS for name, parameter in parameters.items()
    )
    if not inspect.isclass(target):
        refuse_other_signature(fn, parameters, args, where=where)
    raise_any(argument_problems(fn, target, args, is_factory=is_factory, args_key=args_key, place=place))
    try:
        if not is_factory and (check := getattr(target, CHECK, None)) is not None:
            defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
            given = defaults | dict(args)
            wanted = inspect.signature(check).parameters
            check(**{name: value for name, value in given.items() if name in wanted})
        reward = target(**args) if is_factory else target
    except RewardError as error:
        raise anchored(error, args_key=args_key, place=place) from error
    except Exception as error:  # a user's factory may raise anything: show the real error
        raise RewardError(
            f"{fn} does not take these arguments",
            where=place(args_key),
            got=f"{dict(args)} ({_import_error(error)})",
            expected=f"what {fn} accepts",
        ) from error
    if not callable(reward):
        raise RewardError(
            f"{fn} made no reward function",
            where=where,
            got=type(reward).__name__,
            expected="a callable, or a function that takes `completions` and so is a reward itself",
        )
    function: RewardFunction = reward
    parameters = _parameters_of(function, fn, where)
    refuse_other_signature(fn, parameters, {} if is_factory else args, where=where)
    return WithArguments(function, **({} if is_factory else args))


def _parameters_of(function: RewardFunction, fn: str, where: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        expected = "a function written in Python, which takes `completions`"
        raise RewardError("this function does not say what it takes", where=where, got=fn, expected=expected) from None


def required_columns(reward: RewardFunction) -> list[str]:
    """Return the dataset columns that a reward function requires: its parameters without default."""
    return [name for name in required_parameters(inspect.signature(reward).parameters) if name not in REWARD_ARGUMENTS]


def source_file(fn: str) -> Path | None:
    """Return the Python file that defines `fn`, to hash it; None if there is none (a builtin, an extension)."""
    module, _, _ = fn.rpartition(":")
    if module.endswith(".py"):
        return Path(module).expanduser().resolve()
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


def import_function(fn: str, *, where: str) -> RewardFunction:
    """Return the function that `module:function` or `./file.py:function` names, unbound.

    Raise RewardError with the real import error if it is missing or cannot be imported.
    """
    module_name, colon, attribute = fn.rpartition(":")
    parts = attribute.split(".")
    if not colon or not all(part.isidentifier() for part in parts) or not module_name:
        raise RewardError(
            "this is no function name", where=where, got=fn, expected="package.module:function, or ./file.py:function"
        )
    # Unlike `python -m`, a console script does not have the current folder on its path, but users expect it.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        is_file = module_name.endswith(".py")
        module = _module_of_file(module_name) if is_file else importlib.import_module(module_name)
    except FileNotFoundError as error:
        raise RewardError(
            "there is no such reward file",
            where=where,
            got=str(error),
            expected="./file.py:function",
            hint=_near_file(module_name, attribute),
        ) from None
    except Exception as error:  # a user's module may raise anything on import: show the real error
        raise RewardError(
            f"{module_name} cannot be imported",
            where=where,
            got=_import_error(error),
            expected="a module that `python -c 'import ...'` can import from this folder",
        ) from error
    holder = functools.reduce(lambda one, part: getattr(one, part, None), parts[:-1], cast(object, module))
    target = getattr(holder, parts[-1], None)
    if inspect.isclass(holder) and inspect.isfunction(inspect.getattr_static(holder, parts[-1], None)):
        raise RewardError(
            f"{attribute} is a method of an instance, and there is none",
            where=where,
            got=fn,
            expected=f"a line `scorer = {holder.__name__}()` in {module_name}, and its method",
            hint=f"{module_name}:scorer.{parts[-1]}",
        )
    if target is None or not callable(target):
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise RewardError(
            f"{module_name} has no function {attribute!r}",
            where=where,
            got=fn,
            expected="one of " + ", ".join(sorted(public)) if public else "a function defined in that file",
            hint=f"{module_name}:{close}" if (close := nearest(attribute, public)) is not None else None,
        )
    function: RewardFunction = target
    return function


def _module_of_file(file: str) -> ModuleType:
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(path)
    sys.path[:] = dict.fromkeys([str(path.parent), *sys.path])  # as for `python FILE`: what it imports lies beside it
    return importlib.import_module(user_files.name_of(path))


def _near_file(file: str, attribute: str) -> str | None:
    """Return the same function in the file of that folder with the most similar name, or None."""
    folder = Path(file).expanduser().parent
    close = nearest(Path(file).name, [path.name for path in folder.glob("*.py")])
    return f"{file.removesuffix(Path(file).name)}{close}:{attribute}" if close is not None else None


def _import_error(error: Exception) -> str:
    """Return `ImportError: No module named 'x' (rewards.py:3)`: the error and the last user line that it came from."""
    traceback = error.__traceback__
    place = None
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if file != Path(__file__) and "importlib" not in str(file):
            place = f"{file.name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError):
        place = f"{Path(error.filename or '').name}:{error.lineno}"
    return described(error) + (f" ({place})" if place else "")
