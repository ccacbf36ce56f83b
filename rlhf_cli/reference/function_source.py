"""Read a function's parameters from its source without importing it, so no user code runs and torch is not loaded."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.errors import RewardError
from rlhf_cli.reference.docstring import Docstring, read_docstring
from rlhf_cli.suggest import nearest

NO_DEFAULT = object()
"""Marks a parameter without a default."""

_FOLLOWED = "rlhf_cli.sandbox"
"""Modules whose constants are looked up when a reward's signature uses them."""

_ANNOTATED = re.compile(r"Annotated\[(\w+)((?:, \w+\([^()]*\))+)\]")
_BOUND = re.compile(r", (\w+)\(([^()]*)\)")
_BOUNDS = {"Ge": "at least", "Gt": "above", "Le": "at most", "Lt": "below"}
"""The words for the bounds of `annotated_types`."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Parameter:
    """A parameter as written: `type` is its annotation with the file's aliases expanded, '' if it has none.

    `default` is a value, NO_DEFAULT, or the source of an expression that is not a literal. `choices` are the values of
    a `Literal`. `by_name` is True for a keyword-only parameter.
    """

    name: str
    type: str
    default: object
    choices: tuple[str, ...] = ()
    takes_the_rest: bool = False
    by_name: bool = False

    @property
    def is_required(self) -> bool:
        """Return whether the parameter must be given."""
        return self.default is NO_DEFAULT and not self.takes_the_rest


@dataclass(frozen=True)
class FunctionSource:
    """A function or class as its source defines it. A class's parameters are those of its `__init__`.

    `scores_by` is the docstring of the function that scores one text (`score_...`, as all built-in rewards have) if the
    function's own docstring names one, else None.
    """

    name: str
    file: Path
    line: int
    docstring: Docstring
    parameters: tuple[Parameter, ...]
    is_class: bool = False
    scores_by: Docstring | None = None


def functions_in(fn: str, *, where: str = "command line") -> list[str]:
    """Return the public functions and classes of the file or module at the start of `fn` (`./rewards.py:`).

    Raises RewardError as `read_function` does.
    """
    _, tree = _parsed(fn.rpartition(":")[0] or fn, where)
    return [node.name for node in _definitions(tree) if not node.name.startswith("_")]


def read_function(fn: str, *, where: str = "command line") -> FunctionSource:
    """Return the source description of `module:function` or `./file.py:function`.

    Raises RewardError if the file, module or function does not exist or is not Python.
    """
    module, colon, name = fn.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise RewardError("this is no function name", where=where, got=fn, expected="./file.py:function")
    file, tree = _parsed(module, where)
    node = next((node for node in _definitions(tree) if node.name == name), None)
    if node is None:
        public = [node.name for node in _definitions(tree) if not node.name.startswith("_")]
        close = nearest(name, public)
        raise RewardError(
            f"{module} has no function {name!r}",
            where=where,
            got=fn,
            expected="one of " + ", ".join(public) if public else "a function defined in that file",
            hint=f"{module}:{close}" if close else None,
        )
    raw = ast.get_docstring(node) or ""
    named = set(re.findall(r"`(score_\w+)`", raw)) - {name}
    score = next((other for other in _definitions(tree) if other.name in named), None)
    return FunctionSource(
        name=name,
        file=file,
        line=node.lineno,
        docstring=read_docstring(raw),
        parameters=tuple(_parameters(node, _assigned(tree))),
        is_class=isinstance(node, ast.ClassDef),
        scores_by=read_docstring(ast.get_docstring(score)) if score is not None else None,
    )


def source_file_of(module: str) -> Path | None:
    """Return the file of `a.b.c` or `./file.py`, or None; finds it without importing packages."""
    if module.endswith(".py"):
        path = Path(module).expanduser()
        return path if path.is_file() else None
    top, *rest = module.split(".")
    beside = Path.cwd().joinpath(top)
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    roots = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    if spec and spec.origin and not rest:
        return Path(spec.origin)
    for root in [*roots, beside]:
        place = root.joinpath(*rest)
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


def _parsed(module: str, where: str) -> tuple[Path, ast.Module]:
    file = source_file_of(module)
    if file is None:
        what = "there is no such reward file" if module.endswith(".py") else f"there is no module {module!r}"
        raise RewardError(what, where=where, got=module, expected="./file.py:function, or package.module:function")
    try:
        return file, ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise RewardError(f"{module} is not Python", where=f"{file}{line}", got=str(error)) from None


def _definitions(tree: ast.Module) -> Iterator[_Definition]:
    for node in tree.body:
        if isinstance(node, _Definition):
            yield node


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Return a file's top-level constants and type aliases, including those imported from our modules."""
    named: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_FOLLOWED):
            file = source_file_of(node.module or "")
            imported = _assigned(ast.parse(file.read_text(encoding="utf-8"))) if file is not None else {}
            named |= {one.asname or one.name: imported[one.name] for one in node.names if one.name in imported}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            named[node.target.id] = node.value
        elif isinstance(node, ast.Assign):
            named |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
    return named


def _parameters(node: _Definition, named: dict[str, ast.expr]) -> Iterator[Parameter]:
    if isinstance(node, ast.ClassDef):
        init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
        if init is None:
            return
        yield from list(_of_arguments(init.args, named))[1:]
        return
    yield from _of_arguments(node.args, named)


def _of_arguments(args: ast.arguments, named: dict[str, ast.expr]) -> Iterator[Parameter]:
    positional = [*args.posonlyargs, *args.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    for arg, default in zip(positional, [*missing, *args.defaults], strict=True):
        yield _parameter(arg, default, named)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield replace(_parameter(arg, default, named), by_name=True)
    if args.kwarg is not None:
        yield Parameter(args.kwarg.arg, "", NO_DEFAULT, takes_the_rest=True)


def _parameter(arg: ast.arg, default: ast.expr | None, named: dict[str, ast.expr]) -> Parameter:
    annotation = arg.annotation
    while isinstance(annotation, ast.Name) and annotation.id in named:
        annotation = named[annotation.id]
    choices = _literals(annotation)
    text = " | ".join(choices) if choices else _type_text(annotation)
    return Parameter(arg.arg, text, _value(default, named), choices)


def _type_text(annotation: ast.expr | None) -> str:
    """Return an annotation in readable form: `Annotated[int, Ge(1)]` becomes `int at least 1`."""
    text = ast.unparse(annotation) if annotation is not None else ""
    return _ANNOTATED.sub(lambda match: f"{match[1]}{_BOUND.sub(_bound_text, match[2])}", text)


def _bound_text(match: re.Match[str]) -> str:
    return f" {_BOUNDS[match[1]]} {match[2]}" if match[1] in _BOUNDS else ""


def _literals(annotation: ast.expr | None) -> tuple[str, ...]:
    """Return the values of `Literal["a", "b"]`, or an empty tuple for any other annotation."""
    if not isinstance(annotation, ast.Subscript) or not ast.unparse(annotation.value).endswith("Literal"):
        return ()
    values = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    return tuple(str(value.value) for value in values if isinstance(value, ast.Constant))


def _value(node: ast.expr | None, named: dict[str, ast.expr]) -> object:
    if node is None:
        return NO_DEFAULT
    while isinstance(node, ast.Name) and node.id in named:
        node = named[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
