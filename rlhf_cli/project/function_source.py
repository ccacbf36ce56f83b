"""Read a function's arguments and docstring from its source, without importing it."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_cli.errors import RewardError
from rlhf_cli.text.regular_files import parse_python
from rlhf_cli.text.suggest import nearest
from rlhf_cli.user_files import module_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_HEADING = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$")
# `name: text`, `a, b: text`, and TRL's `name (`int`, *optional*, defaults to `3`):` with the text below.
_ARGUMENT = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*) ?(?P<type>\(.*\))?:(?P<text>\s.*|)$")


@dataclass(frozen=True)
class Docstring:
    """A parsed docstring: its first paragraph, the rest up to the arguments, and the arguments' descriptions."""

    summary: str = ""
    text: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


def read_docstring(raw: str | None) -> Docstring:
    """Return the parts of a docstring; all are empty for None."""
    parts: dict[str, list[str]] = {"": []}
    heading = ""
    for line in inspect.cleandoc(raw or "").splitlines():
        if match := _HEADING.match(line):
            heading = "Args" if match[1] in ("Arguments", "Parameters") else match[1]
        else:
            if heading == "Args" and line.strip() and not line.startswith(" "):
                heading = ""  # prose continues after the arguments
            parts.setdefault(heading, []).append(line)
    summary, _, text = "\n".join(parts[""]).strip().partition("\n\n")
    return Docstring(_plain(" ".join(summary.split())), _plain(text.strip("\n")), _arguments(parts.get("Args", [])))


def sentences_about(docstring: str | None, name: str) -> str:
    """Return the sentences of a text that name `name` in backticks, on one line; '' if there are none."""
    # A sentence ends before a capital letter or the next name, but not inside `0.5` or at `i.e.`.
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", " ".join((docstring or "").split()))
    return " ".join(sentence for sentence in sentences if re.search(rf"`{re.escape(name)}(`|: )", sentence))


def _arguments(lines: list[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    names: list[str] = []
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    for line in lines:
        match = _ARGUMENT.match(line[depth:]) if not line[:depth].strip() else None
        if match is not None:
            names = [name.lstrip("*") for name in match["names"].split(", ")]
            texts |= {name: [match["text"]] for name in names}
        else:
            for name in names:
                texts[name].append(line)
    return {name: _plain(" ".join(" ".join(text).split())).strip() for name, text in texts.items()}


def _plain(text: str) -> str:
    return re.sub(r"\[`~?([^`\]]+)`\](?:\([^)]*\))?", lambda match: match[1].rpartition(".")[2], text).rstrip()


NO_DEFAULT = inspect.Parameter.empty  # marks a parameter that must be given


def as_tree(value: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass as JSON: its fields, without those that are NO_DEFAULT."""
    return asdict(value, dict_factory=lambda pairs: {name: one for name, one in pairs if one is not NO_DEFAULT})


_FOLLOWED = "rlhf_cli.services.sandbox"  # modules whose constants are looked up when a reward's signature uses them
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class SourceParameter:
    """A parameter as written: `type` is its annotation with the file's aliases expanded, '' if it has none.

    `default` is a value, NO_DEFAULT, or the source of an expression; `choices` are the values of a `Literal`. `by_name`
    means keyword-only, `takes_the_rest` `**kwargs`. `shipped` is what a ready-made YAML sets, or None.
    """

    name: str
    type: str
    default: object
    choices: tuple[str, ...] = ()
    takes_the_rest: bool = False
    by_name: bool = False
    text: str = ""
    shipped: object = None


@dataclass(frozen=True)
class FunctionSource:
    """A function or class as its source defines it. A class's parameters are those of its `__init__`, or its fields."""

    file: Path
    line: int
    docstring: Docstring
    parameters: tuple[SourceParameter, ...]
    is_class: bool = False


def read_function(fn: str, *, where: str = "command line") -> FunctionSource:
    """Return the source description of `module:function` or `./file.py:function`. Raise RewardError."""
    module, _, name = fn.rpartition(":")
    if not module or not name.isidentifier():
        raise RewardError("this is not a function name", where=where, got=fn, expected="./file.py:function")
    file, tree = _parsed(module, where)
    definitions = {node.name: node for node in tree.body if isinstance(node, _Definition)}
    if name not in definitions:
        public = functions_in(module)
        close = nearest(name, public)
        what, hint = f"{module} has no function {name!r}", f"{module}:{close}" if close else None
        expected = "one of " + ", ".join(public) if public else "a function defined in that file"
        raise RewardError(what, where=where, got=fn, expected=expected, hint=hint)
    node = definitions[name]
    docstring, parameters = read_docstring(ast.get_docstring(node)), tuple(_parameters(node, tree))
    return FunctionSource(file, node.lineno, docstring, parameters, is_class=isinstance(node, ast.ClassDef))


def functions_in(module: str) -> list[str]:
    """Return the public functions and classes of a file or module. Raise RewardError if it cannot be read."""
    _, tree = _parsed(module, "command line")
    return [node.name for node in tree.body if isinstance(node, _Definition) and not node.name.startswith("_")]


def _parsed(module: str, where: str) -> tuple[Path, ast.Module]:
    file = module_file(module)
    if file is None or not file.is_file():
        what = "there is no such reward file" if module.endswith(".py") else f"there is no module {module!r}"
        raise RewardError(what, where=where, got=module, expected="./file.py:function, or package.module:function")
    try:
        return file, parse_python(file.read_bytes())
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise RewardError(f"{module} is not Python", where=f"{file}{line}", got=str(error)) from None


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Return a file's top-level constants and type aliases, including those imported from our modules."""
    named: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_FOLLOWED):
            imported = _assigned(_parsed(node.module or "", "")[1])
            named |= {one.asname or one.name: imported[one.name] for one in node.names if one.name in imported}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            named[node.target.id] = node.value
        elif isinstance(node, ast.Assign):
            named |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
    return named


def _fields(node: ast.ClassDef, tree: ast.Module) -> dict[str, SourceParameter]:
    """Return name -> field of a dataclass, with those of a base class that its file imports."""
    found: dict[str, SourceParameter] = {}
    bases = {ast.unparse(base) for base in node.bases}
    for item in (node for node in tree.body if isinstance(node, ast.ImportFrom)):
        for alias in item.names:
            if alias.name in bases:
                with contextlib.suppress(RewardError):  # not a class of Python source
                    base = read_function(f"{item.module}:{alias.name}")
                    texts = base.docstring.arguments
                    found |= {one.name: replace(one, text=texts.get(one.name, "")) for one in base.parameters}
    for field_ in node.body:
        if isinstance(field_, ast.AnnAssign) and isinstance(field_.target, ast.Name):
            name = field_.target.id
            if field_.value is not None and "init=False" in ast.unparse(field_.value):
                found.pop(name, None)
            else:
                found[name] = _parameter(ast.arg(name, field_.annotation), field_.value, _assigned(tree))
    return found


def _parameters(node: _Definition, tree: ast.Module) -> Iterator[SourceParameter]:
    named = _assigned(tree)
    if isinstance(node, ast.ClassDef):
        init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
        if init is not None:
            yield from list(_parameters(init, tree))[1:]  # without `self`
            return
        yield from _fields(node, tree).values()
        return
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    for arg, default in zip(positional, [*missing, *args.defaults], strict=True):
        yield _parameter(arg, default, named)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield replace(_parameter(arg, default, named), by_name=True)
    if args.kwarg is not None:
        yield SourceParameter(args.kwarg.arg, "", NO_DEFAULT, takes_the_rest=True)


def _parameter(arg: ast.arg, default: ast.expr | None, named: dict[str, ast.expr]) -> SourceParameter:
    annotation, expression = _resolved(arg.annotation, named), _resolved(default, named)
    choices: tuple[str, ...] = ()
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Literal"):
        literals = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        choices = tuple(str(literal.value) for literal in literals if isinstance(literal, ast.Constant))
    text = " | ".join(choices) or (ast.unparse(annotation) if annotation is not None else "")
    value: object = NO_DEFAULT
    if expression is not None:
        try:
            value = ast.literal_eval(expression)
        except ValueError:
            value = ast.unparse(expression)
    return SourceParameter(arg.arg, text, value, choices)


def _resolved(node: ast.expr | None, named: dict[str, ast.expr]) -> ast.expr | None:
    """Return what a name stands for in this file, or the expression itself."""
    while isinstance(node, ast.Name) and node.id in named:
        node = named[node.id]
    return node
