"""Make mutants: change a source text at one node of its syntax tree by one small, plausible mistake.

The kinds are in `_KINDS`. Code that no test of behaviour can see is not mutated: annotations, docstrings, decorators,
imports, texts, `strict=` of zip, and the sizes and colours of a picture (`_LOOKS`).
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    before, after: the source of the changed node; where: the function or class around it; nth: the number of equal
    changes before it in `where`. Together they identify the mutant when lines move. lines: first and last line of the
    statement (of its head, if it has a body); at_import: it runs when the module is imported, like a default or a class
    field.
    """

    file: str
    line: int
    lines: tuple[int, int]
    where: str
    kind: str
    before: str
    after: str
    start: int
    end: int
    at_import: bool
    nth: int = 0

    @property
    def name(self) -> tuple[str, str, str, str, int]:
        """The identity of the mutant, independent of line numbers."""
        return (self.file, self.where, self.before, self.after, self.nth)

    @property
    def in_words(self) -> str:
        """A line with the place, the kind and the change."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.file}:{self.line} [{self.kind}] {before}  ->  {after}"

    def applied(self, source: str) -> str:
        """Return the mutated source; `start` and `end` count bytes, as the syntax tree does."""
        data = source.encode()
        return (data[: self.start] + self.after.encode() + data[self.end :]).decode()


def mutants_of(source: str, file: str) -> list[Mutant]:
    """Return every mutant of a source text, in the order of its lines."""
    tree = ast.parse(source)
    walker = _Walker(source, file)
    walker.visit(tree)
    seen: Counter[tuple[str, str, str, str, int]] = Counter()
    named = []
    for mutant in sorted(walker.found, key=lambda mutant: (mutant.start, mutant.end, mutant.kind, mutant.after)):
        named.append(replace(mutant, nth=seen[mutant.name]))
        seen[mutant.name] += 1
    return named


def drawn(by_room: Sequence[Sequence[Mutant]], counts: Sequence[int], seed: int) -> list[Mutant]:
    """Draw `counts` mutants of the rooms (all, if a room has fewer), in the order of files and lines.

    They are drawn by a hash of seed and name, so changing one statement keeps the rest of a sample.
    """
    sample: list[Mutant] = []
    for mutants, count in zip(by_room, counts, strict=True):
        by_lot = sorted(mutants, key=lambda mutant: hashlib.sha256(repr((seed, mutant.name)).encode()).digest())
        sample += sorted(by_lot[:count], key=lambda mutant: (mutant.file, mutant.start))
    return sample


_Change = Iterator[ast.AST]


def _compare(node: ast.AST) -> _Change:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[place] = _COMPARISONS[type(operator)]()
            yield changed


def _arithmetic(node: ast.AST) -> _Change:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        if not any(isinstance(side, ast.JoinedStr | ast.List) or _is_text_or_none(side) for side in sides):
            changed = copy.deepcopy(node)
            changed.op = _ARITHMETIC[type(node.op)]()
            yield changed


def _logic(node: ast.AST) -> _Change:
    if isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield changed


def _sign(node: ast.AST) -> _Change:
    """`not x`, `~x`, `-x` to `x`."""
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand


def _constant(node: ast.AST) -> _Change:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield ast.Constant(node.value + 1)


def _keyword(node: ast.AST) -> _Change:
    """A call without one of its keyword arguments; `dim=` is also changed."""
    if not isinstance(node, ast.Call):
        return
    for place, keyword in enumerate(node.keywords):
        if keyword.arg in (None, "strict", *_LOOKS):
            continue
        changed = copy.deepcopy(node)
        if keyword.arg == "dim" and isinstance(keyword.value, ast.Constant | ast.UnaryOp):
            changed.keywords[place].value = ast.Constant(1 if ast.unparse(keyword.value) == "0" else 0)
        else:
            del changed.keywords[place]
        yield changed


def _extremum(node: ast.AST) -> _Change:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in _EXTREMA:
            changed = copy.deepcopy(node)
            if isinstance(changed.func, ast.Name):
                changed.func.id = _EXTREMA[name]
            elif isinstance(changed.func, ast.Attribute):
                changed.func.attr = _EXTREMA[name]
            yield changed


def _slice(node: ast.AST) -> _Change:
    """One of a slice's ends moves inward by one."""
    if isinstance(node, ast.Slice):
        for end, operator in (("lower", ast.Add()), ("upper", ast.Sub())):
            bound = getattr(node, end)
            if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
                changed = copy.deepcopy(node)
                setattr(changed, end, ast.BinOp(bound, operator, ast.Constant(1)))
                yield changed


def _statement(node: ast.AST) -> _Change:
    """Remove an assignment to an attribute or item, or a call whose value is not used."""
    is_lone_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    is_placed = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if is_lone_call or is_placed or isinstance(node, ast.AugAssign):
        yield ast.Pass()
    elif isinstance(node, ast.Continue):
        yield ast.Break()


_KINDS: dict[str, Callable[[ast.AST], _Change]] = {
    "comparison": _compare,
    "arithmetic": _arithmetic,
    "logic": _logic,
    "sign": _sign,
    "constant": _constant,
    "argument": _keyword,
    "extremum": _extremum,
    "slice": _slice,
    "statement": _statement,
}
_COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_LOOKS = ("fontsize", "labelsize", "markersize", "linewidth", "linestyle", "marker", "capsize", "fmt")
_LOOKS += ("color", "alpha", "frameon", "rotation", "loc")
"""matplotlib's arguments for the look of a picture."""
_EXTREMA = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin"}
_EXTREMA |= {"sum": "mean", "mean": "sum", "nansum": "nanmean", "nanmean": "nansum"}


def _is_text_or_none(node: ast.AST) -> bool:
    """`+` concatenates texts, and `X | None` is a type."""
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str))


class _Walker(ast.NodeVisitor):
    """Collects the mutants of a module with their function and statement."""

    def __init__(self, source: str, file: str) -> None:
        self.found: list[Mutant] = []
        self._file = file
        self._data = source.encode()
        self._line_starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._where: list[str] = []
        self._functions = 0
        self._arguments: list[str] = []
        self._lines = (1, 1)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Raise | ast.arguments):
            return
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            self._lines = (
                node.lineno,
                max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno,
            )
        for kind, changes in _KINDS.items():
            for changed in changes(node):
                self._add(node, kind, changed)
        if isinstance(node, ast.Return):
            self._return(node)
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
            return  # it never runs
        self._where.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._where.pop()

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in ("dim", "strict", *_LOOKS):
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]:
            self.visit(default)
        outer, self._arguments = (
            self._arguments,
            [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")],
        )
        self._where.append(node.name)
        self._functions += 1
        for statement in node.body:
            self.visit(statement)
        self._functions -= 1
        self._where.pop()
        self._arguments = outer

    def _return(self, node: ast.Return) -> None:
        """Return the first argument unchanged."""
        if node.value is None or not self._arguments or not isinstance(node.value, ast.Call | ast.BinOp):
            return
        self._add(node.value, "return", ast.Name(self._arguments[0]))

    def _add(self, node: ast.AST, kind: str, changed: ast.AST) -> None:
        start, end = (self._line_starts[line - 1] + column for line, column in _ends(node))
        before, after = self._data[start:end].decode(), ast.unparse(ast.fix_missing_locations(changed))
        if isinstance(node, ast.expr) and isinstance(changed, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp):
            after = f"({after})"
        line: int = node.lineno  # type: ignore[attr-defined]
        where, at_import = ".".join(self._where), not self._functions
        self.found.append(Mutant(self._file, line, self._lines, where, kind, before, after, start, end, at_import))


def _ends(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (line, column in bytes) of both ends."""
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
