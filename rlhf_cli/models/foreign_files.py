"""Report the file of a model or a checkpoint that would have run foreign code, or that makes transformers fail.

transformers refuses a model's own code, torch a pickle that contains more than tensors, and jinja2's sandbox an unsafe
template. Each raises an error deep inside a library; the file name is in the frames of its traceback.
"""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlhf_cli.errors import ModelError, RlhfError, RunError, in_a_line

_CODE = "resolve_trust_remote_code"
_BUILDING, _PATH = "transformers/modeling_utils.py", "pretrained_model_name_or_path"
_PICKLE = "torch/serialization.py"
_TEMPLATE = "utils/chat_template_utils.py"
_CHECKPOINT = (
    *("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state", "_load_callback_state"),
    "load_from_json",
)
"""The methods of transformers' Trainer that read a checkpoint."""
_LONGEST = 300


@contextlib.contextmanager
def naming_foreign_files(paths: Mapping[str, str | None]) -> Iterator[None]:
    """Convert errors that a third-party file caused in a library to a ModelError or RunError naming the file.

    `paths` maps a configuration key to its model. Other errors pass unchanged, including errors from user code.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RlhfError) or (refusal := _refusal(error, paths)) is None:
            raise
        raise refusal from error


def variable_hint(got: str, *, is_argument: bool = True) -> str:
    """Return the beginning of a hint: how to set the variable that a chat template lacked; empty for other errors.

    A trainer without the argument (`is_argument`) reads it from the rows.
    """
    if (found := re.search(r"'(\w+)' is undefined", got)) is None:
        return ""
    column = f"a column chat_template_kwargs with {{{found[1]}: VALUE}} in each row, or "
    return f"trainer.args.chat_template_kwargs.{found[1]}=VALUE, or " if is_argument else column


def untrusted_code(key: str, *, where: str, got: str | None = None) -> ModelError:
    """Return the error for a model whose own code is not trusted; `key` names the model.

    The one setting holds for the policy, a teacher and a critic. The code of a reward model never runs.
    """
    what = "the model has its own code and loads only with it; that code was not executed"
    expected = "a model of transformers' own classes, or code that you have read and trust"
    is_reward, function = key.startswith("rewards."), f"{key.rpartition('.')[0]}.fn=./rewards.py:FUNCTION"
    hint = None if is_reward else "model.trust_remote_code=true"
    advice = f"load it in a function of yours: {function}" if is_reward else None
    return ModelError(what, where=where, got=got, expected=expected, hint=hint, advice=advice)


def _refusal(error: Exception, paths: Mapping[str, str | None]) -> RlhfError | None:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [frame.f_code.co_filename for frame in frames]
    got = in_a_line(error)[:_LONGEST]
    calls: dict[str, dict[str, object]] = {}
    for frame in frames:
        calls.setdefault(frame.f_code.co_name, frame.f_locals)
    if frames[-1].f_code.co_name == _CODE:
        model = str(frames[-1].f_locals.get("model_name"))
        return untrusted_code(key := _key_of(model, paths), where=f"{key}: {model}")
    if any(file.endswith(_TEMPLATE) for file in files):
        model = str(getattr(calls.get("apply_chat_template", {}).get("self"), "name_or_path", ""))
        is_other = paths.get("model.chat_template") and Path(model) in map(Path, filter(None, paths.values()))
        where = "model.chat_template" if is_other else f"{_key_of(model, paths)}: {model}"
        hint = variable_hint("" if where.startswith("rewards.") else got)
        hint += "model.chat_template=FILE.jinja, or model.tokenizer=FOLDER_OR_HUB_ID  # of a model with another"
        what, expected = "the model's chat template fails", "a template that accepts the conversations of the data"
        return ModelError(what, where=where, got=got, expected=expected, hint=hint)
    if not any(part in files[-1] for part in ("site-packages", "dist-packages", "/lib/python")):
        return None
    loads = [frame.f_locals for frame, file in zip(frames, files, strict=True) if file.endswith(_PICKLE)]
    read = next((str(values["f"]) for values in loads if "f" in values), None)
    loading = next((values for name, values in calls.items() if name in _CHECKPOINT), None)
    if loading is not None:
        file = Path(read or str(loading.get("checkpoint") or loading.get("json_path") or "the checkpoint"))
        folder = file if file.is_dir() else file.parent
        what = "the checkpoint's files match its manifest but cannot be loaded; their code was not executed"
        expected = "files that this run wrote; these and the manifest were changed later"
        advice = f"move {folder.name} away: `rlhf resume` then uses the checkpoint before it, or starts again"
        return RunError(what, where=str(file), got=got, expected=expected, advice=advice)
    if read is None:
        # transformers fails while it builds or fills a model: an unknown activation, tensors of another shape.
        building = [frame.f_locals for frame in frames if frame.f_code.co_filename.endswith(_BUILDING)]
        named = [values[_PATH] for values in building if _PATH in values]
        is_of_machine = isinstance(error, OSError | ImportError | MemoryError) or "OutOfMemory" in type(error).__name__
        if not named or is_of_machine or f"{os.sep}transformers{os.sep}" not in files[-1]:
            return None
        model, what = str(named[0]), "transformers cannot load this model"
        expected = "a config.json whose values this version of transformers knows, and weights that fit it"
        return ModelError(what, where=f"{_key_of(model, paths)}: {model}", got=got, expected=expected)
    what = "a pickle of the model is damaged or holds more than tensors; its code was not executed"
    where = f"{_key_of(str(Path(read).parent), paths)}: {read}"
    expected = "weights as safetensors, or a pickle of tensors only"
    advice = "use a copy of the model with model.safetensors"
    return ModelError(what, where=where, got=got, expected=expected, advice=advice)


def _key_of(model: str, paths: Mapping[str, str | None]) -> str:
    return next((key for key, path in paths.items() if path and Path(path) == Path(model)), "model.path")
