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

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.json_output import print_json
from rlhf_cli.screen.score_tables import show_scores
from rlhf_cli.screen.scored_texts import show_parts
from rlhf_cli.usage import read_options


def run(argv: list[str]) -> int:
    """Score the completions of a file by an experiment's rewards and print them; returns the exit code.

    Raises ConfigError where no file is named.
    """
    options = read_options(__doc__, argv, verb="score")
    limit, shown = options.number("--limit"), options.number("--show", least=0)
    completions = options.path("--completions")
    if completions is None:
        raise ConfigError(
            "which completions?",
            where="command line",
            expected="--completions FILE, with the columns prompt and completion",
            hint="rlhf score +exp=NAME --completions runs/NAME/RUN",
        )
    experiment = prepare(options.words).experiment

    from rlhf_cli.evaluate.score_completions import read_completions, score  # torch comes with it

    rows = read_completions(completions, limit=limit)
    scores = score(experiment, rows)
    if options.as_json:
        print_json(scores.as_json())
    else:
        console = Console()
        show_parts(console, rows[: shown or 0], scores)
        show_scores(console, rows, scores)
    return EXIT_OK
