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

_ADAPTER = "adapter_config.json"


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

    @property
    def has_safetensors(self) -> bool:
        """Return whether the weights are whole and already stored as safetensors."""
        return self.base is None and any(self.folder.glob("*.safetensors"))


def find_source(run: RunFolder, *, step: int | None, trust: bool) -> SourceModel:
    """Return the weights of a finished run, or of its checkpoint at `step`.

    Raises RunError for an unfinished run and for a missing or damaged checkpoint, ModelError if the weights are in
    pieces, or the model needs its own code and `trust` is False.
    """
    model = section(run.read_config(), "model")
    if model.get("trust_remote_code") is True and not trust:
        raise ModelError(
            "this model comes with code of its own, which has to be run to load it",
            where=str(run.config),
            got=f"model.trust_remote_code: true, {model.get('path')}",
            expected="a model that transformers knows, or code that you have read and trust",
            hint=f"rlhf export {run.shown} --trust",
        )
    status = read_status(run)
    if step is None:
        if status.state != FINISHED or not run.model.is_dir():
            raise _unfinished(run, status.state, status.step)
        folder, step, is_checkpoint = run.model, status.step, False
    else:
        folder, is_checkpoint = _checkpoint(run, step), True
    adapter = read_json(folder / _ADAPTER)
    return SourceModel(
        run=run,
        folder=folder,
        kind=_kind(folder, adapter),
        step=step,
        is_checkpoint=is_checkpoint,
        base=str(adapter["base_model_name_or_path"]) if adapter else None,
        quantized=str(model["quantize"]) if adapter and model.get("quantize") else None,
        trust_remote_code=model.get("trust_remote_code") is True,
    )


def _kind(folder: Path, adapter: JsonTree) -> Kind:
    """Return the kind of model. Raises ModelError if there are no weights, or only the pieces of several ranks."""
    if adapter:
        return "reward model" if adapter.get("task_type") == "SEQ_CLS" else "policy"
    if not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "pytorch_model*.bin")):
        raise ModelError(
            "there are no whole weights in this folder",
            where=str(folder),
            got=", ".join(sorted(path.name for path in folder.iterdir())[:8]),
            expected="*.safetensors; of FSDP and ZeRO a checkpoint has pieces, model/ at the end of a run the whole",
            advice="rlhf resume RUN, then rlhf export RUN",
        )
    name = next(iter(architectures_of(read_json(folder / "config.json"))), "")
    return "reward model" if name.endswith("ForSequenceClassification") else "policy"


def _checkpoint(run: RunFolder, step: int) -> Path:
    place = checkpoint_folder(run.checkpoints, step)
    there = [number for number, _ in checkpoints_in(run.checkpoints)]
    if step not in there:
        raise RunError(
            f"there is no checkpoint of step {step}",
            where=str(run.checkpoints),
            got="steps " + ", ".join(map(str, there)) if there else "no checkpoints",
            hint=f"rlhf export {run.shown} --checkpoint {there[-1]}" if there else f"rlhf resume {run.shown}",
        )
    if (problem := problem_with(place)) is not None:
        raise RunError(
            f"the checkpoint of step {step} is not whole",
            where=str(place),
            got=problem,
            expected="every file as manifest.json says",
            hint=" or ".join(f"--checkpoint {number}" for number in there if number != step) or None,
        )
    return place


def _unfinished(run: RunFolder, state: str, step: int) -> RunError:
    there = [number for number, _ in checkpoints_in(run.checkpoints)]
    newest = f", or rlhf export {run.shown} --checkpoint {there[-1]}" if there else ""
    return RunError(
        "this run has not finished, so its model is not what was asked for",
        where=str(run.path),
        got=f"{state} at step {step}",
        expected="a finished run, or --checkpoint N",
        hint=f"rlhf resume {run.shown}{newest}",
    )
