"""Read a function's arguments and docstring from its source, without importing it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlhf_cli.errors import RewardError
from rlhf_cli.text.suggest import nearest

_HEADING = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Example|Examples|Note|Notes):\s*$")
_ARGUMENTS = ("Args", "Arguments", "Parameters")
_EXAMPLES = ("Example", "Examples")
# `name: text`, `a, b: text`, and TRL's `name (`int`, *optional*, defaults to `3`):` with the text below.
_ARGUMENT = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*) ?(?P<type>\(.*\))?:(?P<text>\s.*|)$")
_PARAMETER = re.compile(r"^ {4}(?: {4})?(?P<name>\w+) ?\((?P<type>.*)\)\s*:\s*$")
_CROSS_REFERENCE = re.compile(r"\[`~?([^`\]]+)`\](?:\([^)]*\))?")

_LINK = re.compile(r"\[([^\]]+)\]\((https?://[^)\s]+)\)")
_FORMULA = re.compile(r",?\s*(?:\\\(.*?\\\)|(?<!\$)\$[^$\n]+\$(?!\$))")
"""LaTeX inside a line, which repeats the words beside it."""


@dataclass(frozen=True)
class Docstring:
    """A parsed docstring: `summary` is its first sentence or paragraph, `text` the rest up to the arguments.

    `arguments` maps names to their descriptions; `example` is empty if there is none.
    """

    summary: str = ""
    text: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    example: str = ""


def read_docstring(raw: str | None) -> Docstring:
    """Return the parts of a docstring; all are empty for None."""
    lines = inspect.cleandoc(raw or "").splitlines()
    parts: dict[str, list[str]] = {"": []}
    heading = ""
    for line in lines:
        if match := _HEADING.match(line):
            heading = match[1]
            parts.setdefault(heading, [])
        else:
            if heading in _ARGUMENTS and line.strip() and not line.startswith(" "):
                heading = ""  # prose continues after the arguments
            parts[heading].append(line)
    summary, _, text = "\n".join(parts[""]).strip().partition("\n\n")
    arguments: dict[str, str] = {}
    for name in _ARGUMENTS:
        arguments |= _arguments(parts.get(name, []))
    example = next((body for name in _EXAMPLES if (body := _body(parts.get(name, [])))), "")
    return Docstring(_plain(one_line(summary)), _plain(text.strip("\n")), arguments, example)


def documented_parameters(raw: str | None) -> dict[str, str]:
    """Return the field descriptions in a configuration dataclass's docstring: name -> text, on one line.

    Reads the format of TRL and transformers: `name (`type`, *optional*, defaults to ...):` with the text indented
    below.
    """
    texts: dict[str, list[str]] = {}
    current: list[str] | None = None
    depth = 0
    for line in inspect.cleandoc(raw or "").splitlines():
        indent = len(line) - len(line.lstrip())
        if match := _PARAMETER.match(line):
            current, depth = texts.setdefault(match["name"], []), indent
        elif current is not None and line.strip() and indent <= depth:
            current = None  # a heading between groups of fields
        elif current is not None:
            current.append(line.strip())
    return {name: _plain(one_line("\n".join(lines))) for name, lines in texts.items()}


def one_line(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def reflowed(text: str) -> str:
    """Return a text with one line per paragraph, ready to be wrapped; keep indented lines and lists."""
    lines: list[str] = []
    for line in text.splitlines():
        goes_on = (
            bool(lines) and lines[-1].strip() and line.strip() and not line.startswith((" ", "- ", "$", "|", "\\"))
        )
        if goes_on and not lines[-1].startswith((" ", "$", "\\")):
            lines[-1] = f"{lines[-1]} {line}"
        else:
            lines.append(line)
    return "\n".join(lines)


def sentences_about(docstring: str | None, name: str) -> str:
    """Return the sentences of a text that name `name` in backticks, on one line; '' if there are none."""
    text = one_line(docstring or "")
    # A sentence ends before a capital letter or the next name, but not inside `0.5` or at `i.e.`.
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", text)
    about = [sentence for sentence in sentences if re.search(rf"`{re.escape(name)}(`|: )", sentence)]
    return " ".join(about)


def _arguments(lines: list[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    names: list[str] = []
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    for line in lines:
        match = _ARGUMENT.match(line[depth:]) if not line[:depth].strip() else None
        if match is not None:
            names = [name.lstrip("*") for name in match["names"].split(", ")]
            for name in names:
                texts[name] = [match["text"]]
        elif line.strip():
            for name in names:
                texts[name].append(line)
    return {name: _plain(_FORMULA.sub("", one_line("\n".join(said)))).strip() for name, said in texts.items()}


def _body(lines: list[str]) -> str:
    kept = [line for line in lines if not line.strip().startswith("```")]
    return inspect.cleandoc("\n".join(["", *kept])).strip()


def _plain(text: str) -> str:
    """Return a text without the markup of its documentation system."""
    text = _CROSS_REFERENCE.sub(lambda match: match[1].rpartition(".")[2], text)
    text = _LINK.sub(r"\1 (\2)", text)
    return re.sub(r"\s*Defaults to (?:`[^`]*`|\w+)\.(?=\s|$)", "", text).rstrip()


NO_DEFAULT = object()
"""Marks a parameter without a default."""

_FOLLOWED = "rlhf_cli.services.sandbox"
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
