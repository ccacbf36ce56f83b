"""Write the model card of an exported model.

The card does not reveal the user's folders: paths are reduced to their last part.
"""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import RunError
from rlhf_cli.evaluation.evaluation_files import read_evaluation
from rlhf_cli.models.tokenizer_files import architectures_of
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.project.export.source_model import SourceModel
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, evaluations_of, in_training, read_json, run_of
from rlhf_cli.runs.text_endings import trained_on_conversations, trained_with_eos
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

_UNRELATED = ("log", "save_", "eval_", "num_completions_to_print")
"""Prefixes of arguments that do not affect the weights."""
_TASKS = {"policy": "text-generation", "reward model": "text-classification"}
_SUMMARIES = {
    "policy": "A language model, trained",
    "reward model": "A reward model: it gives a text one number, the higher the better. Trained",
}

CardScore = tuple[str, str, Estimate]
"""A number from an evaluation: its rows, its metric and its interval."""


def model_card(source: SourceModel, folder: Path) -> tuple[str, list[str]]:
    """Return the README.md of an exported folder whose other files exist, and notes about the model.

    Makes no network requests.
    """
    config, known = source.run.read_config(), read_json(source.run.provenance)
    trainer, model, data = (section(config, name) for name in ("trainer", "model", "data"))
    scores, notes = _scores(source)
    if source.quantized:
        notes.append(
            f"The adapter was trained on its base in {source.quantized} and is merged into the base's own weights, so"
            " its outputs differ a little from those in training."
        )
    base, trl = hub_base(source), str(trainer.get("trl"))
    build = section(model, "build")
    size = f"layers: {build.get('num_layers')}, width: {build.get('hidden_size')}"
    starting = _named(path) if (path := model.get("path")) else f"a byte-level transformer of rlhf's own ({size})"
    linked = f"[{base}](https://huggingface.co/{base})" if base else starting
    experiment = section(known, "choices").get("exp") or trainer.get("name")
    hashes = {name: str(value) for name, value in section(known, "sha256").items() if value}
    is_chat = trained_on_conversations(source.folder) is True
    question = "What is the capital of France?" if is_chat else "17+5=" if base is None else "The capital of France is"
    metadata = ModelCardData(
        base_model=base,
        datasets=_datasets(data) or None,
        library_name="transformers",
        model_name=folder.name,
        pipeline_tag=_TASKS[source.kind],
        tags=["rlhf", "trl", trl.removesuffix("Trainer").lower(), source.kind.replace(" ", "-")],
    )
    page = Environment(
        loader=PackageLoader("rlhf_cli.project.export", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    page.filters |= {"cell": _cell, "number": _number}
    card = page.get_template("card.md.jinja").render(
        card_data=metadata.to_yaml(),
        name=folder.name,
        what=f"{_SUMMARIES[source.kind]} from {linked}, by the experiment `{experiment}` of rlhf.",
        kind=source.kind,
        is_chat=is_chat,
        prompt=json.dumps(question),
        architecture=next(iter(architectures_of(read_json(folder / "config.json"))), "the architecture"),
        with_eos=source.kind == "reward model" and trained_with_eos(folder) is True,
        trainer=trl,
        starting_model=starting,
        settings=_settings(source, config, known),
        rewards=[_reward(name, value, hashes) for name, value in section(config, "rewards").items()],
        data=_data(data, known, hashes),
        scores=scores,
        provenance=_provenance(source, known, hashes) | {"weights (SHA-256)": weights_hash(folder) or "?"},
        notes=notes,
        command=known.get("command", "rlhf train"),
    )
    return card, notes


def _settings(source: SourceModel, config: JsonTree, known: JsonTree) -> dict[str, str]:
    trainer, lora = section(config, "trainer"), section(section(config, "model"), "lora")
    args = section(trainer, "args")
    settings = {
        "trainer": str(trainer.get("name")),
        "steps": str(source.step),
        "seed": str(config.get("seed")),
        "processes": str(known.get("world_size", "?")),
        "mixed precision": str(known.get("mixed_precision", "?")),
        **{name: _plain(args[name]) for name in args if args[name] is not None and not name.startswith(_UNRELATED)},
        "lora": ", ".join(f"{name}={_plain(value)}" for name, value in lora.items()),
        "base in training": source.quantized or "",
    }
    return {name: value for name, value in settings.items() if value}


def _provenance(source: SourceModel, known: JsonTree, hashes: dict[str, str]) -> dict[str, str]:
    git, started = section(known, "git"), section(known, "starting_model")
    changed = " with uncommitted changes" if git.get("dirty") else ""
    return {
        "started": str(known.get("created_at", "?")),
        "commit of the code": f"{git['commit']}{changed}" if git.get("commit") else "none",
        "configuration (SHA-256)": hashes.get("config", "?"),
        "starting weights": str(started.get("commit") or started.get("weights_sha256") or "?"),
        "checkpoint": f"checkpoint-{source.step}" if source.is_checkpoint else "the end of the run",
        "versions": ", ".join(f"{name} {version}" for name, version in section(known, "versions").items() if version),
    }


def hub_base(source: SourceModel) -> str | None:
    """Return the hub id that the weights derive from, following runs that started from other runs, or None."""
    run: RunFolder | None = source.run
    while run is not None:
        named = section(run.read_config(), "model").get("path")
        if not isinstance(named, str) or not Path(named).is_absolute():
            return named if isinstance(named, str) else None
        run = run_of(Path(named))
    return None


def _sources(data: JsonTree) -> dict[str, JsonTree]:
    """Return the data sources of an experiment by the names of their hashes."""
    mixed, held_out = section(data, "mix"), section(data, "eval")
    sources = {f"data.mix.{name}": section(mixed, name) for name in mixed} or {"data": data}
    return sources | ({"data.eval": held_out} if held_out.get("path") or held_out.get("world") else {})


def _paths(source: JsonTree) -> list[str]:
    path = source.get("path")
    return [str(part) for part in path] if isinstance(path, list) else [str(path)] if path else []


def _datasets(data: JsonTree) -> list[str]:
    paths = dict.fromkeys(path for source in _sources(data).values() for path in _paths(source))
    return [path for path in paths if not Path(path).is_absolute() and DataSource(path=path).is_hub]


def _data(data: JsonTree, known: JsonTree, hashes: dict[str, str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for key, source in _sources(data).items():
        what = ", ".join(map(_last_part, _paths(source))) or f"embedded world {source.get('world')}"
        details = [f"{name} {source[name]}" for name in ("subset", "split", "revision") if source.get(name)]
        name = "held out" if key == "data.eval" else key.removeprefix("data.mix.")
        rows.append((name, "; ".join([what, *details]), hashes.get(key, "")))
    if known.get("num_train_rows"):
        rows.append(("rows to train on", str(known["num_train_rows"]), ""))
    if fraction := section(data, "eval").get("fraction"):
        rows.append(("held out", f"{fraction} of the rows", ""))
    return rows


def _reward(name: str, value: JsonValue, hashes: dict[str, str]) -> tuple[str, ...]:
    reward = value if isinstance(value, dict) else {}
    args = ", ".join(f"{key}={_plain(value)}" for key, value in section(reward, "args").items())
    gate = section(reward, "gate")
    rules = [f"gate: {gate['by']} at least {gate.get('at_least')}"] if gate.get("by") else []
    keys = [key for key in ("clip", "normalize", "offset") if reward.get(key) not in (None, 0, "none")]
    rules += [f"{key} {_plain(reward[key])}" for key in keys]
    scored_by = _named(reward.get("fn") or reward.get("model") or "?") + (f" ({args})" if args else "")
    return name, scored_by, _plain(reward.get("weight")), "; ".join(rules), hashes.get(f"rewards.{name}", "")[:12]


def _scores(source: SourceModel) -> tuple[list[CardScore], list[str]]:
    """Return the evaluation results of exactly these weights, and notes on files that could not be read."""
    files = sorted(evaluations_of(source.run.model).glob("*.json"))
    if source.is_checkpoint:
        files = [*in_training(source.run).glob(f"step-{source.step}.json")]
    scores: list[CardScore] = []
    notes = []
    for file in files:
        try:
            evaluation = read_evaluation(file)
        except (ValueError, OSError, RunError):
            notes.append(f"The evaluation {file.name} could not be read.")
            continue
        path = evaluation.heading.path
        if path is None or Path(path).resolve() == source.folder.resolve():  # else another model generated the answers
            scores += [(evaluation.rows_in_words, metric, estimate) for metric, estimate in evaluation.figures()]
    return scores, notes


def _named(path: object) -> str:
    """Return a model or function as the card names it: its run, its hub id, or the last part of its path."""
    run = run_of(Path(str(path))) if Path(str(path)).is_absolute() else None
    return f"the model of the run {run.label}" if run is not None else _last_part(str(path))


def _last_part(text: str) -> str:
    """Return a function or file without its folder; an import path and a hub id stay unchanged."""
    return text.rpartition("/")[2] if text.startswith(("/", "~", ".")) else text


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else _last_part(str(value))


def _cell(text: object) -> str:
    """Return a text escaped for a cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
