"""Read which keys an argument with a mapping takes, from the source of what gets them, without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rlhf_cli.config import trl_args
from rlhf_cli.config.trl_args import TrlField, WrongArgument, package_dir
from rlhf_cli.text.json_values import JsonTree

Inner = dict[str, TrlField]

_GENERATION = "generation/configuration_utils.py"
_CHECKPOINT = ("torch", "utils/checkpoint.py", "checkpoint")
_READERS = {
    "accelerator_config": ("transformers", "trainer_pt_utils.py", "AcceleratorConfig"),
    "activation_checkpointing_kwargs": _CHECKPOINT,
    "gradient_checkpointing_kwargs": _CHECKPOINT,
    "transformers_continuous_batching_config": ("transformers", _GENERATION, "ContinuousBatchingConfig"),
}
"""Argument -> the package, the file and the name of what gets its keys."""
_LIGER = ("rope", "swiglu", "geglu", "cross_entropy", "fused_linear_cross_entropy", "rms_norm", "layer_norm")
"""The kernels of liger_kernel, which need not be installed."""
_ON_TOP = ("SFTTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer", "TPOTrainer")
"""Trainers with which transformers' own keys of checkpointing work: the others hand them to torch, which refuses."""
SCHEDULE, _SCHEDULES = "lr_scheduler_type", "optimization.py"
_HANDED_ON = {
    "get_reduce_on_plateau_schedule": ("torch", "optim/lr_scheduler.py", "ReduceLROnPlateau"),
    "get_greedy_schedule": ("transformers", _SCHEDULES, "GreedyLR"),
}
"""A schedule that takes any key -> the class that gets them."""
_GIVEN = ("self", "optimizer", "num_warmup_steps", "num_training_steps", "last_epoch", "function")
"""Parameters that the trainer fills in."""


def inner_fields(name: str, trainer: str, args: JsonTree) -> Inner | None:
    """Return the keys that the mapping in an argument may have; None if that is unknown, or it takes no mapping.

    `args` are all arguments of the trainer: the schedule decides on its keys.
    """
    if name == "lr_scheduler_kwargs":
        return schedule_fields().get(str(args.get(SCHEDULE, trl_args.fields_of(trainer)[SCHEDULE].default)))
    if name == "optim_args":
        form = r'optim_args\.(?:get|pop)\("(\w+)|"(\w+)" in ctx\.optim|for key in \((".*")\)'
        names = re.findall(r"\w+", " ".join(sum(re.findall(form, _source("trainer_optimizer.py")), ())))
        return {key: TrlField(key, "str", None, ()) for key in names} or None
    if name == "dataset_kwargs":
        return {"skip_prepare_dataset": TrlField("skip_prepare_dataset", "bool", None, ())}
    if name == "liger_kernel_config":
        return {key: TrlField(key, "bool", None, ()) for key in _LIGER}
    if name not in _READERS:
        return None
    own = re.findall(r'gc_kwargs\.pop\("(\w+)", (\w+)\)', _source("trainer.py")) if trainer in _ON_TOP else []
    of_checkpoints = {key: TrlField(key, type(ast.literal_eval(default)).__name__, None, ()) for key, default in own}
    return _fields_of(*_READERS[name]) | (of_checkpoints if _READERS[name] == _CHECKPOINT else {})


def wrong_inside(name: str, trainer: str, args: JsonTree) -> Iterator[WrongArgument]:
    """Yield what is wrong in an argument with a mapping; `optim_args` is a text, `KEY=VALUE,KEY=VALUE`."""
    value, fields, of_optimizer = args[name], inner_fields(name, trainer, args), name == "optim_args"
    text = value if isinstance(value, str) else ""
    is_json = text.startswith("{") or (text != "" and Path(text).is_file())  # transformers reads it itself
    if fields is None or value is None or (is_json and not of_optimizer):
        return
    pairs = list(value.items()) if isinstance(value, dict) else [pair.split("=") for pair in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        yield WrongArgument("wrong", name, value, "KEY=VALUE,KEY=VALUE" if of_optimizer else "a mapping")
        return
    for key, inside in ((str(key).strip(), inside) for key, inside in pairs):
        if key not in fields:
            yield WrongArgument("unknown", f"{name}.{key}", inside, ", ".join(fields))
        elif (expected := trl_args.expected_instead(fields[key], inside)) is not None:
            yield WrongArgument("wrong", f"{name}.{key}", inside, expected)


@cache
def schedule_fields() -> dict[str, Inner]:
    """Return schedule -> the keys that `lr_scheduler_kwargs` may have with it."""
    found, names = dict[str, Inner](), trl_args.enums()["SchedulerType"]
    for member, function in re.findall(r"\bSchedulerType\.(\w+): (\w+)", _source(_SCHEDULES)):
        found[names[member]] = _fields_of(*_HANDED_ON.get(function, ("transformers", _SCHEDULES, function)))
    return found


@cache
def _source(file: str, package: str = "transformers") -> str:
    path = package_dir(package) / file
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def _fields_of(package: str, file: str, name: str) -> Inner:
    """Return the fields of a dataclass, or the parameters of a function or of a class, without what YAML cannot say."""
    if name[0].isupper() and (fields := trl_args.fields_in([trl_args.class_body(name, package_dir(package) / file)])):
        return fields
    head = rf"^(?:def {name}|class {name}\b(?s:.*?)\n    def __init__)(\((?s:.*?)\))(?: -> \w+)?:\n"
    match = re.search(head, _source(file, package), re.MULTILINE)
    node = ast.parse(f"def f{match[1] if match else '()'}: pass").body[0]
    assert isinstance(node, ast.FunctionDef)
    spec = node.args
    defaults = [*[None] * (len(spec.args) - len(spec.defaults)), *spec.defaults, *spec.kw_defaults]
    lines: list[ast.stmt] = []
    for parameter, default in zip([*spec.args, *spec.kwonlyargs], defaults, strict=True):
        kind = parameter.annotation or ast.Name(type(ast.literal_eval(default)).__name__ if default else "Any")
        if parameter.arg not in _GIVEN and "Callable" not in ast.unparse(kind):
            lines.append(ast.AnnAssign(ast.Name(parameter.arg), kind, default, 1))
    return trl_args.fields_in([ast.ClassDef(name, [], [], lines, [])])
