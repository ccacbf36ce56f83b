"""rlhf train +exp=NAME [overrides]     compose, check, freeze, run
rlhf train -m +exp=NAME a.b=1,2,3       sweep: one run for every combination, then a table

An override is key=value (rewards.correct.weight=2, trainer.args.learning_rate=1e-5, seed=7), a group choice
(trainer=rloo, data=gsm8k, track=none) or ~key to leave something out. `rlhf list` shows the groups, `rlhf show`
with the same words shows the configuration they make, `rlhf check` what they would run.

  -m, --multirun   sweep over comma-separated values
  --allow KEY      with run.resume=auto: go on although this key, or `data`, `code`, `config`, is another one now
  --take-over      with run.resume=auto: go on with a run that another machine left without a word
"""

from __future__ import annotations

from rich.console import Console

from rlhf_cli.errors import EXIT_OK
from rlhf_cli.jobs.one_run import resume_once, run_once
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.jobs.resume_options import resume_options
from rlhf_cli.jobs.resuming import resumed
from rlhf_cli.launch.freeze import existing_run
from rlhf_cli.plan.preflight import preflight


def run(argv: list[str]) -> int:
    """Train one experiment, or every combination of a sweep; returns the exit code."""
    overrides = [word for word in argv if word not in ("-m", "--multirun")]
    if len(overrides) < len(argv):
        from rlhf_cli.jobs import sweep  # Hydra's own command line comes with it

        return sweep.run(overrides)
    console = Console()
    options, words = resume_options(overrides)
    prepared = prepare(words)
    earlier = existing_run(prepared.experiment, prepared.composed)
    if earlier is not None:
        resume_once(console, resumed(earlier, prepared, options.allowed), take_over=options.take_over)
        return EXIT_OK
    plan = preflight(prepared.experiment, prepared.composed)
    run_once(console, prepared, plan)
    return EXIT_OK
