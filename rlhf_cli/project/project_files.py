"""Choose the contents of a new project, make its files and write them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlhf_cli.data import worlds
from rlhf_cli.errors import UserError, writing
from rlhf_cli.models.cache import model_folder
from rlhf_cli.models.model_folders import describe_model
from rlhf_cli.models.tokenizer_files import context_of, read_json, read_tokenizer
from rlhf_cli.plan.checks.prompt_checks import is_chat_model
from rlhf_cli.project.function_source import NO_DEFAULT, functions_in, read_function
from rlhf_cli.project.own_rows import OwnRows, RowKind, Training
from rlhf_cli.project.reward_reference import as_yaml
from rlhf_cli.tables.trl_values import REWARD_ARGUMENTS

TINY, SMOLLM2 = "tiny", "smollm2"


@dataclass(frozen=True)
class StartingModel:
    """A model to start from: a folder or hub id in `path`, or None for the option `group` of conf/model.

    `context_tokens` is its context length, None if only the hub knows. `is_folder` says whether `path` is a folder,
    `is_chat` whether a folder holds a model that is made for conversations.
    """

    path: str | None
    context_tokens: int | None
    is_folder: bool = False
    is_chat: bool = False
    group: str = TINY

    @property
    def is_tiny(self) -> bool:
        """Return whether it is the embedded model."""
        return self.path is None and self.group == TINY


_READY = {
    TINY: StartingModel(None, 512),  # as conf/model/tiny_untrained.yaml has it
    SMOLLM2: StartingModel(None, 8192, is_chat=True, group=SMOLLM2),
}


def read_starting_model(word: str) -> StartingModel:
    """Return the model that a typed word means. Raise ModelError if it means none."""
    if word in _READY:
        return _READY[word]
    named = str(model_folder(word, where="--model"))
    describe_model(named, where="--model")  # a Path would lose the `./` that tells a folder from a hub id
    folder = Path(named).expanduser()
    config = folder / "config.json"
    return StartingModel(
        word,
        context_of(read_json(config, where="--model")) if config.is_file() else None,
        is_folder=Path(word).expanduser().exists(),
        is_chat=folder.is_dir() and is_chat_model(folder, read_tokenizer(folder, where="--model")),
    )


SAMPLE = "sample"
_HELD_OUT = 0.1
_FEWEST_TO_HOLD_OUT = 40
_GROUP = 8
_FEWEST_TO_READ = 16
_PPO_MINIBATCHES = 4  # minibatches per PPO round, as in conf/trainer/ppo.yaml


@dataclass(frozen=True)
class ProjectChoices:
    """What an experiment is made from: the training, the starting model, and the rows (None: the sample's).

    `name` is the experiment's. `reward_module` is the file of the rewards without its ending, `theirs` the functions in
    it that the user wrote and this data suits.
    """

    training: Training
    model: StartingModel
    rows: OwnRows | None
    name: str = "first"
    reward_module: str = "rewards"
    theirs: tuple[str, ...] = ()

    @property
    def has_answer(self) -> bool:
        """Return whether a column allows answers to be checked."""
        return self.training.generates and (self.rows is None or self.rows.has_answer)

    @property
    def answer_is_number(self) -> bool:
        """Return whether that column holds numbers."""
        return self.rows is None or self.rows.answer_is_number


_NAMES = ("first", "second", "third", "fourth")


def beside(folder: Path, choices: ProjectChoices) -> ProjectChoices:
    """Return the choices for a folder that may have experiments and a rewards.py: a free name, the functions there."""
    names = itertools.chain(_NAMES, (f"exp{number}" for number in itertools.count(len(_NAMES) + 1)))
    free = next(name for name in names if not (folder / "conf" / "exp" / f"{name}.yaml").exists())
    needed, file = {"brief", *(["correct"] if choices.has_answer else [])}, folder / "rewards.py"
    choices = replace(choices, name=free)
    if not (choices.training.generates and file.exists()) or needed <= {*(functions := functions_in(str(file)))}:
        return choices  # a rewards.py of an earlier `rlhf init` serves again
    given = {*REWARD_ARGUMENTS, *(("prompt", "answer") if choices.rows is None else choices.rows.columns)}
    fits = tuple(
        name for name in functions if "completions" in (reads := _required(f"{file}:{name}")) and reads <= given
    )
    return replace(choices, theirs=fits, reward_module="rewards" if fits else f"{free}_rewards")


def _required(function: str) -> set[str]:
    parameters = read_function(function).parameters
    return {one.name for one in parameters if one.default is NO_DEFAULT and not one.takes_the_rest}


_ALWAYS = {"README.md": "README.md.jinja", "AGENTS.md": "AGENTS.md.jinja", ".gitignore": "gitignore.jinja"}

_SAMPLES: dict[RowKind, tuple[str, str, str, int]] = {
    "prompts": ("toy_sums", "data/sums.jsonl", 'sums with their answers: `{"prompt": "17+5=", "answer": "22"}`', 400),
    "pairs": ("toy_preferences", "data/pairs.jsonl", "pairs of a better and a worse answer to sums", 1000),
    "judged": ("toy_judgements", "data/judged.jsonl", "single answers to sums, each judged good or bad", 1000),
    "demonstrations": ("toy_demonstrations", "data/demonstrations.jsonl", "sums as people answer them", 2000),
}
"""Maps a kind of rows to the sample's world, its file, its description in the README, and its number of rows."""


def project_files(choices: ProjectChoices, name: str) -> dict[str, str]:
    """Return path -> text for every file of a new project called `name`, in display order."""
    facts = _facts(choices, name)
    templates = Environment(
        loader=PackageLoader("rlhf_cli.project", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # not HTML
    )
    templates.filters["yaml"] = as_yaml
    wanted = {f"conf/exp/{choices.name}.yaml": "first.yaml.jinja"}
    if choices.training.generates and not choices.theirs:
        module = choices.reward_module
        wanted |= {f"{module}.py": "rewards.py.jinja", f"test_{module}.py": "test_rewards.py.jinja"}
    wanted |= _ALWAYS
    files = {path: templates.get_template(template).render(facts) for path, template in wanted.items()}
    if choices.training.generates:
        row: dict[str, object] = {"prompt": "The capital of France?", "answer": "Paris"}
        said = ["Paris", "It is Paris, of course.", "London", ""]
        if not choices.has_answer:
            row = {"prompt": "Say something."}
            said = ["A short answer.", "Two\nlines.", "An answer that goes on " + "and on " * 30, ""]
        elif choices.answer_is_number:
            row = {"prompt": "17+5=", "answer": "22"}
            said = ["22", "17 and 5 make 22.", "21", "I think it is twenty-two", ""]
        files["data/completions.jsonl"] = _lines([{**row, "completion": text} for text in said])
    if choices.rows is None:
        world, path, _, count = _SAMPLES[choices.training.rows]
        files[path] = _lines(worlds.generate(world, {"num_rows": count, "max_value": 20}, seed=0))
    return files


def _sizes(training: Training, model: StartingModel, rows: OwnRows | None) -> tuple[float | None, int, int]:
    """Return (the share of rows to hold out, rows per step of one process, tokens per answer or text).

    The share is None if there are too few rows. If the training generates, the rows of a step are completions.
    """
    count, batch_size = None if rows is None else rows.num_rows, 64 if model.is_tiny else 8
    holds_out = _HELD_OUT if count is None or count >= _FEWEST_TO_HOLD_OUT else None
    if count is not None:
        left = max(1, int(count * (1 - (holds_out or 0))))
        of_ppo, of_others = max(1, left // _PPO_MINIBATCHES), left * (_GROUP if training.generates else 1)
        batch_size = min(batch_size, of_ppo if training.name == "ppo" else of_others)
    tokens = 64 if model.is_tiny else 256
    tokens *= 1 if training.generates else 4
    if rows is None and model.is_tiny:
        tokens = 16 if training.generates else 96
    if (limit := model.context_tokens) is not None:
        tokens = max(_FEWEST_TO_READ, min(tokens, limit // 2 if training.generates else limit))
    return holds_out, batch_size, tokens


def _facts(choices: ProjectChoices, name: str) -> dict[str, object]:
    training, model, rows = choices.training, choices.model, choices.rows
    holds_out, batch_size, answer_tokens = _sizes(training, model, rows)
    _, sample, sample_says, _ = _SAMPLES[training.rows]
    rate = training.tiny_rate if model.is_tiny else training.rate
    rates = f"trainer.args.learning_rate={float(rate) / 3:.1e},{float(rate):.1e}"
    characters = 4 * answer_tokens if not model.is_tiny else answer_tokens
    model_group = "local" if model.path else model.group
    model_group += "_untrained" * (model.is_tiny and training.name == "sft")
    return {
        **{fact: getattr(choices, fact) for fact in dir(choices) if not fact.startswith("_")},
        "name": name,
        "exp": choices.name,
        "model_group": model_group,
        "model_says": "the embedded tiny model" if model.is_tiny else f"`{model.path or model.group}`",
        "data_path": sample if rows is None else rows.path,
        "data_says": "a sample of sums" if rows is None else f"`{rows.path}`",
        "sample_says": sample_says,
        "own_rows": rows is not None,
        "rename": {} if rows is None else rows.rename,
        "question": rows and rows.question,
        "is_chat": rows is not None and rows.is_chat,
        "brief_full": 2 if rows is None and model.is_tiny else characters // 4,
        "brief_zero": characters,
        "steps": training.steps if model.is_tiny else 200,
        "holds_out": holds_out,
        "batch_size": batch_size,
        "answer_tokens": answer_tokens,
        "num_generations": _GROUP if training.generates and training.name != "ppo" else None,  # the trainer's default
        "learning_rate": rate,
        "swept": f"rewards.{(*choices.theirs, 'brief')[0]}.weight=0,0.5" if training.generates else rates,
    }


def _lines(rows: list[dict[str, object]]) -> str:
    short = ({name: round(one, 4) if isinstance(one, float) else one for name, one in row.items()} for row in rows)
    return "".join(json.dumps(row) + "\n" for row in short)


def path_from(folder: Path, typed: str) -> str:
    """Return a typed path or pattern as a project in `folder` refers to it, relative if typed so or inside."""
    path, folder = Path(os.path.abspath(os.path.expanduser(typed))), folder.resolve()
    if path.is_relative_to(folder):
        return f"./{path.relative_to(folder)}"
    return str(path) if os.path.isabs(os.path.expanduser(typed)) else os.path.relpath(path, folder)


def refuse_file(folder: Path) -> None:
    """Raise UserError if the folder is or lies below a file."""
    above = next(place for place in (folder, *folder.parents) if place.exists())
    if not above.is_dir():
        raise UserError("a project is a folder", where=str(folder), got=f"{above} is a file", hint="rlhf init FOLDER")


def write_project(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Create `folder` and the files that are not there, all or none, and return their names. Raise UserError."""
    new = {name: text for name, text in files.items() if not os.path.lexists(folder / name)}
    made = list[Path]()
    try:
        with writing("the project", folder):
            for name, text in new.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("x", encoding="utf-8", newline="\n") as stream:
                    made.append(folder / name)
                    stream.write(text)
    except BaseException:  # the next `rlhf init`, which overwrites nothing, would keep half an experiment
        for file in made:
            file.unlink(missing_ok=True)
        raise
    return list(new)
