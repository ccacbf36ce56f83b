"""rlhf init [FOLDER]     create a project: an experiment, rewards with tests, data, README.md, AGENTS.md

Without flags: grpo, the tiny model, the sample. `rlhf train +exp=first` works in it at once. No file is overwritten: in
a folder with an experiment another one is added, and a rewards.py that is there is used.

  --trains NAME     grpo, rloo, ppo: by rewards; sft: on demonstrations; dpo, orpo, cpo, kto: on judged answers;
                    reward: a reward model
  --model NAME      tiny (learns sums only), smollm2, a model folder, or a hub id
  --data NAME       sample, or a file of yours (JSONL, JSON, CSV, Parquet), whose columns are read
  --column ROLE=COLUMN ...    this column of the file is the prompt, answer, chosen, rejected, completion or label
  --json            {folder, files, trains, model, data, rename, next}
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.display.terminal import Screen, facts_grid
from rlhf_cli.errors import EXIT_OK
from rlhf_cli.project import project_files as project
from rlhf_cli.project.own_rows import read_own_rows, training_named

_TEST = "test_"
_SAYS = {
    ".yaml": "the experiment",
    _TEST: "their tests: python -m pytest",
    ".py": "the rewards",
    "README.md": "what to type, in order",
    "AGENTS.md": "the same for programs and agents",
    ".gitignore": "keeps runs/ out of git",
    "data/completions.jsonl": "answers to try the rewards on",
}
"""What a file is, by its beginning, its name or its ending; any other is the sample."""


def run(options: Options) -> int:
    """Write a project, print what to type in it and return the exit code."""
    if len(options.words) > 1:
        expected = "one word (a name with blanks in quotes), and --column before each column"
        raise options.error("rlhf init takes one folder", got=" ".join(options.words), expected=expected)
    folder = Path(options.words[0]).expanduser() if options.words else Path()
    project.refuse_file(folder)
    choices = project.beside(folder, _choices(options, folder))
    files = project.write_project(folder, project.project_files(choices, folder.resolve().name))
    rename = choices.rows.rename if choices.rows is not None else {}
    commands = [f"rlhf {verb} +exp={choices.name}" for verb in ("check", "train")]
    if folder.resolve() != Path.cwd().resolve():
        commands.insert(0, f"cd {shlex.quote(str(folder))}")
    if options.as_json:
        content = {"folder": str(folder.resolve()), "files": files, "trains": choices.training.name}
        content["model"] = choices.model.path or choices.model.group
        content["data"] = choices.rows.path if choices.rows is not None else project.SAMPLE
        print_json({**content, "rename": rename, "next": commands})
        return EXIT_OK
    console = Screen()
    console.print(Text.assemble("a project in ", (str(folder), "bold")))
    rows = list[tuple[str, str]]()
    for name in files:
        says = _SAYS.get(_TEST if name.startswith(_TEST) else name)
        rows.append((f"  {name}", says or _SAYS.get(Path(name).suffix, "a sample to start with")))
    console.print(facts_grid(rows, style="cyan"))
    for role, column in rename.items():
        console.print(Text(f"data.rename in the experiment reads the column {column!r} as {role}"))
    console.print("next:")
    for command in commands:
        console.print(Text(f"  {command}"), soft_wrap=True)
    if choices.model.is_tiny and choices.rows is not None and not choices.rows.is_sums:
        print("the tiny model learns sums only, not these rows; this writes an experiment for a real one:")
        print(f"  rlhf init {shlex.join(options.argv)} --model {project.SMOLLM2}")
    return EXIT_OK


def _choices(options: Options, folder: Path) -> project.ProjectChoices:
    model, data = options.text("--model"), options.text("--data") or project.SAMPLE
    typed: dict[str, str] = {}
    for word in options.texts("--column"):
        role, _, column = word.partition("=")
        if not (role and column):
            raise options.error("--column is ROLE=COLUMN", got=word, hint="--column prompt=Question")
        typed[role] = column
    training = training_named(options.text("--trains") or "grpo")
    starting, rows = project.read_starting_model(model or project.TINY), None
    if data != project.SAMPLE:
        rows = replace(read_own_rows(data, training, typed), path=project.path_from(folder, data))
    if starting.is_folder:
        starting = replace(starting, path=project.path_from(folder, str(model)))
    return project.ProjectChoices(training, starting, rows)
