"""rlhf whatif RUN key=value ...     what other weights, gates, aggregate, normalisation or truncation policy would
                                  have made of the rollouts that a run stored: totals, order, advantages. No training

RUN is a run folder, or run:NAME. key=value changes the run's configuration: rewards.NAME.weight, gate, offset, clip,
normalize, on_error; aggregate, primary, truncation; trainer.args.scale_rewards, normalize_advantages,
reward_clip_range. Several words are one question; several values, rewards.NAME.weight=0,0.1,0.5, are a table of
questions. The first step is exact: any run of this seed begins with these rollouts (docs/whatif.md).

--recompute      compute, on the stored texts, scores that the run has not: rows that a gate turned away, a new reward,
                 a reward with other args. Plain functions only
--show N         so many of the completions that move most (default 3)
--trust          run the reward files and other code that the run names, though somebody else made it
--json           print one object instead of the tables
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from rlhf_cli.config.schema.reward_section import AGGREGATES
from rlhf_cli.errors import EXIT_OK, ConfigError, RunError
from rlhf_cli.hindsight.alternatives import alternatives
from rlhf_cli.hindsight.question import Question
from rlhf_cli.hindsight.stored_rounds import read_rounds
from rlhf_cli.jobs.asked_in_hindsight import ask
from rlhf_cli.jobs.foreign_code import refuse_foreign_code
from rlhf_cli.jobs.run_names import find_run, is_run_name
from rlhf_cli.runs.run_folder import RunFolder, names_a_run, open_run
from rlhf_cli.runs.run_status import read_status

_PIPE_WIDTH = 120


def run(argv: list[str]) -> int:
    """Answer one question, or several, of one run and print it; returns the exit code.

    Raises RunError where no run is named, and what `ask`, `read_rounds` and `what_if` raise.
    """
    options, words = _parse(argv)
    folder = _folder(words)
    questions = [ask(folder, one, recompute=options.recompute) for one in alternatives(words)]
    if options.recompute or any(_names_code(question) for question in questions):
        refuse_foreign_code(folder, trust=options.trust, command=f"rlhf whatif {folder.shown}")
    stored = read_rounds(folder)

    from rlhf_cli.hindsight.what_if import what_if  # torch comes with it
    from rlhf_cli.screen.hindsight_tables import show_alternatives, show_what_if

    max_steps = read_status(folder).max_steps
    shown = max(0, options.show)
    answers = [
        what_if(question, stored, max_steps, recompute=options.recompute, num_movers=shown) for question in questions
    ]
    if options.json:
        content = {"run": str(folder.path), "questions": [asdict(answer) for answer in answers]}
        print(json.dumps(content, indent=2, default=str))
        return EXIT_OK
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH)
    if len(answers) == 1:
        show_what_if(console, folder.shown, answers[0])
    else:
        show_alternatives(console, folder.shown, answers)
    return EXIT_OK


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="rlhf whatif", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--show", type=int, default=3)
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--json", action="store_true")
    try:
        options, words = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error), where="command line", hint="rlhf whatif --help") from None
    if unknown := [word for word in words if word.startswith("-")]:
        raise ConfigError("there is no such option", where="command line", got=unknown[0], hint="rlhf whatif --help")
    return options, words


def _folder(words: list[str]) -> RunFolder:
    """Take the run out of the words and return it."""
    named = [word for word in words if names_a_run(word)]
    if len(named) != 1:
        raise RunError(
            "which run?" if not named else "one run at a time",
            got=" ".join(named) or None,
            expected="a run folder, or run:NAME, and what would be different",
            hint="rlhf whatif runs/quickstart/RUN rewards.brevity.weight=0.3",
        )
    words.remove(named[0])
    if is_run_name(named[0]):
        return find_run(named[0], "runs", where="rlhf whatif")
    return open_run(Path(named[0]))


def _names_code(question: Question) -> bool:
    """Return whether the answer runs code that the configuration names: a function that aggregates."""
    return any(one.aggregate not in AGGREGATES for one in (question.old, question.new))
