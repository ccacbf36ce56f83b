"""Import the reward function named by `fn: module:function` or `./file.py:function`, and check its `args`. No torch.

Rewards check rules that an annotation cannot express: a factory raises when it is called, and a function uses
`refused_by` of `rewards/completion_text`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import itertools
import json
import shlex
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Union, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from rlhf_cli import user_files
from rlhf_cli.errors import RewardError, described, pydantic_words, raise_any
from rlhf_cli.process import kept
from rlhf_cli.rewards.completion_text import CHECK
from rlhf_cli.tables.trl_values import BESIDE_ARGS, NEVER_COLUMNS, REWARD_ARGUMENTS, TEXT_ARGUMENTS
from rlhf_cli.text.suggest import nearest

Place = Callable[[str], str]
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

RewardFunction = Callable[..., object]


class WithArguments(functools.partial[object]):
    """A reward with the configuration's `args`, which no column replaces, called with the columns that it takes."""

    def __call__(self, /, *given: object, **columns: object) -> object:
        """Call the reward with the columns that it takes and that are not arguments; fill parameters before a `/`."""
        taken = {name: column for name, column in columns.items() if name not in self.keywords}
        parameters = inspect.signature(self.func).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            taken = {name: column for name, column in taken.items() if name in parameters}
        by_place = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_ONLY]
        first = [taken.pop(name) for name in itertools.takewhile(taken.__contains__, by_place[len(given) :])]
        return super().__call__(*given, *first, **taken)


@kept("the import of a reward")
def resolve(
    fn: str, args: Mapping[str, object], *, where: str, args_key: str = "args", place: Callable[[str], str] = str
) -> RewardFunction:
    """Return the reward function that `fn` names, with `args` bound to it.

    A callable without TRL's own arguments (`get_soft_overlong_punishment(max_completion_len, ...)`, or a class) is a
    factory: it is called once with `args`, and returns the reward. `where` is the location of `fn`, `args_key` the key
    of `args`, and `place` turns a key into its location. Raise RewardError, or Problems if it does not take `args`.
    """
    target = import_function(fn, where=where)
    parameters = parameters_of(target, fn, where)
    is_factory = inspect.isclass(target) or not any(
        parameter.kind is parameter.VAR_KEYWORD or name in TEXT_ARGUMENTS for name, parameter in parameters.items()
    )
    if not inspect.isclass(target):
        refuse_other_signature(fn, parameters, args, where=where)
    raise_any(argument_problems(fn, target, args, is_factory=is_factory, args_key=args_key, place=place))
    try:
        if not is_factory and (check := getattr(target, CHECK, None)) is not None:
            given = {name: one.default for name, one in parameters.items() if one.default is not one.empty} | dict(args)
            wanted = inspect.signature(check).parameters
            check(**{name: value for name, value in given.items() if name in wanted})
        reward = target(**args) if is_factory else target
    except RewardError as error:
        raise anchored(error, args_key=args_key, place=place) from error
    except Exception as error:  # a user's factory may raise anything: show the real error
        got = f"{dict(args)} ({_import_error(error)})"
        raise RewardError(f"{fn} does not take these arguments", where=place(args_key), got=got) from error
    if not callable(reward):
        what, got = f"{fn} returned no reward function", type(reward).__name__
        expected = "a callable; a function that takes `completions` is a reward itself"
        raise RewardError(what, where=where, got=got, expected=expected)
    bound = {} if is_factory else args
    refuse_other_signature(fn, parameters_of(reward, fn, where), bound, where=where)
    return WithArguments(reward, **bound)


def parameters_of(function: RewardFunction, fn: str, where: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of what `fn` names. Raise RewardError for a function without a known signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        expected = "a function written in Python"
        raise RewardError("this function has no signature", where=where, got=fn, expected=expected) from None


def compares_rows(reward: RewardFunction) -> bool:
    """Return whether a reward compares the rows of a prompt, which it says by an attribute: one alone has no score."""
    return getattr(getattr(reward, "func", reward), "compares_rows", False) is True


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
    """Return what `module:function` or `./file.py:function` names. Raise RewardError with the real import error."""
    module_name, colon, attribute = fn.rpartition(":")
    is_file = module_name.endswith(".py")
    is_name = all(map(str.isidentifier, attribute.split(".")))
    if not colon or not is_name or (not is_file and set("/:") & set(module_name)):
        expected = "package.module:function, or ./file.py:function"
        raise RewardError("invalid function name", where=where, got=fn, expected=expected, hint=_meant_name(fn))
    # Unlike `python -m`, a console script does not have the current folder on its path, but users expect it.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    file = Path(module_name).expanduser() if is_file else Path(module_name)  # the name of a module may begin with ~
    folders = {Path.cwd(), file.resolve().parent if is_file else Path.cwd()}
    for hiding in (folder / f"{package}.py" for folder in folders for package in _PACKAGES):
        if hiding.is_file():
            what = f"training imports the package {hiding.stem}, and would get {hiding.name} of this folder instead"
            move = shlex.join(["mv", str(hiding), str(hiding.with_stem(f"my_{hiding.stem}"))])
            raise RewardError(what, where=str(hiding), expected="a name that is no package's", hint=move)
    if is_file and not file.is_file():
        close = nearest(file.name, [path.name for path in file.parent.glob("*.py")])
        hint = f"{module_name.removesuffix(file.name)}{close}:{attribute}" if close is not None else None
        raise RewardError("there is no such reward file", where=where, got=str(file.resolve()), hint=hint)
    if is_file:
        sys.path[:] = dict.fromkeys([str(file.resolve().parent), *sys.path])  # as for `python FILE`: imports beside it
    try:
        module = importlib.import_module(user_files.name_of(file.resolve()) if is_file else module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything on import: show the real error
        raise RewardError(f"{module_name} cannot be imported", where=where, got=_import_error(error)) from error
    target = functools.reduce(lambda one, part: getattr(one, part, None), attribute.split("."), cast(object, module))
    if not callable(target):
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        close = nearest(attribute, public)
        raise RewardError(
            f"{module_name} has no function {attribute!r}",
            where=where,
            got=fn,
            expected="one of " + ", ".join(sorted(public)) if public else "a function defined in that file",
            hint=None if close is None else f"{module_name}:{close}",
        )
    names = getattr(getattr(target, "__code__", None), "co_varnames", ())
    if "." in attribute and names[:1] == ("self",) and not hasattr(target, "__self__"):
        holder, _, name = attribute.rpartition(".")
        what, expected = f"{attribute} is a method, and there is no instance", f"a line `scorer = {holder}()` beside it"
        raise RewardError(what, where=where, got=fn, expected=expected, hint=f"{module_name}:scorer.{name}")
    return target


_PACKAGES = ("accelerate", "datasets", "numpy", "pandas", "peft", "tokenizers", "torch", "transformers", "trl")
"""What training imports after the folders of the user's functions are on the path."""


def _meant_name(fn: str) -> str | None:
    """Return the name that was meant by `./file.py`, `./file.py::f`, `./file:f` or `module.f`, or None."""
    parts = [part for part in fn.split(":") if part]
    typed = parts[0] if parts else ""
    file = f"{typed}/__init__.py" if Path(typed).expanduser().is_dir() else f"{typed.removesuffix('.py')}.py"
    if Path(file).expanduser().is_file():
        is_name = len(parts) > 1 and all(map(str.isidentifier, parts[-1].split(".")))
        return f"{file}:{parts[-1] if is_name else 'FUNCTION'}"
    module, dot, function = fn.rpartition(".")
    return f"{module}:{function}" if dot and Path(f"{module.replace('.', '/')}.py").is_file() else None


def _import_error(error: BaseException) -> str:
    """Return `ImportError: No module named 'x' (rewards.py:3)`: the error and the last user line that it came from."""
    ours = (__file__, user_files.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in ours]
    frames = [frame for frame in frames if "importlib" not in frame.filename]
    # wandb replaces sys.exit by a function of its own.
    own = [frame for frame in frames if "site-packages" not in Path(frame.filename).parts]
    place = next((f"{Path(frame.filename).name}:{frame.lineno}" for frame in [*reversed(own), *frames]), None)
    if isinstance(error, SyntaxError):
        place = f"{Path(error.filename or '').name}:{error.lineno}"
    return described(error) + (f" ({place})" if place else "")


def argument_problems(
    fn: str, target: Callable[..., object], args: Mapping[str, object], *, is_factory: bool, args_key: str, place: Place
) -> Iterator[RewardError]:
    """Yield an error for each argument that is unknown, reserved for the trainer, of a wrong value, or missing."""
    parameters = inspect.signature(target).parameters
    named = {name: parameter for name, parameter in parameters.items() if parameter.kind in _BY_KEYWORD}
    takes_any = is_factory and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    annotations = _annotations_of(target)
    # the **kwargs of a function receive columns: a misspelt argument would go unnoticed there
    unknown = [name for name in args if name not in named and not takes_any]
    for name, value in args.items():
        key, got = f"{args_key}.{name}", json.dumps(value, ensure_ascii=False, default=str)
        if name in unknown:
            valid = [other for other in named if other not in REWARD_ARGUMENTS]
            close = nearest(name, valid)
            yield RewardError(
                f"{fn} has no argument {name!r}",
                where=place(key),
                got=f"{name}: {got}",
                expected=", ".join(valid) or "no arguments",
                hint=f"{args_key}.{close}" if close else f"'~{key}'",
            )
        elif not is_factory and name in REWARD_ARGUMENTS:
            what = f"the trainer passes {name} to {fn}; a configuration cannot"
            yield RewardError(what, where=place(key), got=value, hint=f"'~{key}'")
        elif name in named and not (value is None and named[name].default is None):
            annotation = annotations.get(name, object)
            if (expected := complaint(annotation, value)) is not None:
                what, hint = f"{fn} does not take this value for {name}", _hint(key, annotation, value)
                yield RewardError(what, where=place(key), got=got, expected=expected, hint=hint)
    for name in required_parameters(named) if is_factory else ():
        # The error for a misspelt argument already suggests this name.
        if name not in args and not nearest(name, unknown):
            expected = ", ".join(named) + ("" if inspect.isclass(target) else "; a reward itself takes `completions`")
            what, got = f"{fn} needs the argument {name!r}", ", ".join(args) or "no arguments"
            hint = f"{args_key}.{name}=VALUE"
            yield RewardError(what, where=place(args_key), got=got, expected=expected, hint=hint)


def required_parameters(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of the parameters that have no default."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, one in parameters.items() if one.default is one.empty and one.kind not in several]


def refuse_other_signature(
    fn: str, parameters: Mapping[str, inspect.Parameter], args: Mapping[str, object], *, where: str
) -> None:
    """Raise RewardError for a function that needs what no reward is given, as those of verl, OpenRLHF and slime do."""
    every = NEVER_COLUMNS | (BESIDE_ARGS if "args" in parameters else {})
    known = ("prompt", "completion") if "completions" in parameters else every
    foreign = [name for name in required_parameters(parameters) if name in known and name not in args]
    if foreign:
        column = every[foreign[0]]
        is_column = foreign[0] in ("prompt", "completion")
        why = f". TRL keeps that column of the rows to itself; for it, data.rename.NAME={foreign[0]}" * is_column
        raise RewardError(
            f"{fn} takes {foreign[0]!r}, which no reward is given",
            where=where,
            got=f"{fn.rpartition(':')[2]}({', '.join(parameters)}){why}",
            expected=f"{column}, a list with one entry per row; for example a function that calls this one:",
            advice=f"def score({', '.join(dict.fromkeys(['completions', column]))}, **columns): ...",
        )


def missing_arguments(reward: Callable[..., object], *, only_by_keyword: bool = False) -> list[str]:
    """Return a reward function's parameters without default whose annotation wants one value, not a column.

    With `only_by_keyword`, leave out a positional `answer: str`, which may mean that each answer is a text.
    """
    annotations, parameters = _annotations_of(getattr(reward, "func", reward)), inspect.signature(reward).parameters
    kinds = (inspect.Parameter.KEYWORD_ONLY,) if only_by_keyword else _BY_KEYWORD
    names = [name for name in required_parameters(parameters) if parameters[name].kind in kinds]
    return [name for name in names if name not in REWARD_ARGUMENTS and _is_scalar(annotations.get(name, object))]


def complaint(annotation: object, value: object) -> str | None:
    """Return a description of the expected value, or None if `value`, as strict JSON, fits or cannot be checked."""
    try:
        adapter: TypeAdapter[object] = TypeAdapter(annotation)  # type: ignore[arg-type]
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        if not any(problem["type"] == "callable_type" for problem in error.errors()):  # no text is a function
            return " or ".join(dict.fromkeys(pydantic_words(problem["msg"]) for problem in error.errors()))
    except (PydanticUserError, TypeError, ValueError, NameError):
        pass  # pydantic cannot use the annotation, or JSON cannot express the value
    return None


def _annotations_of(target: Callable[..., object]) -> dict[str, object]:
    """Return the resolved annotation of each parameter; leave out annotations that cannot be resolved."""
    function = target.__init__ if inspect.isclass(target) else inspect.unwrap(target)
    names, found = getattr(function, "__globals__", {}), dict[str, object]()
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(NameError, AttributeError, TypeError, SyntaxError):
            found |= typing.get_type_hints(alone, globalns=names, include_extras=True)
    return found


def _parts_of(annotation: object) -> list[object]:
    """Return the members of a union, or the annotation itself, without `Annotated`."""
    if get_origin(annotation) is Annotated:
        return _parts_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [one for part in get_args(annotation) for one in _parts_of(part)]
    return [annotation]


def _is_scalar(annotation: object) -> bool:
    """Return whether the annotation wants a single value instead of a column."""
    scalars = (int, float, bool, str, type(None))
    return all(get_origin(part) is Literal or part in scalars for part in _parts_of(annotation))


def _hint(key: str, annotation: object, value: object) -> str | None:
    """Return the probable value: the nearest choice, 3 for "3", true for "yes", [a] for a; None if unknown."""
    literals = [get_args(part) for part in _parts_of(annotation) if get_origin(part) is Literal]
    choices = [choice for some in literals for choice in some if isinstance(choice, str)]
    if isinstance(value, str) and choices:
        close = nearest(value.lower(), choices)
        return f"{key}={close}" if close else None
    adapter: TypeAdapter[object] = TypeAdapter(annotation)  # type: ignore[arg-type]
    for candidate in (value, [value]) if not isinstance(value, bool) else ():
        with contextlib.suppress(ValidationError):
            meant = adapter.validate_python(candidate)
            return f"{key}='[{value}]'" if isinstance(meant, list) else f"{key}={json.dumps(meant, default=str)}"
    return None


def anchored(error: RewardError, *, args_key: str, place: Place) -> RewardError:
    """Return an error that a reward raised about `args.NAME` as an error about that configuration key."""
    where, hint = error.where or "args", error.hint
    if where == "args" or where.startswith("args."):
        error.where = place(args_key + where.removeprefix("args"))
        error.hint = hint.replace("args.", f"{args_key}.") if hint is not None and hint.startswith("args.") else hint
    return error
