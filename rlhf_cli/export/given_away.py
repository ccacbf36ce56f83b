"""Write the export folder, whole or not at all: weights, tokenizer, configuration, card."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlhf_cli.errors import ModelError, RunError
from rlhf_cli.export.card_facts import read_facts
from rlhf_cli.export.model_card import model_card
from rlhf_cli.export.model_files import clean_configs, copy_tokenizer, copy_weights, problems_of
from rlhf_cli.export.source_model import SourceModel
from rlhf_cli.redaction import redacted, redacted_tree
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import read_json

_CONFIG = "training_config.yaml"


@dataclass(frozen=True)
class GivenAway:
    """An exported folder: its contents and the hash of its weights. `bytes` is the size of all its files."""

    folder: Path
    kind: str
    step: int
    merged: bool
    files: list[str]
    bytes: int
    weights_sha256: str | None
    notes: list[str]


def give_away(source: SourceModel, folder: Path, say: Callable[[str], None]) -> GivenAway:
    """Write the model of a run into `folder`, which must be missing or empty, and return what was written.

    The files are written to a temporary folder beside it, which is then renamed, so an interruption leaves nothing
    behind. Raises RunError if `folder` is not empty, ModelError if the weights cannot be loaded or the result is
    incomplete.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            "there is something where the model is to be written",
            where=str(folder),
            got=", ".join(sorted(path.name for path in folder.iterdir())[:6]) if folder.is_dir() else "a file",
            expected="a folder that is not there yet, or an empty one",
            hint=f"--out {folder}-2",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        staged = Path(temporary, folder.name)
        staged.mkdir()
        notes = _fill(source, staged, folder.name, say)
        if folder.is_dir():
            folder.rmdir()
        staged.rename(folder)
    return _described(source, folder, notes)


def exported_before(source: SourceModel, folder: Path) -> GivenAway | None:
    """Return an earlier export of the same weights in `folder`, even if edited since, or None."""
    written = folder / _CONFIG
    if not written.is_file() or written.read_text(encoding="utf-8") != _config_text(source):
        return None
    if source.has_safetensors and weights_hash(folder) != weights_hash(source.folder):
        return None
    return _described(source, folder, [])


def _described(source: SourceModel, folder: Path, notes: list[str]) -> GivenAway:
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    size = sum((folder / name).stat().st_size for name in files)
    merged = source.base is not None
    return GivenAway(folder, source.kind, source.step, merged, files, size, weights_hash(folder), notes)


def _fill(source: SourceModel, folder: Path, name: str, say: Callable[[str], None]) -> list[str]:
    """Write all files of the model and return notes about it."""
    if source.has_safetensors:
        say("copying the weights")
        copy_weights(source.folder, folder)
    else:
        say("loading the weights" if source.base is None else f"putting the adapter into {source.base}")
        from rlhf_cli.export.merged_weights import write_whole_weights  # imports torch

        write_whole_weights(source, folder)
        endings = source.folder / "text_endings.json"
        if endings.is_file():
            shutil.copyfile(endings, folder / endings.name)
    if not copy_tokenizer(source.tokenizer, folder):
        _save_tokenizer(source, folder)
    clean_configs(folder, source.kind)
    if source.trust_remote_code:
        for code in source.folder.glob("*.py"):
            shutil.copyfile(code, folder / code.name)
    problems = [one for one in problems_of(folder, source.kind) if not (source.trust_remote_code and "auto_map" in one)]
    if problems:
        raise ModelError(
            "what was made of this run would not load by itself",
            where=str(source.folder),
            got="\n".join(problems),
            expected="a whole model with its tokenizer, as save_pretrained writes it",
        )
    facts = read_facts(source)
    (folder / _CONFIG).write_text(_config_text(source), encoding="utf-8")
    card = model_card(folder, source.kind, facts, name=name)
    (folder / "README.md").write_text(_without_places(source, redacted(card)), encoding="utf-8")
    return facts.notes


def _save_tokenizer(source: SourceModel, folder: Path) -> None:
    """Write the base's tokenizer, for an adapter that was saved without one."""
    from transformers import AutoTokenizer

    place = source.base or str(source.tokenizer)
    try:
        AutoTokenizer.from_pretrained(place, trust_remote_code=source.trust_remote_code).save_pretrained(str(folder))
    except (OSError, ValueError) as error:
        raise ModelError("the model has no tokenizer", where=place, got=f"{error!s:.300}") from error


def _config_text(source: SourceModel) -> str:
    """Return the run's configuration, under a comment that names the exported weights."""
    tree = redacted_tree(source.run.read_config())
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)
    return f"# the {source.kind} at step {source.step}\n" + _without_places(source, text)


def _without_places(source: SourceModel, text: str) -> str:
    """Return a text without this machine's folders: replace the run's start folder by `.` and the home by `~`."""
    begun = str(read_json(source.run.provenance).get("cwd") or source.run.path.parent)
    places = {begun: ".", os.path.realpath(begun): ".", str(Path.home()): "~"}
    for place, short in sorted(places.items(), key=lambda item: -len(item[0])):
        if len(place) > 1:
            text = text.replace(place, short)
    return text
