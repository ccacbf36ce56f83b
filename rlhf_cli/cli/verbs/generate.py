"""rlhf generate RUN [key=value ...]       n completions per prompt, scored by the run's rewards: the best of n's value,
rlhf generate MODEL +exp=NAME [...]     preference pairs, and the best answers as training data

RUN is a run folder or run:NAME. MODEL is a folder, a hub id or run:NAME, with the prompts and rewards of the
experiment. The prompts are those of the training rows, because the output is training data; for a baseline to compare
runs with, use the held-out prompts. trainer.args.temperature=0.7 and the like set how to sample, model.path=CHECKPOINT
takes another model.

-n N             completions per prompt (default 8)
--limit N        number of prompts, evenly spread over the rows (default 100)
--all            all prompts
--held-out       prompts that training does not see (data.eval)
--data FILE      the prompts of this file, with the columns that the rewards read
--by REWARD      pick by this reward instead of the total
--margin X       only pairs whose scores differ by at least X
--keep N         number of best answers to keep per prompt (default 1)
--at-least X     only answers with at least this score
--pass-rate F    a .jsonl of the rows with the share of their answers that pass --by (or primary), for data.keep
--out FOLDER     write there; else into RUN/generated, or generated/MODEL here
--overwrite      replace existing files
--batch-size N   completions sampled at once (default 32); another number draws other random numbers
--trust          run the code and ask the servers of RUN, even if another user made it
--json           print the content of best_of_n.json, and the paths of the files
"""

from __future__ import annotations

import contextlib
import math
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import one_named, run_at
from rlhf_cli.display.evaluation_tables import show_best_of_n, show_made
from rlhf_cli.display.terminal import Screen, spinner
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.evaluation import targets
from rlhf_cli.evaluation.best_of_n import BEST, PAIRS, TOTAL, GenerationRequest, generate, make_room, pass_rate_file
from rlhf_cli.evaluation.held_out_rows import prompts_of
from rlhf_cli.launch.freeze import refuse_foreign_code
from rlhf_cli.launch.interactive_answers import interaction
from rlhf_cli.plan.batches import count
from rlhf_cli.plan.prepare import Prepared, is_run_name, prepare, prepare_from
from rlhf_cli.plan.prompt_room import prompt_room
from rlhf_cli.runs.run_folder import as_typed
from rlhf_cli.runs.run_status import refuse_links

_SAMPLES, _LIMIT = 8, 100


def run(options: Options) -> int:
    """Sample, score, write and print the result; return the exit code."""
    options.refuse_both("--held-out", "--data")
    options.refuse_both("--all", "--limit")
    num_samples = options.number("-n") or _SAMPLES
    limit = None if options.on("--all") else options.number("--limit") or _LIMIT
    least_margin, at_least = _decimal(options, "--margin"), _decimal(options, "--at-least")
    batch_size, keep, by = options.number("--batch-size"), options.number("--keep") or 1, options.text("--by")
    target, prepared = _prepared(options)
    experiment = prepared.experiment
    targets.refuse_without_scores(list(experiment.rewards), by, target.label)
    temperature = experiment.trainer.args.get("temperature")
    if isinstance(temperature, int | float) and temperature <= 0:
        what, expected = "without a temperature, all completions of a prompt are equal", "a temperature above 0"
        where, hint = "trainer.args.temperature", "rlhf eval RUN"
        raise ConfigError(what, where=where, got=temperature, expected=expected, hint=hint)
    overwrite = options.on("--overwrite")
    pass_rate = pass_rate_file(experiment, options.path("--pass-rate"), by, overwrite=overwrite)
    target = replace(target, folder=options.path("--out") or target.folder)
    make_room(target.folder, overwrite=overwrite)

    with spinner("importing torch and TRL"):
        from rlhf_cli.evaluation.evaluation_run import load_policy

    screen = Screen(stderr=options.as_json)
    policy, data = load_policy(target.model, experiment), options.text("--data")
    room = prompt_room(experiment, policy.config, policy.tokenizer)
    rows, which = prompts_of(experiment, data=data, held_out=options.on("--held-out"), limit=limit, room=room)
    total = len(rows) * num_samples
    asked = f"{count(total, 'completion')} of {count(len(rows), 'prompt')}, {num_samples} each"
    screen.print(f"[bold]{target.label}[/] on {which}: {asked}")
    request = GenerationRequest(num_samples, by or TOTAL, least_margin or 0.0, keep, at_least, batch_size, pass_rate)
    batches = list[int]()
    with spinner("generating") as show:

        def on_batch(num: int) -> None:
            batches.append(num)
            show(f"{sum(batches)} of {total} completions")

        interact = interaction(experiment)
        generated = generate(
            target, experiment, rows, which, request, on_batch=on_batch, policy=policy, interact=interact
        )
    if options.as_json:
        print_json({**generated.content, "files": [as_typed(file) for file in generated.files]})
        return EXIT_OK
    show_best_of_n(screen, generated.best)
    show_made(screen, generated.made, _commands(target))
    screen.print()
    for file in generated.files:
        screen.print(as_typed(file), soft_wrap=True)
    return EXIT_OK


def _prepared(options: Options) -> tuple[targets.Target, Prepared]:
    words, data = options.words, options.text("--data")
    expected = "a run folder or run:NAME; or a model, and the experiment whose rewards score it"
    named = one_named(words, "rlhf generate", expected, finished=True)
    is_run = is_run_name(named) or (Path(named) / "config.yaml").is_file()
    run = run_at(named, words, where="rlhf generate") if is_run else None
    if any(word.lstrip("+").startswith("exp=") for word in words):
        target = targets.model_to_sample(named, run)
        return target, prepare(words, adjust=partial(targets.set_rows, target, data))
    target = targets.run_to_sample(run.path if run is not None else Path(named))
    assert target.run is not None
    refuse_foreign_code(target.run, trust=options.on("--trust"), command=f"rlhf generate {target.run.typed}")
    refuse_links(target.run.path)
    prepared = prepare_from(target.run, words, adjust=partial(targets.set_rows, target, data))
    return targets.with_typed_model(target, prepared), prepared


def _decimal(options: Options, name: str) -> float | None:
    """Return the value of a flag as a number, None without the flag. Raise ConfigError if it is not a number."""
    text = options.text(name)
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise options.error(f"{name} is a number", got=f"{name} {text}", expected=f"{name} 0.5")


def _commands(target: targets.Target) -> dict[str, str]:
    """Return a command for each file of training data, which starts from the sampled model."""
    commands = {}
    for name, trainer in ((PAIRS, "dpo"), (BEST, "sft")):
        words = [f"trainer={trainer}", "model=local", f"model.path={as_typed(target.model)}", "data=file"]
        commands[name] = shlex.join(["rlhf", "train", *words, f"data.path={as_typed(target.folder / name)}"])
    return commands
