"""Write the model card of an exported model, with huggingface_hub's ModelCard and the template beside this file."""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import RunError
from rlhf_cli.evaluation.evaluation_files import read_evaluation
from rlhf_cli.project.source_model import SourceModel
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.reward_records import trained_on_conversations, trained_with_eos
from rlhf_cli.runs.run_folder import RunFolder, evaluations_of, in_training, read_json, run_of
from rlhf_cli.text.json_values import JsonTree, JsonValue, section


def model_card(source: SourceModel, folder: Path) -> tuple[str, list[str]]:
    """Return the README.md of an exported folder whose other files exist, and notes. Asks no network."""
    config, known = source.run.read_config(), read_json(source.run.provenance)
    trainer, git, rewards = section(config, "trainer"), section(known, "git"), section(config, "rewards")
    scores, notes = _scores(source)
    if source.quantized:
        notes.append(f"Trained on its base in {source.quantized}, merged into the base's own weights: outputs differ.")
    is_policy, base, data = source.kind == "policy", hub_base(source), section(config, "data")
    datasets = _data_paths(data)
    on_hub = [path for path in datasets if not Path(path).is_absolute() and DataSource(path=path).is_hub]
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
        starting=_starting(section(config, "model").get("path")),
        trainer=trainer.get("trl"),
        step=source.step,
        seed=config.get("seed"),
        command=known.get("command"),
        auto="AutoModelForCausalLM" if is_policy else "AutoModelForSequenceClassification",
        code=_code(source, folder),
        data=", ".join(datasets) or f"embedded world {data.get('world')}",
        rewards=[_reward(name, section(rewards, name)) for name in rewards],
        scores=scores,
        notes=notes,
        known=known,
        versions=", ".join(f"{name} {version}" for name, version in section(known, "versions").items() if version),
        commit=f"{git.get('commit', 'none')}{' with uncommitted changes' if git.get('dirty') else ''}",
        weights=weights_hash(folder),
    )
    return str(card), notes


def _starting(path: JsonValue) -> str:
    """Return a starting model as the card names it: its hub id, its run, or the last part of its path."""
    if not isinstance(path, str):
        return "a transformer of rlhf's own"
    run = run_of(Path(path)) if Path(path).is_absolute() else None
    return (
        f"the model of the run {run.label}" if run is not None else path.rpartition("/")[2] if path[0] == "/" else path
    )


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
    shown = (
        "tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0])"
        if is_policy
        else "model(**inputs).logits[0, 0]"
    )
    return f"inputs = {inputs}\nprint({shown})"


def hub_base(source: SourceModel) -> str | None:
    """Return the hub id that the weights derive from, following runs that started from other runs, or None."""
    run: RunFolder | None = source.run
    while run is not None:
        named = section(run.read_config(), "model").get("path")
        if not isinstance(named, str) or not Path(named).is_absolute():
            return named if isinstance(named, str) else None
        run = run_of(Path(named))
    return None


def _data_paths(data: JsonTree) -> list[str]:
    mixed, held_out = section(data, "mix"), section(data, "eval")
    of_sets = (section(held_out, name) for name in held_out)
    paths: list[JsonValue] = []
    for source in (data, *(section(mixed, name) for name in mixed), held_out, *of_sets):
        path = source.get("path")
        paths += path if isinstance(path, list) else [path]
    return list(dict.fromkeys(str(path) for path in paths if path is not None))


def _reward(name: str, reward: JsonTree) -> list[str]:
    gate = section(reward, "gate")
    gated = f"{gate['by']} at least {gate.get('at_least')}" if gate.get("by") else ""
    cells = [name, str(reward.get("fn") or reward.get("model")), str(reward.get("weight")), gated]
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
        path = evaluation.heading.path
        if path is None or Path(path).resolve() == source.folder.resolve():  # else another model generated the answers
            for metric, found in evaluation.figures():
                mean = "" if found.mean is None else f"{found.mean:.4g}"
                has_interval = found.low is not None and found.high is not None
                interval = f"{found.low:.4g} to {found.high:.4g}" if has_interval else ""
                scores.append([evaluation.rows_in_words, metric, mean, interval, str(found.count)])
    return scores, notes
