"""Check each model's config.json against the source files of transformers, whose import takes seconds."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from rlhf_cli.config.trl_args import TrlField, class_body, fields_in, package_dir
from rlhf_cli.errors import ModelError
from rlhf_cli.models.foreign_files import untrusted_code
from rlhf_cli.models.model_folders import is_language_model
from rlhf_cli.models.tokenizer_files import CLASSIFIERS
from rlhf_cli.plan.checks.facts import Findings, ModelFolders, Subject
from rlhf_cli.runs.provenance import version_of
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.suggest import nearest

_CONFIG_CLASS = re.compile(r'"([\w.-]+)"[,:]\s*"(\w+Config)"')
_NUMBERS = {"int", "float", "bool", "None"}
_ENCODER = "is_encoder_decoder"


def config_problems(subject: Subject, folders: ModelFolders) -> Findings:
    """Yield an error for every config.json that transformers refuses, and for a class that TRL would not find."""
    trains_classifier = subject.experiment.trainer.row.trains == "reward model"
    for key, folder in folders.loaded():
        # TRL takes the class of these by its name, transformers that of all others by the model type.
        is_named = key == "teacher.path" or (key == "model.path" and not trains_classifier)
        config, where, file = folders.config_of(str(folder)), subject.where(key), folder / "config.json"
        trusts = subject.experiment.model.trust_remote_code and not key.startswith("rewards.")
        if config.get("auto_map") and (kind := config.get("model_type")) not in _config_classes() and not trusts:
            yield untrusted_code(key, where=where, got=f"{file}: model_type: {kind}, with auto_map")
        elif (mistake := _mistake(config, needs_class=is_named)) is not None:
            what, got, expected = mistake
            advice = f"mend that file, or set {key} to another model"
            yield ModelError(what, where=where, got=f"{file}: {got}", expected=expected, advice=advice)


def _mistake(config: JsonTree, *, needs_class: bool) -> tuple[str, str, str] | None:
    """Return what is wrong with a config.json, what it holds and what is expected; None for a sound one.

    A model with its own code (`auto_map`) is not judged, nor an empty config: the folder may hold an adapter.
    """
    if config.get("auto_map") or not config:
        return None
    kinds, installed = _config_classes(), f"transformers {version_of('transformers')}"
    kind, classes = str(config.get("model_type")), config.get("architectures")
    if kind not in kinds:
        near = nearest(kind, kinds)
        what, expected = "transformers does not know this model type", f"a model type that {installed} knows"
        return what, f"model_type: {kind}", expected + (f", such as {near}" if near is not None else "")
    name = classes[0] if isinstance(classes, list) and classes else None
    if needs_class and not (isinstance(name, str) and _is_class(name)):
        what, expected = "transformers does not know this architecture", f"the name of a class in {installed}"
        return what, f"architectures: {classes}", expected
    fields = _fields_of(kind)
    has_encoder = config.get(_ENCODER, fields[_ENCODER].default if _ENCODER in fields else False)
    is_classifier = str(name).endswith(CLASSIFIERS)  # the check of the policy refuses it
    if needs_class and not is_classifier and (has_encoder or not is_language_model(config)):
        what, expected = "this is no causal language model", "a model that continues a text, such as ...ForCausalLM"
        return what, f"architectures: {classes}", expected
    for key, field in fields.items():
        is_number = _NUMBERS.issuperset(field.annotation.split(" | "))
        if is_number and isinstance(value := config.get(key), str | list | dict):
            return "a number in config.json is of another type", f"{key}: {value!r:.80}", field.annotation
    return None


def _models() -> Path:
    return package_dir("transformers") / "models"


@cache
def _config_classes() -> dict[str, str]:
    """Return model type -> the name of its configuration class."""
    files = [_models() / "auto" / name for name in ("auto_mappings.py", "configuration_auto.py")]
    return dict(_CONFIG_CLASS.findall("".join(file.read_text("utf-8") for file in files if file.is_file())))


def _is_class(name: str) -> bool:
    # The tables of the automatic classes name nearly all.
    if f'"{name}"' in (_models() / "auto" / "modeling_auto.py").read_text("utf-8"):
        return True
    return any(f"class {name}(" in file.read_text("utf-8") for file in _models().glob("*/modeling_*.py"))


def _fields_of(kind: str) -> dict[str, TrlField]:
    """Return the keys of a model type's config.json with their types; transformers reads no text as a number."""
    fields: dict[str, TrlField] = {}
    for file in (_models() / kind.replace("-", "_")).glob("configuration_*.py"):
        with suppress(LookupError, SyntaxError):  # of another file, or a class of methods alone
            fields = fields_in([class_body(_config_classes()[kind], file)])
    return fields
