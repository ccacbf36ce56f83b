"""rlhf train +exp=NAME [overrides]     compose, check, freeze, run
rlhf train -m +exp=NAME a.b=1,2 'seed=range(0,5)'    sweep: one run for every combination, then a table

An override is key=value (rewards.correct.weight=2, trainer.args.learning_rate=1e-5, seed=7), a group choice
(trainer=rloo, data=gsm8k, track=none) or ~key to remove something. `rlhf list` shows the groups, `rlhf show` with the
same words the resulting configuration, `rlhf check` the run. With launch=slurm the run, or the sweep as an array, is
submitted to Slurm; `rlhf status` shows its state.

  -m, --multirun   sweep: a,b,c, choice(), range(), glob() as in Hydra; all runs are checked before the first starts
  -j, --jobs N     with -m: number of runs at a time
  --watch METRIC   with -m: the metric of metrics.jsonl that the table shows (default: the total reward)
  --dry-run        show what would be started, process by process, and start nothing
  --allow KEY ...  with run.resume=auto: accept that this key, or `data`, `code`, `config`, has changed
  --take-over      with run.resume=auto: continue a run that another machine left without a final status
  --json           print the result as one object, at the end; other output goes to stderr
"""

from __future__ import annotations

from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.jobs.usage import read_options, refuse_of_sweeps, resume_options
from rlhf_cli.launch.freeze import existing_run
from rlhf_cli.launch.one_run import run_once
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_status import run_result


def run(argv: list[str]) -> int:
    """Train one experiment, submit it to Slurm, show its plan, or run every combination of a sweep."""
    options = read_options(__doc__, argv, verb="train")
    if options.on("-m"):
        from rlhf_cli.sweeps import sweep
        from rlhf_cli.sweeps.sweep_options import sweep_options

        end = sweep.run(sweep_options(options), options.words)
        if options.as_json:
            from rlhf_cli.cli.output import print_json

            print_json(end.as_json())
        return end.code
    refuse_of_sweeps(options, "rlhf train -m ...")
    words, console, is_dry = options.words, Screen(), options.on("--dry-run")
    for word in words:
        if word.lstrip("+").startswith(("sweep=", "sweep.")) and word != "sweep=null":
            raise ConfigError(
                "a search is many runs and needs -m",
                where="command line",
                got=word,
                expected="-m, or no search",
                hint=f"rlhf train -m ... {word}",
            )
    prepared = prepare(words)
    folder = existing_run(prepared.experiment, prepared.composed)
    if folder is not None:
        from rlhf_cli.launch.resume_run import resume_once
        from rlhf_cli.launch.resuming import resumed

        how = resume_options(options)
        going_on = resumed(folder, prepared, how.allowed)
        prepared, plan = going_on.prepared, going_on.plan
        is_dry = is_dry and plan is not None
        if not is_dry:
            resume_once(console, going_on, take_over=how.take_over)
    else:
        plan = preflight(prepared.experiment, prepared.composed, is_shown=is_dry, tries_rewards=True)
    if is_dry:
        from rlhf_cli.launch.dry_run import planned_json, show_plan

        assert plan is not None
        show_plan(console, prepared, plan, earlier=folder)
        result = {"dry_run": True, **planned_json(prepared, plan, earlier=folder)}
    else:
        if folder is None:
            assert plan is not None
            if prepared.experiment.launch.slurm is not None:
                from rlhf_cli.launch.run_states import submit_once

                folder = submit_once(console, prepared, plan)
            else:
                folder = run_once(console, prepared, plan)
        result = {"dry_run": False, **run_result(folder)}
    if options.as_json:
        from rlhf_cli.cli.output import print_json

        print_json(result)
    return EXIT_OK
