"""rlhf init [FOLDER]     create a project: an experiment, rewards with tests, data, README.md, AGENTS.md

At a terminal, up to three questions ask for values that no flag gives; otherwise the defaults are grpo, tiny, sample.
`rlhf train +exp=first` works in it at once. No file is overwritten.

  --trains NAME     grpo, rloo, ppo: by rewards; sft: on demonstrations; dpo, orpo, cpo, kto: on judged answers;
                    reward: a reward model
  --model NAME      tiny, a model folder, or a hub id
  --data NAME       sample, or a file of yours (JSONL, JSON, CSV, Parquet), whose columns are read
  --column ROLE=COLUMN ...    this column of the file is the prompt, answer, chosen, rejected, completion or label
  --json            {folder, files, trains, model, data, rename, next}
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rlhf_cli.cli.output import print_json
from rlhf_cli.display import project_screens
from rlhf_cli.display.project_screens import first_commands, show_project
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.jobs.usage import Options, read_options
from rlhf_cli.project.scaffold.own_rows import OwnRows, Training, read_own_rows, training_named, unassigned_columns
from rlhf_cli.project.scaffold.project_choices import SAMPLE, TINY, ProjectChoices, read_starting_model
from rlhf_cli.project.scaffold.project_files import USUAL, path_from, project_files, refuse_to_overwrite, write_project


def run(argv: list[str]) -> int:
    """Write a project, print what to type in it and return the exit code.

    Raises ConfigError, DataError or ModelError for an unusable answer, UserError if files would be overwritten.
    """
    options = read_options(__doc__, argv, verb="init")
    if len(options.words) > 1:
        raise _several_folders(options, argv)
    folder = Path(options.words[0]).expanduser() if options.words else Path()
    refuse_to_overwrite(folder, USUAL)  # before any question
    console = Screen() if sys.stdin.isatty() and sys.stdout.isatty() and not options.as_json else None
    choices = _choices(options, folder, console)
    files = project_files(choices, folder.resolve().name)
    write_project(folder, files)
    rename = choices.rows.rename if choices.rows is not None else {}
    commands = first_commands(folder)
    if options.as_json:
        print_json(
            {
                "folder": str(folder.resolve()),
                "files": list(files),
                "trains": choices.training.name,
                "model": choices.model.path or TINY,
                "data": choices.rows.path if choices.rows is not None else SAMPLE,
                "rename": rename,
                "next": commands,
            }
        )
    else:
        show_project(console or Screen(), folder, list(files), rename=rename, commands=commands)
    return EXIT_OK


def _several_folders(options: Options, argv: list[str]) -> ConfigError:
    """Return the error for several words: columns without their flag, or a name with blanks."""
    columns = [word for word in options.words if "=" in word] if options.texts("--column") else []
    if columns:
        with_flags = [part for word in argv for part in (("--column", word) if word in columns else (word,))]
        got, meant = " ".join(columns), shlex.join(with_flags)
        return ConfigError(
            "each column needs its own --column", where="command line", got=got, hint=f"rlhf init {meant}"
        )
    got = " ".join(options.words)
    flags = [word for word in argv if word not in options.words]
    return ConfigError(
        "init takes one folder",
        where="command line",
        got=got,
        expected="one word; a name with blanks in quotes",
        hint=f"rlhf init {shlex.join([got, *flags])}",
    )


def _choices(options: Options, folder: Path, console: Console | None) -> ProjectChoices:
    """Return the choices from flags, else from questions if there is a `console`, else the defaults."""
    trains, model, data = options.text("--trains"), options.text("--model"), options.text("--data")
    typed = dict(_role_and_column(word) for word in options.texts("--column"))
    training = training_named(trains or (project_screens.ask_training(console) if console else "grpo"))
    if model is None:
        model = project_screens.ask_model(console, read_starting_model) if console else TINY
    starting = read_starting_model(model)
    if starting.is_folder:
        starting = replace(starting, path=path_from(folder, model))
    if data is None and console is not None:
        data = project_screens.ask_data(
            console, lambda word: word == SAMPLE or unassigned_columns(word, training, typed)
        )
    rows = _own_rows(data, training, typed, folder, console) if data not in (None, SAMPLE) else None
    return ProjectChoices(training, starting, rows)


def _own_rows(data: str, training: Training, typed: dict[str, str], folder: Path, console: Console | None) -> OwnRows:
    if console is not None:
        typed |= project_screens.ask_columns(console, *unassigned_columns(data, training, typed))
    return replace(read_own_rows(data, training, typed), path=path_from(folder, data))


def _role_and_column(word: str) -> tuple[str, str]:
    role, equals, column = word.partition("=")
    if not (role and equals and column):
        raise ConfigError("--column is ROLE=COLUMN", where="command line", got=word, hint="--column prompt=Question")
    return role, column
