"""Export the weights of a run with a model card, by huggingface_hub. Only merging an adapter imports torch."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml
from huggingface_hub import ModelCard, ModelCardData

from rlhf_cli.config.schema.reward_sections import gate_text
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ModelError, RunError
from rlhf_cli.evaluation.evaluation_results import read_evaluation
from rlhf_cli.models.cache import merged_into_base
from rlhf_cli.models.tokenizer_files import architectures_of, base_revision
from rlhf_cli.models.weight_shapes import stored_shapes
from rlhf_cli.runs.checkpoint_folders import problem_with
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.reward_records import trained_on_conversations, trained_with_eos
from rlhf_cli.runs.run_folder import (
    EDITED_CONFIG,
    RunFolder,
    as_typed,
    checkpoint_folder,
    checkpoints_in,
    evaluations_of,
    in_training,
    read_json,
    run_of,
    typed_path,
)
from rlhf_cli.runs.run_status import FINISHED, Status, command_to_finish, is_of_these_weights, read_status
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.redaction import redacted, redacted_tree

if TYPE_CHECKING:
    import torch

Kind = Literal["policy", "reward model"]


@dataclass(frozen=True)
class SourceModel:
    """The weights to export; `base` is an adapter's base model, `quantized` the bits in which training loaded that."""

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
        got, hint = f"model.trust_remote_code: true, {model.get('path')}", f"rlhf export {run.typed} --trust"
        expected = "a model that transformers knows, or code that you have read and trust"
        what = "this model runs its own code when it is loaded"
        raise ModelError(what, where=str(run.config), got=got, expected=expected, hint=hint)
    status = read_status(run)
    folder = _weights_folder(run, status, step)
    adapter = read_json(folder / "adapter_config.json")
    if not adapter and not any(folder.glob("*.safetensors")):
        what, names = "there are no whole weights in this folder", sorted(path.name for path in folder.iterdir())[:8]
        expected = "*.safetensors; a checkpoint of FSDP or ZeRO has pieces, and model/ of a finished run is whole"
        advice = "rlhf resume RUN, then rlhf export RUN"
        raise ModelError(what, where=str(folder), got=", ".join(names), expected=expected, advice=advice)
    name = next(iter(architectures_of({} if adapter else read_json(folder / "config.json"))), "")
    is_scorer = adapter.get("task_type") == "SEQ_CLS" or name.endswith("ForSequenceClassification")
    return SourceModel(
        run=run,
        folder=folder,
        kind="reward model" if is_scorer else "policy",
        step=status.step if step is None else step,
        is_checkpoint=step is not None,
        base=str(adapter["base_model_name_or_path"]) if adapter else None,
        quantized=str(model["quantize"]) if adapter and model.get("quantize") else None,
        trust_remote_code=model.get("trust_remote_code") is True,
    )


def _weights_folder(run: RunFolder, status: Status, step: int | None) -> Path:
    """Return `model` of a finished run, or a checkpoint. Raise RunError if it is missing or damaged."""
    steps, export = [number for number, _ in checkpoints_in(run.checkpoints)], f"rlhf export {run.typed}"
    newest = [f"{export} --checkpoint {steps[-1]}"] if steps else []
    is_finished = status.state == FINISHED and run.model.is_dir()
    if step is None:
        if is_finished:
            return run.model
        got, expected = f"{status.state} at step {status.step}", "a finished run, or --checkpoint N"
        hint = ", or ".join([command_to_finish(run, status), *newest])
        raise RunError("this run has not finished", where=str(run.path), got=got, expected=expected, hint=hint)
    if step not in steps:
        got = "steps " + ", ".join(map(str, steps)) if steps else "no checkpoints"
        (hint,) = newest or [export if is_finished else command_to_finish(run, status)]
        raise RunError(f"there is no checkpoint of step {step}", where=str(run.checkpoints), got=got, hint=hint)
    folder = checkpoint_folder(run.checkpoints, step)
    if (problem := problem_with(folder)) is not None:
        what, expected = f"the checkpoint of step {step} is damaged", "the files of manifest.json"
        hint = ", or ".join(f"--checkpoint {number}" for number in steps if number != step)
        raise RunError(what, where=str(folder), got=problem, expected=expected, hint=hint or None)
    return folder


def model_card(source: SourceModel, folder: Path) -> tuple[str, list[str]]:
    """Return the README.md of an exported folder whose other files exist, and notes. Asks no network."""
    config, known = source.run.read_config(), read_json(source.run.provenance)
    trainer, git, rewards = section(config, "trainer"), section(known, "git"), section(config, "rewards")
    scores, notes = _scores(source)
    if source.run.is_config_edited():
        notes.append(f"The run's {EDITED_CONFIG}.")
    if source.quantized:
        notes.append(f"Trained on its base in {source.quantized}, merged into the base's own weights: outputs differ.")
    is_policy, base = source.kind == "policy", hub_base(source)
    path, starting = section(config, "model").get("path"), "a transformer of rlhf's own"
    if isinstance(path, str) and (run := run_of(Path(path))) is not None:
        starting = f"the model of the run {run.label}"
    elif isinstance(path, str):  # a hub id, or the last part of a path
        starting = Path(path).name if path.startswith("/") else path
    sources = _rows_of(section(config, "data"))
    on_hub = [path for kind, path in sources if kind == "path" and DataSource(path=path).is_hub]
    card = ModelCard.from_template(
        ModelCardData(
            base_model=base,
            datasets=on_hub or None,
            library_name="transformers",
            pipeline_tag="text-generation" if is_policy else "text-classification",
            tags=["rlhf", "trl", str(trainer.get("name")), source.kind.replace(" ", "-")],
        ),
        template_path=str(Path(__file__).with_name("templates") / "card.md.jinja"),
        name=folder.name,
        kind=source.kind,
        starting=starting,
        trainer=trainer.get("trl"),
        step=source.step,
        seed=config.get("seed"),
        command=known.get("command"),
        auto="AutoModelForCausalLM" if is_policy else "AutoModelForSequenceClassification",
        code=_code(source, folder),
        data=", ".join(name if kind == "path" else f"embedded world {name}" for kind, name in sources),
        rewards=[_reward(name, section(rewards, name)) for name in rewards],
        scores=scores,
        notes=notes,
        known=known,
        versions=", ".join(f"{name} {version}" for name, version in section(known, "versions").items() if version),
        commit=f"{git.get('commit', 'none')}{' with uncommitted changes' if git.get('dirty') else ''}",
        weights=weights_hash(folder),
    )
    return str(card), notes


def _code(source: SourceModel, folder: Path) -> str:
    """Return the lines of Python that use the loaded `model` and `tokenizer` as they were trained."""
    question, is_policy = json.dumps("What is the capital of France?"), source.kind == "policy"
    if trained_on_conversations(source.folder):
        answer = "" if is_policy else ', {"role": "assistant", "content": "Paris."}'
        prompt = "add_generation_prompt=True, " if is_policy else ""
        messages = f'[{{"role": "user", "content": {question}}}{answer}]'
        inputs = f'tokenizer.apply_chat_template({messages}, {prompt}return_dict=True, return_tensors="pt")'
    else:
        answer = "" if is_policy else ' + " Paris."' + (" + tokenizer.eos_token" if trained_with_eos(folder) else "")
        inputs = f'tokenizer({question}{answer}, return_tensors="pt")'
    generated = "tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0])"
    return f"inputs = {inputs}\nprint({generated if is_policy else 'model(**inputs).logits[0, 0]'})"


def hub_base(source: SourceModel) -> str | None:
    """Return the hub id that the weights derive from, following runs that started from other runs, or None."""
    run: RunFolder | None = source.run
    while run is not None:
        named = section(run.read_config(), "model").get("path")
        if not isinstance(named, str) or not Path(named).is_absolute():
            return named if isinstance(named, str) else None
        run = run_of(Path(named))
    return None


def _rows_of(data: JsonTree) -> list[tuple[str, str]]:
    """Return (`path` or `world`, name) of the sources of all rows, those of evaluations among them, each once."""
    mixed, held_out = section(data, "mix"), section(data, "eval")
    sources = (data, held_out, *(section(named, name) for named in (mixed, held_out) for name in named))
    found = [
        (kind, str(one))
        for kind in ("path", "world")
        for named in (source.get(kind) for source in sources)
        for one in (named if isinstance(named, list) else [named])
        if one is not None
    ]
    return list(dict.fromkeys(found))


def _reward(name: str, reward: JsonTree) -> list[str]:
    gate = reward.get("gate")
    gates = ", ".join(gate_text(one) for one in (gate if isinstance(gate, list) else [gate]) if isinstance(one, dict))
    scorer = reward.get("fn") or reward.get("model") or reward.get("environment")
    cells = [name, str(scorer), str(reward.get("weight")), gates]
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]


def _scores(source: SourceModel) -> tuple[list[list[str]], list[str]]:
    """Return the table's rows of evaluations of exactly these weights, and notes on files that cannot be read."""
    files = sorted(evaluations_of(source.run.model).glob("*.json"))
    if source.is_checkpoint:
        files = sorted(in_training(source.run).glob(f"step-{source.step}[.-]*json"))  # of each set
    scores, notes = [], []
    for file in files:
        try:
            evaluation = read_evaluation(file)
        except (ValueError, OSError, RunError):
            notes.append(f"The evaluation {file.name} could not be read.")
            continue
        if not evaluation.heading.is_of_the_run:
            continue
        if source.is_checkpoint or is_of_these_weights(source.folder.resolve(), evaluation.heading.time):
            for metric, found in evaluation.figures():
                mean = "" if found.mean is None else f"{found.mean:.4g}"
                has_interval = found.low is not None and found.high is not None
                interval = f"{found.low:.4g} to {found.high:.4g}" if has_interval else ""
                scores.append([evaluation.rows_in_words, metric, mean, interval, str(found.count)])
        else:
            notes.append(f"The evaluation {file.name} is of older weights.")
    return scores, notes


_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "*.tiktoken"),
    *("vocab.*", "merges.txt", "*.model", "chat_template.*", "additional_chat_templates/*", "*processor_config.json"),
)
_OF_TRAINING = ("_name_or_path", "_from_model_config", "is_local", "local_files_only", "name_or_path")
"""Keys that record where and how training loaded the model, not the model itself."""
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class ExportedModel:
    """An exported folder: its contents, the hash of its weights, and notes about them."""

    folder: Path
    kind: str
    step: int
    merged: bool
    files: list[str]
    weights_sha256: str | None
    notes: list[str]


def export_model(source: SourceModel, folder: Path, say: Callable[[str], None]) -> ExportedModel:
    """Write the model of a run into `folder`, new or empty, all of it or nothing. Raise RunError or ModelError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = f"--out {typed_path(folder.with_name(f'{folder.name}-2'))}"
        raise RunError("the export needs a new or empty folder", where=as_typed(folder), hint=hint)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        staged = Path(temporary, folder.name)
        staged.mkdir()
        if source.base is None:
            say("copying the weights")
            _copy(source.folder, staged, _WEIGHTS)
        else:
            say(f"merging the adapter into {source.base}")
            write_merged_weights(source, source.base, staged)
        code = ["*.py"] if source.trust_remote_code else []
        _copy(source.folder, staged, ("text_endings.json", "training_format.json", *code))
        if not _copy(source.folder, staged, _TOKENIZER):  # an adapter that was saved without its base's
            from rlhf_cli.models.model_folders import loaders_of

            place, trusted = source.base or str(source.folder), source.trust_remote_code
            given = {"revision": base_revision(source.folder), "trust_remote_code": trusted}
            try:
                load = loaders_of(str(source.folder), trust_remote_code=trusted)[2]
                load(place, **given).save_pretrained(str(staged))
            except (OSError, ValueError) as error:
                raise ModelError("the model has no tokenizer", where=place, got=f"{error!s:.300}") from error
        clean_configs(staged, source.kind)
        shapes = stored_shapes(staged)
        named = section(read_json(staged / "model.safetensors.index.json"), "weight_map")
        if shapes is None or (lost := sorted(set(named) - {shape.name for shape in shapes})):
            got = "no safetensors that can be read" if shapes is None else f"no file holds {lost[0]}"
            what, expected = "the exported weights are incomplete", "whole weights, as save_pretrained writes them"
            raise ModelError(what, where=str(source.folder), got=got, expected=expected)
        # Neither secrets nor this machine's folders: the one in which the run started becomes `.`, the home `~`.
        card, notes = model_card(source, staged)
        config = yaml.safe_dump(redacted_tree(source.run.read_config()), sort_keys=False, allow_unicode=True, width=120)
        start = str(read_json(source.run.provenance).get("cwd") or source.run.path.parent)
        places = {start: ".", os.path.realpath(start): ".", str(Path.home()): "~"}
        for name, text in (("training_config.yaml", config), ("README.md", redacted(card))):
            for place, short in sorted(places.items(), key=lambda item: -len(item[0])):
                text = text.replace(place, short) if len(place) > 1 else text
            (staged / name).write_text(text, encoding="utf-8")
        if folder.is_dir():
            folder.rmdir()
        staged.rename(folder)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return ExportedModel(folder, source.kind, source.step, bool(source.base), files, weights_hash(folder), notes)


def write_merged_weights(source: SourceModel, base: str, folder: Path) -> None:
    """Write an adapter merged into its base as config.json and safetensors. Raise ModelError.

    The sum W + s B A is computed in float32 and rounded once, to the dtype in which the base is stored.
    """
    import torch
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    path, trusted = str(source.folder), source.trust_remote_code
    try:
        dtype = _stored_dtype(source, base)
        from peft import PeftModel

        from rlhf_cli.models.model_folders import loaders_of
        from rlhf_cli.models.scalar_heads import load_reward_model

        if source.kind == "reward model":
            loaded = load_reward_model(path, dtype="float32", trust_remote_code=trusted)[0]
        else:
            load = loaders_of(path, trust_remote_code=trusted)[1]
            loaded = load(path, dtype=torch.float32, trust_remote_code=trusted)
        assert isinstance(loaded, PeftModel)
        model = merged_into_base(loaded)
        model.eval()
        torch.nn.Module.to(model, dtype)
        model.save_pretrained(str(folder))
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        got, expected = f"{type(error).__name__}: {error!s:.400}", f"the adapter as saved, and its base {base}"
        what = f"this {source.kind} cannot be loaded"
        raise ModelError(what, where=str(source.folder), got=got, expected=expected) from error


def _stored_dtype(source: SourceModel, base: str) -> torch.dtype:
    """Return the dtype in which the base's weights are stored. Raise ModelError if they are quantised or missing."""
    import torch
    from transformers import AutoConfig

    from rlhf_cli.models.cache import model_folder

    folder = Path(str(model_folder(base, where=base))).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or base.startswith(".")):
        advice = "put it back, or set base_model_name_or_path in adapter_config.json to its new place"
        expected = "the folder that the adapter was trained on"
        raise ModelError("the base model of this adapter is missing", where=base, expected=expected, advice=advice)
    given = {"revision": base_revision(source.folder), "trust_remote_code": source.trust_remote_code}
    config = AutoConfig.from_pretrained(folder if folder.is_dir() else base, **given)
    if quantized := getattr(config, "quantization_config", None):
        what = "an adapter cannot be merged into a quantised base: rounding would lose what it learnt"
        got, expected = f"quantization_config: {quantized}", "an adapter on weights in float32, bfloat16 or float16"
        advice = "publish the adapter as it is, RUN/model: transformers and vLLM load it on its base"
        raise ModelError(what, where=base, got=got, expected=expected, advice=advice)
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32


def _copy(source: Path, folder: Path, patterns: tuple[str, ...]) -> int:
    files = {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}
    for file in files:
        place = folder / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    return len(files)


def clean_configs(folder: Path, kind: Kind) -> None:
    """Remove training's settings from the configurations (`use_cache: false` for one), and add generation's."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = {key: value for key, value in read_json(folder / name).items() if key not in _OF_TRAINING}
            _write(folder / name, {**content, **({"use_cache": True} if "use_cache" in content else {})})
    generation = folder / "generation_config.json"
    if kind != "policy":
        generation.unlink(missing_ok=True)
    elif not generation.is_file():
        config = read_json(folder / "config.json")
        _write(generation, {name: config[name] for name in _TOKEN_IDS if config.get(name) is not None})


def _write(file: Path, content: JsonTree) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
