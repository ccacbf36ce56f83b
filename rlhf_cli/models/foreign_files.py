"""Report broken or unsafe files in a third-party model folder or checkpoint, and that no code in them ran.

transformers refuses a model's own code, torch a pickle that contains more than tensors, and jinja2's sandbox an unsafe
template. Each raises an error deep inside a library; the file name is in the frames of its traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from rlhf_cli.errors import ModelError, Prose, RlhfError, RunError, in_a_line

_CODE = "resolve_trust_remote_code"
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


def _refusal(error: Exception, paths: Mapping[str, str | None]) -> RlhfError | None:
    frames = list(_frames(error))
    got = in_a_line(error)[:_LONGEST]
    if frames[-1].f_code.co_name == _CODE:
        return _of_own_code(str(frames[-1].f_locals.get("model_name")), paths)
    if any(frame.f_code.co_filename.endswith(_TEMPLATE) for frame in frames):
        tokenizer = next(
            (frame.f_locals["self"] for frame in frames if frame.f_code.co_name == "apply_chat_template"), None
        )
        model = str(getattr(tokenizer, "name_or_path", ""))
        return failing_template(got, where=f"{_key_of(model, paths)}: {model}")
    if not _is_of_library(frames[-1]):
        return None
    read = next((str(frame.f_locals.get("f")) for frame in frames if _is_torch_load(frame)), None)
    loading = next((frame for frame in frames if frame.f_code.co_name in _CHECKPOINT), None)
    if loading is not None:
        known = loading.f_locals
        return _of_checkpoint(got, read or str(known.get("checkpoint") or known.get("json_path") or "the checkpoint"))
    return _of_pickle(got, read, paths) if read is not None else None


def _of_own_code(model: str, paths: Mapping[str, str | None]) -> ModelError:
    key = _key_of(model, paths)
    return ModelError(
        "the model brings code of its own, and loads only with it; none of it was executed",
        where=f"{key}: {model}",
        expected="a model that transformers knows by itself, or code that you have read and trust",
        hint="model.trust_remote_code=true" if key.startswith("model.") else None,
    )


def failing_template(got: str, *, where: str) -> ModelError:
    """Return the error for a chat template that is malformed or raises; `got` is the error it raised."""
    return ModelError(
        "the model's chat template fails; it ran in a sandbox and reached nothing outside it",
        where=where,
        got=got,
        expected="a template that writes out the conversations of the data",
        hint="model.tokenizer=FOLDER_OR_HUB_ID  # of a model whose template does",
    )


def _of_pickle(got: str, file: str, paths: Mapping[str, str | None]) -> ModelError:
    return ModelError(
        "a file of the model is a pickle with more in it than tensors, or is damaged; nothing in it was executed",
        where=f"{_key_of(str(Path(file).parent), paths)}: {file}",
        got=got,
        expected="weights as safetensors, or a pickle of tensors alone",
        hint=Prose("a copy of the model with model.safetensors in it"),
    )


def _of_checkpoint(got: str, file: str) -> RunError:
    place = Path(file)
    folder = place if place.is_dir() else place.parent
    return RunError(
        "the checkpoint's files are as its manifest says, and cannot be loaded; nothing in them was executed",
        where=file,
        got=got,
        expected="files that this run wrote: somebody has changed both",
        hint=Prose(
            f"move {folder.name} away: `rlhf resume` then goes on from the one before it, or from the beginning"
        ),
    )


def _key_of(model: str, paths: Mapping[str, str | None]) -> str:
    return next((key for key, path in paths.items() if path and Path(path) == Path(model)), "model.path")


def _is_torch_load(frame: FrameType) -> bool:
    return frame.f_code.co_name == "load" and frame.f_code.co_filename.endswith(_PICKLE)


def _is_of_library(frame: FrameType) -> bool:
    return any(part in frame.f_code.co_filename for part in ("site-packages", "dist-packages", "/lib/python"))


def _frames(error: Exception) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
