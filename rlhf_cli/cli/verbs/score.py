"""rlhf score +exp=NAME [overrides] --completions FILE
rlhf score RUN [overrides]         score given completions with the rewards of an experiment or of a run, without a
                                   policy: every component raw, effective and weighted for each row, distributions and
                                   correlations

--completions FILE   JSONL, JSON, CSV or Parquet with prompt, completion and the columns the rewards read; a run
                     folder, run:NAME or its completions/ means its last table, as does RUN alone. RUN/failures/
                     holds the batches on which a reward failed in training.
                     data.rename.completion=COLUMN reads another column, data.prompt='{COLUMN}' makes the prompt
--label COLUMN       a column of true and false that marks good answers, for its rank correlation with each reward
--trust              run the code and ask the servers of RUN, even if another user made it
--limit N            score only the first N rows
--show N             print the first N rows as texts, coloured by the reward of each part
--json               print one object: rows with prompt and completion, summary, distributions, correlations ...
"""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.cli.run_arguments import run_at
from rlhf_cli.display.evaluation_tables import show_bench, show_parts
from rlhf_cli.display.terminal import spinner
from rlhf_cli.errors import ConfigError
from rlhf_cli.launch.freeze import refuse_foreign_code
from rlhf_cli.plan.batches import count
from rlhf_cli.plan.prepare import fill_in_policy_and_data, is_run_name, prepare, prepare_from
from rlhf_cli.runs.run_folder import names_a_run


def run(options: Options) -> int:
    """Score the completions of a file with an experiment's rewards, print them and return the exit code."""
    limit, shown = options.number("--limit"), options.number("--show", least=0)
    run = None
    if (word := next(filter(names_a_run, options.words), None)) is not None:
        options.words.remove(word)
        run = run_at(word, options.words, where="rlhf score")
    named = options.text("--completions")
    completions = None if run is None else run.path
    if named is not None:
        where = "rlhf score --completions"
        completions = run_at(named, options.words, where=where).path if is_run_name(named) else Path(named).expanduser()
    if completions is None:
        expected = "--completions FILE, with the columns prompt and completion, a run folder or run:NAME"
        hint = f"rlhf score {shlex.join(options.words) or '+exp=NAME'} --completions FILE"
        raise ConfigError("no completions were named", where="command line", expected=expected, hint=hint)
    if run is not None:
        refuse_foreign_code(run, trust=options.on("--trust"), command=f"rlhf score {run.typed}")
        experiment = prepare_from(run, options.words, adjust=fill_in_policy_and_data).experiment
    else:
        experiment = prepare(options.words, adjust=fill_in_policy_and_data).experiment
    if not experiment.rewards:
        what, got = "there is no reward to score by", f"trainer={experiment.trainer.name}, rewards is empty"
        hint = "+reward@rewards.correct=exact_match, or rlhf list reward"
        raise ConfigError(what, where="rewards", got=got, expected="an experiment with rewards", hint=hint)

    from rlhf_cli.evaluation.score_bench import score_bench
    from rlhf_cli.evaluation.score_completions import read_completions, score_each

    rows = read_completions(completions, limit=limit, experiment=experiment, label=options.text("--label"))
    with spinner(f"scoring {count(len(rows), 'row')}"):
        (scores,) = score_each(experiment, [rows])
    bench = score_bench(rows, scores, label=options.text("--label"))

    def show(console: Console) -> None:
        show_parts(console, rows[: shown or 0], scores)
        show_bench(console, rows, scores, bench)

    return print_result(options, lambda: bench.as_json(rows, scores), show)
