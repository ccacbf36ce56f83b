"""rlhf score +exp=NAME [overrides] --completions FILE
rlhf score RUN [overrides]         score given completions with the rewards of an experiment or of a run, without a
                                   policy: every component raw, effective and weighted for each row, distributions and
                                   correlations

--completions FILE   JSONL, JSON, CSV or Parquet with prompt, completion and the columns the rewards read; a run
                     folder, run:NAME or its completions/ means its last table, as does RUN alone. A file of
                     RUN/failures/ calls the reward that failed there again, alone and as in training: it fails in the
                     same way until it is fixed
--label COLUMN       a column of true and false that marks good answers: how well each reward and the total agree
--trust              run the reward files that RUN names, even if another user made it
--limit N            score only the first N rows
--show N             print the first N rows as texts, coloured by the reward of each part
--json               print one object: rows with prompt and completion, summary, distributions, correlations ...
"""

from __future__ import annotations

import sys

from rlhf_cli.cli.output import print_json
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.display.score_tables import show_bench, show_parts
from rlhf_cli.display.terminal import wide_console
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.jobs.one_run import refuse_foreign_code
from rlhf_cli.jobs.prepare import fill_in_policy_and_data, prepare, prepare_from, replay_words, replayed
from rlhf_cli.jobs.run_arguments import place_of, take_run
from rlhf_cli.jobs.usage import read_options
from rlhf_cli.runs.failure_capsules import Capsule, read_capsule, rows_of
from rlhf_cli.runs.run_folder import RunFolder


def run(argv: list[str]) -> int:
    """Score the completions of a file with an experiment's rewards, print them and return the exit code."""
    options = read_options(__doc__, argv, verb="score")
    limit, shown = options.number("--limit"), options.number("--show", least=0)
    run = take_run(options.words, where="rlhf score")
    named = options.text("--completions")
    completions = place_of(named, where="--completions") if named is not None else None if run is None else run.path
    if completions is None:
        raise ConfigError(
            "no completions were named",
            where="command line",
            expected="--completions FILE, with the columns prompt and completion, a run folder or run:NAME",
            hint=f"rlhf score {' '.join(options.words) or '+exp=NAME'} --completions FILE",
        )
    if run is not None:
        refuse_foreign_code(run, trust=options.on("--trust"), command=f"rlhf score {run.shown}")
    completions = rows_of(completions)
    capsule = read_capsule(completions)
    experiment = _experiment(run, options.words, capsule)
    if not experiment.rewards:
        raise ConfigError(
            "there is no reward to score by",
            where="rewards",
            got=f"trainer={experiment.trainer.name}, rewards is empty",
            expected="an experiment with rewards",
            hint="+reward@rewards.correct=exact_match, or rlhf list reward",
        )

    from rlhf_cli.evaluation.score_completions import EndOfRun, read_completions, score
    from rlhf_cli.measure.score_bench import score_bench

    rows = read_completions(completions, limit=limit)
    if capsule is not None:
        print(replay_words(capsule, len(rows)), file=sys.stderr)
    end = None if capsule is None else EndOfRun(capsule.step, capsule.max_steps)
    scores = score(experiment, rows, end=end)
    bench = score_bench(rows, scores, label=options.text("--label"))
    if options.as_json:
        print_json(bench.as_json(rows, scores))
    else:
        console = wide_console()
        show_parts(console, rows[: shown or 0], scores)
        show_bench(console, rows, scores, bench)
    if capsule is not None:
        print(f"rewards.{capsule.reward} does not fail on these rows any more", file=sys.stderr)
    return EXIT_OK


def _experiment(run: RunFolder | None, words: list[str], capsule: Capsule | None) -> Experiment:
    """Return the experiment that the words describe, on top of a run if given; for a failure, only its reward."""
    if run is None:
        experiment = prepare(words, adjust=fill_in_policy_and_data).experiment
    else:
        experiment = prepare_from(run, words, adjust=fill_in_policy_and_data).experiment
    return experiment if capsule is None else replayed(experiment, capsule)
