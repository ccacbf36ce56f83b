"""Read the arguments of TRL's trainers from its source, without importing it, and list those that our own sections set.

Importing a TRL config class takes seconds; reading the same dataclass with `ast` takes a fraction of a second and gives
the same fields (a contract test compares them). The source provides the field names, their annotations, and the values
that a docstring lists for a `str` field.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional, Union

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.tables.trl_values import CHOICES
from rlhf_cli.text.json_values import JsonTree, JsonValue


@dataclass(frozen=True)
class TrlField:
    """A field of a TRL config class: its help `text`, `owner` (the first class with it), and `choices` (() for any)."""

    name: str
    annotation: str
    default: object = None
    choices: tuple[str, ...] = ()
    text: str = ""
    owner: str = ""


class WrongArgument(NamedTuple):
    """An argument of TRL's that cannot be used, and why; for the kind `trainer`, a trainer that rlhf cannot run.

    `expected` is the key that replaces a `reserved` argument, or the values that an argument of `wrong` value accepts.
    """

    kind: Literal["trainer", "reserved", "unknown", "wrong"]
    name: str = ""
    value: object = None
    expected: str = ""


@cache
def package_dir(package: str) -> Path:
    """Return a package's folder without importing the package. Raise ModuleNotFoundError if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed: pip install -e . -c constraints.txt")
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def fields_of(trainer: str) -> dict[str, TrlField]:
    """Return the arguments of a trainer's config class, inherited ones first. Raise KeyError for an unknown trainer."""
    chain: list[ast.ClassDef] = []
    name: str | None = TRAINERS[trainer].config_class
    while name:
        chain.append(node := class_body(name, _file_of(name)))
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        name = next((base for base in bases if base.endswith("Config") or base == "TrainingArguments"), None)
    return fields_in(chain[::-1])


@cache
def lora_fields() -> dict[str, TrlField]:
    """Return name -> field of peft's LoraConfig."""
    return fields_in([class_body("LoraConfig", package_dir("peft") / "tuners" / "lora" / "config.py")])


def fields_in(bodies: list[ast.ClassDef]) -> dict[str, TrlField]:
    """Return the fields that `__init__` takes of a dataclass, given with its bases, which come first."""
    fields: dict[str, TrlField] = {}
    for node in bodies:
        docstring = ast.get_docstring(node) or ""
        documented = _documented_choices(docstring)
        # `scale_rewards: str` is documented, and used, as "`str` or `bool`".
        also_bool = set(re.findall(r"^ *(\w+) \(`str` or `bool`", docstring, re.MULTILINE))
        for item in node.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            name, annotation, default = item.target.id, ast.unparse(item.annotation), item.value
            is_init, before = "ClassVar" not in annotation, fields.get(name)
            text, owner = (before.text, before.owner) if before is not None else ("", node.name)
            if isinstance(default, ast.Call):  # field(default=..., init=...)
                named = {keyword.arg: keyword.value for keyword in default.keywords}
                is_init = is_init and not ("init" in named and ast.unparse(named["init"]) == "False")
                default = named.get("default")
                told = named.get("metadata")
                for key, value in zip(told.keys, told.values, strict=True) if isinstance(told, ast.Dict) else ():
                    if isinstance(key, ast.Constant) and key.value == "help" and isinstance(value, ast.Constant):
                        text = " ".join(str(value.value).split()) or text  # of a changed default it may be better
            if not is_init:
                continue
            try:
                literal = ast.literal_eval(default) if default is not None else None
            except ValueError:
                literal = None
            of_enums = [tuple(enums()[word].values()) for word in re.findall(r"\w+", annotation) if word in enums()]
            choices = of_enums[0] if of_enums else documented.get(name, ())
            choices = tuple(re.findall(r"'([^']*)'", annotation)) if "Literal[" in annotation else choices
            choices = choices or CHOICES.get(f"{node.name}.{name}") or CHOICES.get(name, ())
            if name in also_bool and "bool" not in annotation:
                annotation += " | bool"
            fields[name] = TrlField(name, annotation, literal, choices, text, owner)
    return fields


@cache
def generation_options() -> dict[str, TrlField]:
    """Return the settings of transformers' GenerationConfig, with the types that its docstring names."""
    source = _source(_GENERATION)
    documented = re.findall(r"^ {8}(\w+) ?\(`([\w\[\]]+)`(?: or `([\w\[\]]+)`)?", source, re.MULTILINE)
    kinds = {name: " | ".join(filter(None, (*types, "None"))) for name, *types in documented}
    names = re.findall(r'kwargs\.pop\(\s*"(\w+)"', source)
    return {name: TrlField(name, kinds.get(name, "Any")) for name in names}


def _file_of(config_class: str) -> Path:
    if config_class == "TrainingArguments":
        return package_dir("transformers") / "training_args.py"
    module = f"{config_class.removeprefix('_').removesuffix('Config').lower()}config.py"
    trl = package_dir("trl")
    known = (file for home in ("trainer", "experimental/*") for file in trl.glob(f"{home}/*_config.py"))
    return next(file for file in known if file.name.replace("_", "") == module)


@cache
def named_in(config_class: str) -> frozenset[str]:
    """Return the metrics of its own that a TRL trainer logs by a fixed name, from the source of its class."""
    file = _file_of(config_class)
    source = file.with_name(file.name.replace("_config.py", "_trainer.py")).read_text(encoding="utf-8")
    return frozenset(re.findall(r'\["([\w/]+)"\]', source))


def class_body(name: str, file: Path) -> ast.ClassDef:
    """Parse a class up to its first method, a tenth of its file's time. Raise LookupError if it is not in the file."""
    text = file.read_text(encoding="utf-8")
    start = re.search(rf"^class {name}\b", text, re.MULTILINE)
    if start is None:
        raise LookupError(f"class {name} is not in {file} of the installed package")
    node = ast.parse(text[start.start() :].split("\n    def ")[0].split("\n    @")[0]).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def _documented_choices(docstring: str) -> dict[str, tuple[str, ...]]:
    """Return field -> its values, two or more, documented as bullets (- `"grpo"`: ...) or as "one of `"a"`, `"b"`"."""
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


@cache
def enums() -> dict[str, dict[str, str]]:
    """Return transformers' enums -> member -> value, such as linear for LINEAR of SchedulerType."""
    values_by_enum = {}
    for file in ("trainer_utils.py", "training_args.py"):
        for name, body in re.findall(r"^class (\w+)\(ExplicitEnum\):\n((?:    .*\n|\n)+)", _source(file), re.MULTILINE):
            values_by_enum[name] = dict(re.findall(r'^    (\w+) = "([^"]*)"', body, re.MULTILINE))
    return values_by_enum


def expected_instead(field: TrlField, value: object) -> str | None:
    """Return what a field accepts, in words, if it does not accept `value`; else None."""
    words = value if isinstance(value, list) else [value]
    if field.choices and any(_is_no_choice(word, field) for word in words):
        unquoted = "; YAML reads no, off, yes and on as false and true, unless they stand in quotes"
        known = f"{'values among' if isinstance(value, list) else 'one of'} {', '.join(field.choices)}"
        return known + unquoted * isinstance(value, bool)
    if isinstance(value, list) and "tuple[" in field.annotation:
        value = tuple(value)  # YAML has no tuples
    try:
        _adapter(field.annotation).validate_python(value)
    except ValidationError:
        names = [name.strip() for name in field.annotation.split("|")]
        expected = " or ".join(_WORDS.get(name, name) for name in names)
        is_number = bool({"int", "float"} & {*names}) and field.default is not None
        return f"{expected}, such as {field.default}, the default" if is_number else expected
    return None


def _is_no_choice(word: object, field: TrlField) -> bool:
    """Return whether a text is none of a field's choices, or a number, true or false has no such type."""
    if isinstance(word, str):
        return word not in field.choices
    kinds = {"bool"} if isinstance(word, bool) else {"int", "float"}
    return isinstance(word, int | float) and not kinds & {*re.findall(r"\w+", field.annotation)}


_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "None": "null"}


def json_schema(field: TrlField) -> JsonTree:
    """Return the values that a field accepts as JSON Schema."""
    if field.choices:
        arms: list[JsonValue] = [{"enum": [*field.choices]}]
        arms += [{"type": "boolean"}] if "bool" in field.annotation else []
        arms += [{"type": "null"}] if "None" in field.annotation else []
        return {"anyOf": arms}
    return _adapter(field.annotation).json_schema()


_BUILTINS: dict[str, object] = {kind.__name__: kind for kind in (bool, int, float, str, list, dict, tuple)}
_BUILTINS |= {"None": None, "Any": Any, "Literal": Literal, "Union": Union, "Optional": Optional}
_OTHER_TYPE = re.compile(rf"\b(?!(?:True|False|{'|'.join(_BUILTINS)})\b)[A-Za-z_][\w.]*")


@cache
def _adapter(annotation: str) -> TypeAdapter[object]:
    """Return a strict pydantic validator for an annotation; types that only TRL or torch defines accept any value."""
    annotation = re.sub(r"Literal\[(?:'[^']*'(?:, )?)+\]", "str", annotation)  # `choices` lists its words
    text = _OTHER_TYPE.sub("Any", annotation.replace("'", "").replace('"', ""))
    word_too = re.sub(r"\blist\[str\]", "list[str] | str", text)  # TRL itself wraps a word into the list
    try:
        # The text comes from the installed TRL's own annotations, reduced to the names above; it contains no user text.
        annotated = eval(word_too, {"__builtins__": {}}, _BUILTINS)
    except (TypeError, SyntaxError, NameError):
        annotated = Any
    return TypeAdapter(annotated, config=ConfigDict(strict=True))


RESERVED_ARGS: dict[str, str] = {
    "reward_weights": "rewards.NAME.weight",
    "multi_objective_aggregation": "aggregate=sum, or aggregate=normalize_then_sum",
    "mask_truncated_completions": "truncation=exclude",
    "center_rewards_coefficient": "reward_model.center",
    **dict.fromkeys(("seed", "data_seed"), "seed"),
    "output_dir": "run.root, or run.name",
    "run_name": "run.name",
    "resume_from_checkpoint": "run.resume=auto, or rlhf resume RUN",
    "report_to": "track=wandb, or rlhf list track",
    "bf16": "launch.precision=bf16",
    "fp16": "launch.precision=fp16",
    "use_cpu": "launch.device=cpu",
    "fsdp": "launch.strategy=fsdp2",
    "fsdp_config": "launch.strategy=fsdp2, or launch.accelerate_config=FILE",
    "deepspeed": "launch.strategy=zero2, or launch.accelerate_config=FILE",
    "parallelism_config": "launch.accelerate_config=FILE",
    "ddp_backend": "launch.device=cpu, or launch.device=cuda",
    **dict.fromkeys(
        ("use_vllm", "vllm_mode"), "launch.rollout=vllm, or launch.rollout=vllm_server launch.rollout_gpus=1"
    ),
    **dict.fromkeys(("use_transformers_continuous_batching", "use_transformers_paged"), "launch.rollout=continuous"),
    "model_init_kwargs": "model.dtype, or model.revision",
    "callbacks": "trainer.callbacks",
    "teacher_model_name_or_path": "teacher.path",
    "teacher_model_revision": "teacher.revision",
    "teacher_model_init_kwargs": "teacher.dtype, or teacher.revision",
    "trust_remote_code": "model.trust_remote_code=true",
    **dict.fromkeys(("hub_token", "push_to_hub_token"), "export HF_TOKEN=..."),
}
"""Maps a TRL field to the key that replaces it."""

OFF = {**dict.fromkeys(("bf16", "fp16"), "launch.precision=float32"), "report_to": "track=none"}
"""A TRL field -> what says here that it is off; another one that is off needs no word."""


def is_off(value: object) -> bool:
    """Return whether the value of a switch, or of an option that may be missing, says no; 0 is a number."""
    return value is None or value is False or value == [] or str(value).lower() in ("", "none", "null", "no", "false")


RESERVED_WITH_A_CRITIC = RESERVED_ARGS | {"beta": "kl.coef"}
"""The same for trainers with a critic (`trainer.baseline`); without a critic these fields stay TRL's."""

SCHEDULE, _GENERATION = "lr_scheduler_type", "generation/configuration_utils.py"
_ON_TOP = ("SFTTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer", "TPOTrainer")
_ONLY_WITH = {"every_n_layers": _ON_TOP, "offload": _ON_TOP, "selective": ("SFTTrainer",)}
"""Keys of checkpointing that torch does not know -> the trainers that read them: the others hand them to torch."""
_CHECKPOINTING = "use_reentrant: bool|None, preserve_rng_state: bool, determinism_check: str, debug: bool, "
_CHECKPOINTING += "early_stop: bool, every_n_layers: int, offload: bool, selective: bool"
_COSINE = "num_cycles: float, min_lr: float|None, min_lr_rate: float|None"
_PLATEAU = "mode: str, factor: float, patience: int, threshold: float, threshold_mode: str, cooldown: int, eps: float, "
_PLATEAU += "min_lr: float|list[float]"
_INNER = {
    "accelerator_config": "split_batches: bool, dispatch_batches: bool|None, even_batches: bool, non_blocking: bool, "
    "use_seedable_sampler: bool, use_configured_state: bool, gradient_accumulation_kwargs: dict|None",
    **dict.fromkeys(("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"), _CHECKPOINTING),
    "dataset_kwargs": "skip_prepare_dataset: bool",
    "liger_kernel_config": "rope: bool, swiglu: bool, geglu: bool, cross_entropy: bool, "
    "fused_linear_cross_entropy: bool, rms_norm: bool, layer_norm: bool",
    **dict.fromkeys(("linear", "constant", "constant_with_warmup"), ""),
    "cosine": "num_cycles: float",
    "cosine_with_restarts": "num_cycles: int",
    "cosine_with_min_lr": _COSINE,
    "cosine_warmup_with_min_lr": f"{_COSINE}, warmup_lr_rate: float|None",
    "polynomial": "lr_end: float, power: float",
    "inverse_sqrt": "timescale: int|None",
    "warmup_stable_decay": "num_decay_steps: int, num_stable_steps: int|None, warmup_type: str, decay_type: str, "
    "min_lr_ratio: float, num_cycles: float",
    "reduce_lr_on_plateau": _PLATEAU,
    "greedy": f"{_PLATEAU}, max_lr: float|list[float], warmup: int, verbose: bool, smooth: bool, window_size: int, "
    "reset_start: int",
}
"""An argument with a mapping, or a schedule for `lr_scheduler_kwargs` -> the keys that it takes, and their types."""
INNER_FIELDS = {
    name: {key: TrlField(key, kind) for key, kind in re.findall(r"(\w+): ([^,]+)", text)}
    for name, text in _INNER.items()
}


def inner_fields(name: str, trainer: str, args: JsonTree) -> dict[str, TrlField] | None:
    """Return the keys of the mapping in an argument; None if unknown, or it takes none. `args` hold the schedule."""
    if name == "transformers_continuous_batching_config":
        return fields_in([class_body("ContinuousBatchingConfig", package_dir("transformers") / _GENERATION)])
    is_of_schedule = name == "lr_scheduler_kwargs"
    chosen = str(args.get(SCHEDULE, fields_of(trainer)[SCHEDULE].default)) if is_of_schedule else name
    fields = INNER_FIELDS.get(chosen)
    return fields and {key: field for key, field in fields.items() if trainer in _ONLY_WITH.get(key, (trainer,))}


def wrong_inside(name: str, trainer: str, args: JsonTree) -> Iterator[WrongArgument]:
    """Yield what is wrong in an argument with a mapping; a text is a file, or JSON, which transformers reads itself."""
    value, fields = args[name], inner_fields(name, trainer, args)
    if fields is not None and isinstance(value, str) and not (value.startswith("{") or Path(value).is_file()):
        yield WrongArgument("wrong", name, value, "a mapping")
    if fields is None or not isinstance(value, dict):
        return
    for key, inside in value.items():
        if key not in fields:
            yield WrongArgument("unknown", f"{name}.{key}", inside, ", ".join(fields))
        elif (expected := expected_instead(fields[key], inside)) is not None:
            yield WrongArgument("wrong", f"{name}.{key}", inside, expected)


@cache
def _source(file: str) -> str:
    path = package_dir("transformers") / file
    return path.read_text(encoding="utf-8") if path.is_file() else ""
