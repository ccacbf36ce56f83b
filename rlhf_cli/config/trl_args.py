"""Read the arguments of TRL's trainers from its source, without importing it, and list those that our own sections set.

Importing a TRL config class takes seconds; reading the same dataclass with `ast` takes a fraction of a second and gives
the same fields (a contract test compares them). The source provides the field names, their annotations, and the values
that a docstring lists for a `str` field.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rlhf_cli.errors import ConfigError
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.tables.trl_values import CHOICES
from rlhf_cli.text.json_values import JsonTree, JsonValue
from rlhf_cli.text.suggest import nearest

_HOMES = ("trainer", "experimental/*")
"""Globs for the folders of TRL in which a config class has a file named after it."""

_ANY = re.compile(
    r"\b(?!(?:None|True|False|bool|int|float|str|list|dict|tuple|Any|Literal|Union|Optional)\b)[A-Za-z_][\w.]*"
)


@dataclass(frozen=True)
class TrlField:
    """A field of a TRL config class. `choices` is empty if any value of the type is accepted."""

    name: str
    annotation: str
    default: object
    choices: tuple[str, ...]


@dataclass(frozen=True)
class TrainerFields:
    """A TRL trainer: its name, its config class and the fields of that class."""

    name: str
    config_class: str
    fields: dict[str, TrlField]


@cache
def package_dir(package: str) -> Path:
    """Return the folder of an installed package without importing it.

    Raise ModuleNotFoundError if the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed: pip install -e . -c constraints.txt")
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def trainers() -> dict[str, Path]:
    """Return every trainer class in TRL -> the file that defines it.

    If two classes have the same name, keep the stable one.
    """
    trl = package_dir("trl")
    file_by_class: dict[str, Path] = {}
    for file in (*sorted(trl.glob("trainer/*_trainer.py")), *sorted(trl.glob("experimental/*/*_trainer.py"))):
        for name in re.findall(r"^class (\w+Trainer)\(", file.read_text(encoding="utf-8"), re.MULTILINE):
            if not name.startswith("_"):
                file_by_class.setdefault(name, file)
    return file_by_class


@cache
def trainer(name: str) -> TrainerFields:
    """Return the arguments of a trainer's config class. Raise KeyError for a trainer without a row in the table."""
    config_class = TRAINERS[name].config_class
    return TrainerFields(name, config_class, config_fields(config_class))


@cache
def config_fields(config_class: str) -> dict[str, TrlField]:
    """Return the fields of a TRL config class, including inherited ones, in the order of the dataclass."""
    fields: dict[str, TrlField] = {}
    for file, name in _bases(config_class):
        node = _fields_of_class(file, name)
        docstring = ast.get_docstring(node) or ""
        choices = _documented_choices(docstring)
        # `scale_rewards: str` is documented, and used, as "`str` or `bool`".
        also_bool = set(re.findall(r"^ *(\w+) \(`str` or `bool`", docstring, re.MULTILINE))
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                annotation = ast.unparse(item.annotation)
                if "ClassVar" in annotation or _is_not_init(item):
                    continue
                field = item.target.id
                closed = _enum_values(annotation) or choices.get(field, ())
                closed = closed or CHOICES.get(f"{name}.{field}") or CHOICES.get(field, ())
                if field in also_bool and "bool" not in annotation:
                    annotation += " | bool"
                fields[field] = TrlField(field, annotation, _default(item), closed)
    return fields


def class_bodies(config_class: str) -> list[ast.ClassDef]:
    """Return a TRL config class and its bases, transformers' first, up to their first methods."""
    return [_fields_of_class(file, name) for file, name in _bases(config_class)]


def setting(trainer: TrainerFields, args: Mapping[str, object], name: str) -> object:
    """Return the value of an argument: the experiment's, else TRL's default, else None."""
    field = trainer.fields.get(name)
    return args.get(name, field.default if field else None)


def owner_of(field: str) -> list[str]:
    """Return the names of TRL's stable config classes that have `field`."""
    stable = sorted(row.config_class for row in TRAINERS.values() if row.module == "trl")
    return [name for name in stable if field in config_fields(name)]


def complaint(field: TrlField, value: object) -> tuple[str, str | None] | None:
    """Return (expected value in words, nearest valid value or None) if `value` does not fit `field`, else None."""
    if isinstance(value, str) and field.choices and value not in field.choices:
        return "one of " + ", ".join(field.choices), nearest(value, field.choices)
    if isinstance(value, list) and field.choices:
        for item in value:
            if isinstance(item, str) and item not in field.choices:
                return "values among " + ", ".join(field.choices), nearest(item, field.choices)
    if isinstance(value, list) and "tuple[" in field.annotation:
        value = tuple(value)  # YAML has no tuples
    try:
        _adapter(field.annotation).validate_python(value)
    except ValidationError:
        return _in_words(field), None
    return None


def _in_words(field: TrlField) -> str:
    """Return what a field accepts: a number in words with its default, other types as TRL declares them."""
    kinds = {"int": "a whole number", "float": "a number"}
    names = [name.strip() for name in field.annotation.split("|")]
    if not any(name in kinds for name in names):
        return field.annotation
    expected = " or ".join(kinds.get(name, "null" if name == "None" else name) for name in names)
    return expected if field.default is None else f"{expected}, such as {field.default}, the default"


def json_schema(field: TrlField) -> JsonTree:
    """Return the values that `complaint` accepts as JSON Schema."""
    if field.choices:
        arms: list[JsonValue] = [{"enum": [*field.choices]}]
        arms += [{"type": "boolean"}] if "bool" in field.annotation else []
        arms += [{"type": "null"}] if "None" in field.annotation else []
        return {"anyOf": arms}
    return _adapter(field.annotation).json_schema()


@cache
def _adapter(annotation: str) -> TypeAdapter[object]:
    """Return a strict pydantic validator for an annotation; types that only TRL or torch defines accept any value."""
    text = _ANY.sub("Any", annotation.replace("'", "").replace('"', ""))
    scalar_too = re.sub(r"\blist\[(\w+)\]", r"list[\1] | \1", text)  # TRL itself wraps a scalar into the list
    names = {"Any": Any, "Literal": typing.Literal, "Union": typing.Union, "Optional": typing.Optional}
    try:
        # The text comes from the installed TRL's own annotations, reduced to the names above; it contains no user text.
        annotated = eval(scalar_too, {"__builtins__": {}}, {**names, **_BUILTIN_TYPES})
    except (TypeError, SyntaxError, NameError):
        annotated = Any
    return TypeAdapter(annotated, config=ConfigDict(strict=True))


_BUILTIN_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict, "tuple": tuple}


def _bases(config_class: str) -> list[tuple[Path, str]]:
    """Return (file, class) from transformers' TrainingArguments down to `config_class`."""
    trl, transformers = package_dir("trl"), package_dir("transformers")
    homes = {"TrainingArguments": transformers / "training_args.py", "_BaseConfig": trl / "trainer" / "base_config.py"}
    chain: list[tuple[Path, str]] = []
    name: str | None = config_class
    while name:
        module = f"{name.removesuffix('Config').lower()}_config.py"
        file = homes.get(name) or next(file for pattern in _HOMES for file in trl.glob(f"{pattern}/{module}"))
        chain.append((file, name))
        bases = [base.id for base in _fields_of_class(file, name).bases if isinstance(base, ast.Name)]
        name = next((base for base in bases if base.endswith("Config") or base in homes), None)
    return chain[::-1]


@cache
def _fields_of_class(file: Path, name: str) -> ast.ClassDef:
    """Parse a dataclass up to its first method: docstring and fields, a tenth of the cost of the whole file."""
    fields = _class_source(file, name).split("\n    def ")[0].split("\n    @")[0]
    node = ast.parse(fields).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def _class_source(file: Path, name: str) -> str:
    text = file.read_text(encoding="utf-8")
    return text[_find(rf"^class {name}\b", text).start() :]


def _find(pattern: str, text: str) -> re.Match[str]:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise LookupError(f"{pattern!r} is not in the source of the installed TRL or transformers")
    return match


def _is_not_init(item: ast.AnnAssign) -> bool:
    call = item.value
    return isinstance(call, ast.Call) and any(
        keyword.arg == "init" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in call.keywords
    )


def _default(item: ast.AnnAssign) -> object:
    value: ast.expr | None = item.value
    if isinstance(value, ast.Call):
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    try:
        return ast.literal_eval(value) if value is not None else None
    except ValueError:
        return None


def _documented_choices(docstring: str) -> dict[str, tuple[str, ...]]:
    """Return field -> values, for the fields whose documentation lists them.

    Two forms occur: one bullet per value (- `"grpo"`: ...) and "one of `"a"`, `"b"`". A list with a single value is not
    treated as a closed set.
    """
    choices: dict[str, tuple[str, ...]] = {}
    blocks = re.split(r"^ {4,8}(\w+) \(`", docstring, flags=re.MULTILINE)
    for name, block in zip(blocks[1::2], blocks[2::2], strict=True):
        kind = block.splitlines()[0]
        bullets = re.findall(r'^\s*- (?:`\w+` or )?`"([\w-]+)"`', block, re.MULTILINE)
        listed = re.search(r'one of ((?:`"[\w-]+"`(?:,\s+| or\s+|,\s+or\s+)?){2,})', block)
        values = bullets or (re.findall(r'"([\w-]+)"', listed.group(1)) if listed else [])
        if len(values) > 1 and "str" in kind and "dict" not in kind:
            choices[name] = tuple(dict.fromkeys(values))
    return choices


def _enum_values(annotation: str) -> tuple[str, ...]:
    """Return the values of a transformers enum in the annotation: linear, cosine, ... for `SchedulerType | str`."""
    for name in re.findall(r"\w+", annotation):
        if name in _enums():
            return _enums()[name]
    return ()


@cache
def _enums() -> dict[str, tuple[str, ...]]:
    values_by_enum = {}
    for file in ("trainer_utils.py", "training_args.py"):
        text = (package_dir("transformers") / file).read_text(encoding="utf-8")
        for name, body in re.findall(r"^class (\w+)\(ExplicitEnum\):\n((?:    .*\n|\n)+)", text, re.MULTILINE):
            values_by_enum[name] = tuple(re.findall(r'^    \w+ = "([^"]*)"', body, re.MULTILINE))
    return values_by_enum


OWNED: dict[str, str] = {
    "reward_weights": "rewards.NAME.weight",
    "multi_objective_aggregation": "aggregate=sum, or aggregate=normalize_then_sum",
    "mask_truncated_completions": "truncation=exclude",
    "center_rewards_coefficient": "reward_model.center",
    "seed": "seed",
    "data_seed": "seed",
    "output_dir": "run.root, or run.name",
    "run_name": "run.name",
    "resume_from_checkpoint": "run.resume=auto, or rlhf resume RUN",
    "report_to": "track=wandb, or rlhf list track",
    "bf16": "launch.precision",
    "fp16": "launch.precision",
    "use_cpu": "launch.device",
    "fsdp": "launch.strategy=fsdp2",
    "fsdp_config": "launch.strategy=fsdp2, or launch.accelerate_config=FILE",
    "deepspeed": "launch.strategy=zero2, or launch.accelerate_config=FILE",
    "parallelism_config": "launch.accelerate_config=FILE",
    "ddp_backend": "launch.device",
    "use_vllm": "launch.rollout=vllm, or launch.rollout=vllm_server launch.rollout_gpus=1",
    "vllm_mode": "launch.rollout=vllm, or launch.rollout=vllm_server launch.rollout_gpus=1",
    "use_transformers_continuous_batching": "launch.rollout=continuous",
    "use_transformers_paged": "launch.rollout=continuous",
    "model_init_kwargs": "model.dtype, or model.revision",
    "trust_remote_code": "model.trust_remote_code=true",
    "hub_token": "export HF_TOKEN=...",
    "push_to_hub_token": "export HF_TOKEN=...",
}
"""Maps a TRL field to the key that replaces it."""

OWNED_WITH_A_CRITIC = {"beta": "kl.coef"}
"""The same for trainers with a critic (`trainer.baseline`); without a critic these fields stay TRL's."""


def home_of(name: str, *, has_critic: bool) -> str | None:
    """Return the key that replaces a TRL argument, or None if it may be set under `trainer.args`."""
    return OWNED.get(name) or (OWNED_WITH_A_CRITIC.get(name) if has_critic else None)


def whole_number(trainer: TrainerFields, args: Mapping[str, object], name: str) -> int:
    """Return an argument that is an integer. Raise ConfigError if it is not an integer, or unset."""
    value = whole_number_or_none(trainer, args, name)
    if value is None:
        raise _wrong_value(name, value, "a whole number")
    return value


def whole_number_or_none(trainer: TrainerFields, args: Mapping[str, object], name: str) -> int | None:
    """Return an argument that is an integer, or None if it is unset. Raise ConfigError for other types."""
    value = setting(trainer, args, name)
    if value is None or isinstance(value, int):
        return value
    raise _wrong_value(name, value, "a whole number or null")


def real_number(trainer: TrainerFields, args: Mapping[str, object], name: str) -> float:
    """Return an argument that is a number. Raise ConfigError if it is not a number, or unset."""
    value = setting(trainer, args, name)
    if isinstance(value, int | float):
        return float(value)
    raise _wrong_value(name, value, "a number")


def _wrong_value(name: str, value: object, expected: str) -> ConfigError:
    key = f"trainer.args.{name}"
    return ConfigError(f"wrong value for {key}", where=key, got=repr(value), expected=expected)
