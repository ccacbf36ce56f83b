"""rlhf score +exp=NAME [overrides] --completions FILE
                                   the rewards of an experiment on given completions, no policy: every component raw,
                                   effective and weighted, a row at a time, then a summary

--completions FILE   JSONL, JSON, CSV or Parquet with prompt, completion and the columns the rewards read; a run
                     folder or its completions/ stands for its last table
--limit N            only the first N rows are scored
--show N             print the first N rows as texts, coloured by what each part got
--json               print one object with `rows` and `summary` instead of the tables
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.screen.score_tables import show_scores
from rlhf_cli.screen.scored_texts import show_parts


def run(argv: list[str]) -> int:
    """Score the completions of a file by an experiment's rewards and print them; returns the exit code.

    Raises ConfigError where no file is named.
    """
    parser = argparse.ArgumentParser(prog="rlhf score", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--completions", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    try:
        options, overrides = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error), where="command line", hint="rlhf score --help") from None
    if options.completions is None:
        raise ConfigError(
            "which completions?",
            where="command line",
            expected="--completions FILE, with the columns prompt and completion",
            hint="rlhf score +exp=NAME --completions runs/NAME/RUN",
        )
    experiment = prepare(overrides).experiment

    from rlhf_cli.evaluate.score_completions import read_completions, score  # torch comes with it

    rows = read_completions(options.completions, limit=options.limit)
    scores = score(experiment, rows)
    if options.json:
        print(json.dumps(scores.as_json(), indent=2))
    else:
        console = Console()
        show_parts(console, rows[: max(0, options.show)], scores)
        show_scores(console, rows, scores)
    return EXIT_OK
