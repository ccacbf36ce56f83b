"""Find the weights of a run to export, and refuse incomplete ones. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlhf_cli.errors import ModelError, RunError
from rlhf_cli.models.tokenizer_files import architectures_of
from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.run_folder import RunFolder, checkpoint_folder, checkpoints_in, read_json
from rlhf_cli.runs.run_status import FINISHED, read_status
from rlhf_cli.text.json_values import JsonTree, section

Kind = Literal["policy", "reward model"]


@dataclass(frozen=True)
class SourceModel:
    """The weights to export, in `folder`.

    `base` is an adapter's base model, None for whole weights; `quantized` says in how many bits it was loaded for
    training. `step` is the optimizer step of the weights.
    """

    run: RunFolder
    folder: Path
    kind: Kind
    step: int
    is_checkpoint: bool = False
    base: str | None = None
    quantized: str | None = None
    trust_remote_code: bool = False


def find_source(run: RunFolder, *, step: int | None, trust: bool) -> SourceModel:
    """Return the weights of a finished run or a checkpoint. Raise RunError or ModelError if they are not whole."""
    model = section(run.read_config(), "model")
    if model.get("trust_remote_code") is True and not trust:
        got, hint = f"model.trust_remote_code: true, {model.get('path')}", f"rlhf export {run.shown} --trust"
        expected = "a model that transformers knows, or code that you have read and trust"
        what = "this model runs its own code when it is loaded"
        raise ModelError(what, where=str(run.config), got=got, expected=expected, hint=hint)
    folder = _finished(run) if step is None else _checkpoint(run, step)
    adapter = read_json(folder / "adapter_config.json")
    return SourceModel(
        run=run,
        folder=folder,
        kind=_kind(folder, adapter),
        step=read_status(run).step if step is None else step,
        is_checkpoint=step is not None,
        base=str(adapter["base_model_name_or_path"]) if adapter else None,
        quantized=str(model["quantize"]) if adapter and model.get("quantize") else None,
        trust_remote_code=model.get("trust_remote_code") is True,
    )


def _kind(folder: Path, adapter: JsonTree) -> Kind:
    """Return the kind of model. Raise ModelError if there are no weights, or only the pieces of several ranks."""
    if adapter:
        return "reward model" if adapter.get("task_type") == "SEQ_CLS" else "policy"
    if not any(folder.glob("*.safetensors")):
        what, got = (
            "there are no whole weights in this folder",
            ", ".join(sorted(path.name for path in folder.iterdir())[:8]),
        )
        expected = "*.safetensors; a checkpoint of FSDP or ZeRO has pieces, and model/ of a finished run is whole"
        advice = "rlhf resume RUN, then rlhf export RUN"
        raise ModelError(what, where=str(folder), got=got, expected=expected, advice=advice)
    name = next(iter(architectures_of(read_json(folder / "config.json"))), "")
    return "reward model" if name.endswith("ForSequenceClassification") else "policy"


def _finished(run: RunFolder) -> Path:
    """Return the model folder of a finished run. Raise RunError for any other run."""
    status, steps = read_status(run), [number for number, _ in checkpoints_in(run.checkpoints)]
    if status.state == FINISHED and run.model.is_dir():
        return run.model
    newest = f", or rlhf export {run.shown} --checkpoint {steps[-1]}" if steps else ""
    got, hint = f"{status.state} at step {status.step}", f"rlhf resume {run.shown}{newest}"
    expected = "a finished run, or --checkpoint N"
    raise RunError("this run has not finished", where=str(run.path), got=got, expected=expected, hint=hint)


def _checkpoint(run: RunFolder, step: int) -> Path:
    """Return the folder of a checkpoint. Raise RunError if it is missing or damaged."""
    folder, steps = checkpoint_folder(run.checkpoints, step), [number for number, _ in checkpoints_in(run.checkpoints)]
    if step not in steps:
        got = "steps " + ", ".join(map(str, steps)) if steps else "no checkpoints"
        hint = f"rlhf export {run.shown} --checkpoint {steps[-1]}" if steps else f"rlhf resume {run.shown}"
        raise RunError(f"there is no checkpoint of step {step}", where=str(run.checkpoints), got=got, hint=hint)
    if (problem := problem_with(folder)) is not None:
        what, expected = f"the checkpoint of step {step} is damaged", "the files of manifest.json"
        hint = " or ".join(f"--checkpoint {number}" for number in steps if number != step)
        raise RunError(what, where=str(folder), got=problem, expected=expected, hint=hint or None)
    return folder
