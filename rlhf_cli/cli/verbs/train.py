"""rlhf train +exp=NAME [overrides]     compose, check, freeze, run
rlhf train -m +exp=NAME a.b=1,2 'seed=range(0,5)'    sweep: one run for every combination, then a table

An override is key=value (rewards.correct.weight=2, trainer.args.learning_rate=1e-5, seed=7), a group choice
(trainer=rloo, data=gsm8k, track=none) or ~key to leave something out. `rlhf list` shows the groups, `rlhf show`
with the same words shows the configuration they make, `rlhf check` what they would run. With launch=slurm the run, or
the sweep as an array, is left to Slurm: `rlhf status` says what becomes of it.

  -m, --multirun   sweep: a,b,c, choice(), range(), glob(), as Hydra has them; all is checked before the first run
  -j, --jobs N     with -m: so many runs at a time
  --watch METRIC   with -m: the metric that the table shows, of metrics.jsonl; the total reward if none is named
  -v, --verbose    with -m: the panels of every run, before and after it
  --dry-run        show what would be started, process by process, and start nothing
  --allow KEY ...  with run.resume=auto: go on although this key, or `data`, `code`, `config`, is another one now
  --take-over      with run.resume=auto: go on with a run that another machine left without a word
  --json           what came of it as one object, at the end; what is shown meanwhile goes to stderr
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.cli.output import print_json
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.jobs.one_run import planned_json, resume_once, run_once, show_plan
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.jobs.resuming import resume_options, resumed
from rlhf_cli.jobs.run_states import goes_to_slurm, submit_once
from rlhf_cli.jobs.usage import Options, read_options
from rlhf_cli.launch.freeze import existing_run
from rlhf_cli.launch.slurm_submission import check_slurm
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.runs.run_status import run_result
from rlhf_cli.sweeps.sweep_folder import refuse_of_sweeps, sweep_options

DRY_RUN = "--dry-run"


def run(argv: list[str]) -> int:
    """Train one experiment, or every combination of a sweep; returns the exit code."""
    options = read_options(__doc__, argv, verb="train")
    if options.on("-m"):
        from rlhf_cli.sweeps import sweep

        end = sweep.run(sweep_options(options), options.words)
        if options.as_json:
            print_json(end.as_json())
        return end.code
    refuse_of_sweeps(options, "rlhf train -m ...")
    result = _train(Screen(), options)
    if options.as_json:
        print_json(result)
    return EXIT_OK


def _train(console: Console, options: Options) -> dict[str, object]:
    """Train one experiment, leave it to Slurm or, with --dry-run, show what it would be; returns what came of it."""
    words, is_dry = options.words, options.on(DRY_RUN)
    how = resume_options(options)
    _refuse_search(words)
    prepared = prepare(words)
    earlier = existing_run(prepared.experiment, prepared.composed)
    if earlier is not None:
        going_on = resumed(earlier, prepared, how.allowed)
        if is_dry and going_on.plan is not None:
            show_plan(console, going_on.prepared, going_on.plan, earlier=earlier)
            return {"dry_run": True, **planned_json(going_on.prepared, going_on.plan, earlier=earlier)}
        resume_once(console, going_on, take_over=how.take_over)
        return {"dry_run": False, **run_result(earlier)}
    plan = preflight(prepared.experiment, prepared.composed)
    if is_dry:
        show_plan(console, prepared, plan)
        return {"dry_run": True, **planned_json(prepared, plan)}
    if goes_to_slurm(prepared.experiment.launch):
        check_slurm(prepared.experiment.launch, Path(prepared.experiment.run.root))
        return {"dry_run": False, **run_result(submit_once(console, prepared, plan))}
    return {"dry_run": False, **run_result(run_once(console, prepared, plan))}


def _refuse_search(words: list[str]) -> None:
    """Raise ConfigError where a search is asked for and `-m` was forgotten: one run that finds nothing is none."""
    asked = [word for word in words if word.lstrip("+").startswith(("sweep=", "sweep.")) and word != "sweep=null"]
    if asked:
        raise ConfigError(
            "a search is many runs, and this would be one",
            where="command line",
            got=asked[0],
            expected="-m, or no search",
            hint=f"rlhf train -m ... {asked[0]}",
        )
