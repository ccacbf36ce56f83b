"""Make and write the files of a new project."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlhf_cli.data import worlds
from rlhf_cli.errors import UserError
from rlhf_cli.project.scaffold.own_rows import RowKind
from rlhf_cli.project.scaffold.project_choices import ProjectChoices
from rlhf_cli.tables.trl_trainers import TRAINERS

EXPERIMENT = "conf/exp/first.yaml"
_COMPLETIONS = "data/completions.jsonl"
_ALWAYS = {
    EXPERIMENT: "first.yaml.jinja",
    "README.md": "README.md.jinja",
    "AGENTS.md": "AGENTS.md.jinja",
    ".gitignore": "gitignore.jinja",
}
_WITH_REWARDS = {"rewards.py": "rewards.py.jinja", "test_rewards.py": "test_rewards.py.jinja"}

USUAL = (*_ALWAYS, *_WITH_REWARDS, _COMPLETIONS)
"""All files that a project may have, whatever its choices."""

_SAMPLES: dict[RowKind, tuple[str, str, str, int]] = {
    "prompts": ("toy_sums", "data/sums.jsonl", 'sums with their answers: `{"prompt": "17+5=", "answer": "22"}`', 400),
    "pairs": ("toy_preferences", "data/pairs.jsonl", "pairs of a better and a worse answer to sums", 1000),
    "judged": ("toy_judgements", "data/judged.jsonl", "single answers to sums, each judged good or bad", 1000),
    "demonstrations": ("toy_demonstrations", "data/demonstrations.jsonl", "sums as people answer them", 2000),
}
"""Maps a kind of rows to the sample's world, its file, its description in the README, and its number of rows."""

_BASED_ON = {"rloo": "RLOOTrainer", "sft": "SFTTrainer", "dpo": "DPOTrainer", "orpo": "ORPOTrainer"}
_BASED_ON |= {"cpo": "CPOTrainer", "kto": "KTOTrainer", "reward": "RewardTrainer"}
_PLAIN_YAML = re.compile(r"[A-Za-z./_][\w./-]*")
_YAML_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n", "~")


def project_files(choices: ProjectChoices, name: str) -> dict[str, str]:
    """Return path -> text for every file of a new project called `name`, in display order."""
    facts = _facts(choices, name)
    templates = Environment(
        loader=PackageLoader("rlhf_cli.project.scaffold", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # not HTML
    )
    templates.filters["yaml"] = as_yaml
    wanted = {EXPERIMENT: _ALWAYS[EXPERIMENT], **(_WITH_REWARDS if choices.training.generates else {}), **_ALWAYS}
    files = {path: templates.get_template(template).render(facts) for path, template in wanted.items()}
    if choices.training.generates:
        files[_COMPLETIONS] = _completions(choices)
    if choices.rows is None:
        world, path, _, count = _SAMPLES[choices.training.rows]
        files[path] = _lines(worlds.generate(world, {"num_rows": count, "max_value": 20}, seed=0))
    return files


def as_yaml(text: str) -> str:
    """Return a text as YAML, in quotes unless it is a plain word or path."""
    is_plain = _PLAIN_YAML.fullmatch(text) and text.lower() not in _YAML_WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _facts(choices: ProjectChoices, name: str) -> dict[str, object]:
    training, model, rows = choices.training, choices.model, choices.rows
    world, sample, sample_says, _ = _SAMPLES[training.rows]
    characters = 4 * choices.answer_tokens if not model.is_tiny else choices.answer_tokens
    model_group = "local" if model.path else "tiny_untrained" if training.name == "sft" else "tiny"
    return {
        "name": name,
        "training": training,
        "model": model,
        "model_group": model_group,
        "model_path": model.path,
        "model_says": "the embedded tiny model" if model.is_tiny else f"`{model.path}`",
        "data_path": sample if rows is None else rows.path,
        "data_says": "a sample of sums" if rows is None else f"`{rows.path}`",
        "sample_says": sample_says,
        "own_rows": rows is not None,
        "rename": {} if rows is None else rows.rename,
        "is_chat": rows is not None and rows.is_chat,
        "holds_out": choices.holds_out,
        "has_answer": choices.has_answer,
        "answer_is_number": choices.answer_is_number,
        "brief_full": 2 if rows is None and model.is_tiny else characters // 4,
        "brief_zero": characters,
        "config_class": TRAINERS[_BASED_ON.get(training.name, "GRPOTrainer")].config_class,
        "steps": training.steps if model.is_tiny else 200,
        "batch_size": choices.batch_size,
        "num_generations": choices.num_generations,
        "answer_tokens": choices.answer_tokens,
        "learning_rate": choices.learning_rate,
        "swept": "rewards.brief.weight=0,0.5" if training.generates else _swept_rate(choices.learning_rate),
        "world": world,
    }


def _swept_rate(rate: str) -> str:
    """Return the learning rates of a sweep: the initial one and a third of it."""
    return f"trainer.args.learning_rate={float(rate) / 3:.1e},{float(rate):.1e}"


def _completions(choices: ProjectChoices) -> str:
    """Return a few completions to try rewards on, with the columns that this project's rewards read."""
    row: dict[str, object] = {"prompt": "The capital of France?", "answer": "Paris"}
    said = ["Paris", "It is Paris, of course.", "London", ""]
    if not choices.has_answer:
        row = {"prompt": "Say something."}
        said = ["A short answer.", "Two\nlines.", "An answer that goes on " + "and on " * 30, ""]
    elif choices.answer_is_number:
        row = {"prompt": "17+5=", "answer": "22"}
        said = ["22", "17 and 5 make 22.", "21", "I think it is twenty-two", ""]
    return _lines([{**row, "completion": text} for text in said])


def _lines(rows: list[dict[str, object]]) -> str:
    short = ({name: round(one, 4) if isinstance(one, float) else one for name, one in row.items()} for row in rows)
    return "".join(json.dumps(row) + "\n" for row in short)


def path_from(folder: Path, typed: str) -> str:
    """Return a typed path as a project in `folder` refers to it.

    It is relative if inside the folder, else absolute; it may be a pattern.
    """
    path, folder = Path(os.path.abspath(os.path.expanduser(typed))), folder.resolve()
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)


def refuse_to_overwrite(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError if one of the files exists, or the folder is or lies below a file."""
    above = next(place for place in (folder, *folder.parents) if place.exists())
    if not above.is_dir():
        raise UserError("a project is a folder", where=str(folder), got=f"{above} is a file", hint=_elsewhere(above))
    taken = [name for name in names if os.path.lexists(folder / name)]
    if taken:
        raise UserError(
            "these files are there, and `rlhf init` overwrites none",
            where=str(folder.resolve()),
            got=", ".join(taken),
            expected="a folder without them",
            hint=_elsewhere(folder),
        )


def _elsewhere(taken: Path) -> str:
    """Return the command that creates the project in a folder that does not exist yet."""
    usual = Path("my-project") if taken == Path() else taken
    numbered = (usual.with_name(f"{usual.name}-{number}") for number in itertools.count(2))
    free = next(place for place in itertools.chain([usual], numbered) if not os.path.lexists(place))
    return f"rlhf init {shlex.quote(str(free))}"


def write_project(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Create `folder`, write the files into it and return their paths; on failure remove everything again.

    Raises UserError if the disk is full or not writable, and as `refuse_to_overwrite` does.
    """
    refuse_to_overwrite(folder, files)
    made: list[Path] = []
    try:
        for name, text in files.items():
            file = folder / name
            missing = [place for place in (file.parent, *file.parent.parents) if not place.exists()]
            file.parent.mkdir(parents=True, exist_ok=True)
            made += reversed(missing)
            with file.open("x", encoding="utf-8", newline="\n") as stream:
                made.append(file)
                stream.write(text)
    except BaseException as error:
        for place in reversed(made):
            with suppress(OSError):
                place.rmdir() if place.is_dir() else place.unlink()
        if isinstance(error, OSError):
            raise UserError(
                "the project cannot be written", where=str(folder), got=f"{error.strerror}: {error.filename}"
            ) from error
        raise
    return [folder / name for name in files]
