"""rlhf score +exp=NAME [overrides] --completions FILE
rlhf score RUN [overrides]         the rewards of an experiment, or of a run as it was frozen, on given completions, no
                                   policy: every component raw, effective and weighted, a row at a time, then a summary

--completions FILE   JSONL, JSON, CSV or Parquet with prompt, completion and the columns the rewards read; a run
                     folder or its completions/ stands for its last table, as RUN does without any. With one of
                     RUN/failures/ the reward that failed there is called again, alone and as in training: it fails in
                     the same way, until it is mended
--trust              run the reward files that RUN names, though somebody else made it
--limit N            only the first N rows are scored
--show N             print the first N rows as texts, coloured by what each part got
--json               print one object with `rows` and `summary` instead of the tables
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.jobs.foreign_code import refuse_foreign_code
from rlhf_cli.jobs.prepare import prepare, prepare_from
from rlhf_cli.jobs.replayed import passed_words, replay_words, replayed
from rlhf_cli.jobs.run_names import find_run, is_run_name
from rlhf_cli.runs.failure_capsules import read_capsule
from rlhf_cli.runs.run_folder import RunFolder, names_a_run, open_run
from rlhf_cli.screen.score_tables import show_scores
from rlhf_cli.screen.scored_texts import show_parts


def run(argv: list[str]) -> int:
    """Score the completions of a file by an experiment's rewards and print them; returns the exit code.

    Raises ConfigError where no file is named.
    """
    parser = argparse.ArgumentParser(prog="rlhf score", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--completions", type=Path)
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    try:
        options, overrides = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error), where="command line", hint="rlhf score --help") from None
    run = _run_named(overrides, trust=options.trust)
    file = options.completions or (run.path if run is not None else None)
    if file is None:
        raise ConfigError(
            "which completions?",
            where="command line",
            expected="--completions FILE, with the columns prompt and completion",
            hint="rlhf score +exp=NAME --completions runs/NAME/RUN",
        )
    experiment = (prepare(overrides) if run is None else prepare_from(run, overrides)).experiment
    capsule = read_capsule(file)
    if capsule is not None:
        experiment = replayed(experiment, capsule)

    from rlhf_cli.evaluate.score_completions import read_completions, score  # torch comes with it

    rows = read_completions(file, limit=options.limit)
    if capsule is not None:
        print(replay_words(capsule, len(rows)), file=sys.stderr)
    step, max_steps = (0, 1) if capsule is None else (capsule.step, capsule.max_steps)
    scores = score(experiment, rows, step=step, max_steps=max_steps)
    if options.json:
        print(json.dumps(scores.as_json(), indent=2))
    else:
        console = Console()
        show_parts(console, rows[: max(0, options.show)], scores)
        show_scores(console, rows, scores)
    if capsule is not None:
        print(passed_words(capsule), file=sys.stderr)
    return EXIT_OK


def _run_named(words: list[str], *, trust: bool) -> RunFolder | None:
    """Take the run out of the words and return it, None where an experiment is described instead.

    Raises RunError for a folder that is none, and for one whose code somebody else wrote.
    """
    named = next((word for word in words if names_a_run(word)), None)
    if named is None:
        return None
    words.remove(named)
    run = find_run(named, "runs", where="rlhf score") if is_run_name(named) else open_run(Path(named))
    refuse_foreign_code(run, trust=trust, command=f"rlhf score {run.shown}")
    return run
