"""mypy sees the types it is to check: a Tensor is torch's and not Any, so a planted mistake is refused."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.config.trl_args import package_dir
from scripts import structure

PLANTED = """\
from torch import Tensor

from rlhf_cli.numerics.gae import whiten
from rlhf_cli.numerics.ppo_losses import k1


def right(logp: Tensor, logq: Tensor) -> Tensor:
    return whiten(k1(logp, logq), logp > 0)[0]


def text_for_tensor(logp: Tensor) -> Tensor:
    return k1(logp, "a text")  # refused: arg-type


def float_for_tensor(logp: Tensor) -> Tensor:
    return 0.5  # refused: return-value


def tensor_for_float(logp: Tensor) -> float:
    return k1(logp, logp)  # refused: return-value


def no_such_method(logp: Tensor) -> Tensor:
    return k1(logp, logp).whitened()  # refused: attr-defined, no-any-return


def seen(logp: Tensor) -> None:
    reveal_type(k1(logp, logp))
"""

OF_LIBRARIES = """\
import datasets
import transformers


def seen(model: transformers.PreTrainedModel, rows: datasets.Dataset) -> None:
    reveal_type(model)
    reveal_type(rows)
"""


def messages_of_mypy(source: str, folder: Path, *more: str) -> dict[int, list[str]]:
    """Return line of `source` -> what mypy says of it under the project's configuration; of `more` it says nothing."""
    file = folder / "planted.py"
    file.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary", *more, str(file)]
    environment = {**os.environ, "MYPYPATH": str(structure.ROOT)}
    done = subprocess.run(command, cwd=structure.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    found = [(line, re.search(r"planted\.py:(\d+): (.*)", line)) for line in done.stdout.splitlines()]
    assert [line for line, match in found if not match] == [], "of another file"
    lines: dict[int, list[str]] = {}
    for _, match in found:
        lines.setdefault(int(match[1]), []).append(match[2])
    return lines


def revealed(said: dict[int, list[str]]) -> list[str]:
    """Return the types that `reveal_type` showed, in the order of their lines."""
    return [name for _, messages in sorted(said.items()) for one in messages for name in re.findall('is "(.*)"', one)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What mypy says of the planted mistakes, and that it says nothing of the package: one start for both."""
    return messages_of_mypy(PLANTED, tmp_path_factory.mktemp("planted"), structure.PACKAGE)


def test_negative_control_each_planted_mistake_is_refused(said: dict[int, list[str]]) -> None:
    refused = {line for line, messages in said.items() if any(one.startswith("error:") for one in messages)}
    planted = {number for number, text in enumerate(PLANTED.splitlines(), 1) if "# refused" in text}
    assert refused == planted
    for number in planted:
        codes = PLANTED.splitlines()[number - 1].rpartition("# refused: ")[2].split(", ")
        assert any(f"[{code}]" in message for code in codes for message in said[number])


def test_a_tensor_is_torchs(said: dict[int, list[str]]) -> None:
    assert revealed(said) == ["torch._tensor.Tensor"]


@pytest.mark.slow
def test_models_and_rows_have_the_libraries_types(tmp_path: Path) -> None:
    assert revealed(messages_of_mypy(OF_LIBRARIES, tmp_path)) == [
        "transformers.modeling_utils.PreTrainedModel",
        "datasets.arrow_dataset.Dataset",
    ]


def names_any(expression: ast.expr | None) -> bool:
    """Return whether a type says Any: by its name, as `typing.Any`, or inside a text."""
    for part in ast.walk(expression) if expression is not None else ():
        name = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
        text = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
        if name == "Any" or re.search(r"\bAny\b", text):
            return True
    return False


def says_any(node: ast.stmt) -> list[ast.expr | ast.stmt]:
    """Return what of a statement, not of those inside it, declares Any: arguments, results, attributes, aliases."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        taken = node.args
        every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
        annotations = [node.returns, *(one.annotation for one in every if one is not None)]
        return [one for one in annotations if one is not None and names_any(one)]
    if isinstance(node, ast.AnnAssign):
        is_alias = isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
        return [node] if names_any(node.value if is_alias else node.annotation) else []
    if isinstance(node, ast.Assign):  # `Batch = dict[str, Any]`, `Whatever = Any`; a text that is assigned is no type
        is_type = isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript | ast.BinOp)
        return [node] if is_type and names_any(node.value) else []
    is_renamed = isinstance(node, ast.ImportFrom) and any(one.name == "Any" and one.asname for one in node.names)
    return [node] if is_renamed else []


def methods_of(file: Path, class_name: str) -> set[str]:
    """Return the names of the methods that a class defines, read from its source."""
    found = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]
    (body,) = [node.body for node in found if node.name == class_name]
    return {one.name for one in body if isinstance(one, ast.FunctionDef)}


PROTOCOL = structure.ROOT / structure.PACKAGE / "trainers" / "trl_protocol.py"
SEAMS = {
    "TrlTrainer": methods_of(PROTOCOL, "TrlTrainer"),
    "TrainerCallback": methods_of(package_dir("transformers") / "trainer_callback.py", "TrainerCallback"),
}
"""Base class -> the methods of TRL's and transformers' that its subclasses override, with the signatures they have."""


def bases_by_class(files: list[Path]) -> dict[str, set[str]]:
    """Return the name of every class in the files -> the names of its bases."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name: {one.id for one in node.bases if isinstance(one, ast.Name)} for node in classes}


def overridden(name: str, bases: dict[str, set[str]]) -> set[str]:
    """Return the methods of the seams that lie below a class, through any number of bases."""
    if name in SEAMS:
        return SEAMS[name]
    return {method for base in bases.get(name, ()) for method in overridden(base, bases)}


def anys(file: Path, bases: dict[str, set[str]]) -> list[str]:
    """Return `line: what` of everything in a file that declares Any, but for overrides of a seam and local names."""
    found: list[str] = []

    def look(node: ast.AST, owner: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            is_override = is_function and owner is not None and child.name in overridden(owner, bases)
            is_local = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_function
            if isinstance(child, ast.stmt) and not is_override and not is_local:
                found.extend(f"{one.lineno}: {ast.unparse(one)}" for one in says_any(child))
            if isinstance(child, ast.ClassDef):
                look(child, child.name)
            elif is_function:
                look_inside(child)
            elif not is_local:
                look(child, owner)

    def look_inside(function: ast.AST) -> None:
        """Functions and classes in a function have signatures, too; its variables are its own business."""
        for child in ast.iter_child_nodes(function):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.extend(f"{one.lineno}: {ast.unparse(one)}" for one in says_any(child))
            if isinstance(child, ast.ClassDef):
                look(child, child.name)
            else:
                look_inside(child)

    look(ast.parse(file.read_text(encoding="utf-8")), None)
    return found


PACKAGE_FILES = sorted((structure.ROOT / structure.PACKAGE).rglob("*.py"))


@pytest.fixture(scope="module")
def bases() -> dict[str, set[str]]:
    """Class of the package -> the names of its bases."""
    return bases_by_class(PACKAGE_FILES)


def test_numerics_has_no_any_and_ignores_no_type() -> None:
    files = (structure.ROOT / structure.PACKAGE / "numerics").glob("*.py")
    assert [file.name for file in files if re.search(r"\bAny\b|type: ignore", file.read_text(encoding="utf-8"))] == []


def test_any_is_declared_only_where_trl_and_transformers_are_overridden(bases: dict[str, set[str]]) -> None:
    said = {str(file.relative_to(structure.ROOT)): anys(file, bases) for file in PACKAGE_FILES if file != PROTOCOL}
    assert {file: lines for file, lines in said.items() if lines} == {}


def test_the_seams_are_those_of_trl_and_transformers(bases: dict[str, set[str]]) -> None:
    assert {"_compute_loss", "_save_checkpoint", "__init__"} < SEAMS["TrlTrainer"]
    assert {"on_log", "on_train_end"} < SEAMS["TrainerCallback"]
    assert overridden("PpoMixin", bases) == SEAMS["TrlTrainer"]  # through PassMixin, and through RewardMixin
    assert overridden("RewardSamples", bases) == SEAMS["TrainerCallback"]
    assert overridden("RewardStack", bases) == set()


def test_one_alias_stands_for_what_trl_does_not_type() -> None:
    outside = [one for one in ast.parse(PROTOCOL.read_text(encoding="utf-8")).body if says_any(one)]
    assert [ast.unparse(one) for one in outside] == ["TrlBatch: TypeAlias = dict[str, Any]"]


WITH_ANY = """\
import typing
from typing import Any, TypeAlias
from typing import Any as Whatever  # seen
from rlhf_cli.trainers.trl_protocol import TrlTrainer

Rows = list[Any]  # seen
Batch: TypeAlias = "dict[str, Any]"  # seen
Anything = typing.Any  # seen


class Mixed(TrlTrainer):
    kept: dict[str, Any]  # seen

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> object: ...
    def _helper(self, output: dict[str, Any]) -> object: ...  # seen


class Further(Mixed):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> object:
        inside: dict[str, Any] = {}

        def each(value: Any) -> None: ...  # seen

        return each


class Other:
    def _compute_loss(self, model: Any) -> None: ...  # seen


def by_name(value: typing.Any) -> None: ...  # seen
def by_text(value: "list[Any]") -> None: ...  # seen
def returned() -> Any: ...  # seen
def taken(*args: Any) -> None: ...  # seen
def looked_at(value: object) -> None: ...
"""


def test_negative_control_a_planted_any_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(WITH_ANY, encoding="utf-8")
    found = {int(line.partition(":")[0]) for line in anys(file, bases_by_class([file, PROTOCOL]))}
    assert found == {number for number, text in enumerate(WITH_ANY.splitlines(), 1) if "# seen" in text}
