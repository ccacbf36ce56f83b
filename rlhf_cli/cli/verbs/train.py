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

import shlex

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK
from rlhf_cli.launch.freeze import existing_run
from rlhf_cli.launch.group import Leader
from rlhf_cli.launch.one_run import planned_json, run_once, show_plan
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_status import run_result


def run(options: Options, leader: Leader | None = None) -> int:
    """Train one experiment, submit it to Slurm, show its plan, or run every combination of a sweep."""
    if options.on("-m"):
        if leader is not None:
            leader.refuse_sweep("rlhf train -m ...")
        if ignored := [name for name in ("--allow", "--take-over") if options.on(name)]:
            what = f"{ignored[0]} is for a run that is resumed, and this sweep is new"
            raise options.error(what, got=" ".join(ignored), hint="rlhf resume --help")
        from rlhf_cli.sweeps import sweep

        end = sweep.run(options.sweep_options(), options.words)
        if options.as_json:
            print_json(end.as_json())
        return end.code
    options.refuse_sweep_flags("rlhf train -m ...")
    for word in options.words:
        if word.lstrip("+").startswith(("sweep=", "sweep.")):
            what, hint = "a search is many runs and needs -m", f"rlhf train -m ... {shlex.quote(word)}"
            raise options.error(what, got=word, expected="-m, or no search", hint=hint)
    prepared = prepare([*options.words, *(leader.size_words(options.words) if leader is not None else ())])
    earlier, is_dry, console = existing_run(prepared.experiment, prepared.composed), options.on("--dry-run"), Screen()
    plan: Plan | None
    if earlier is None:
        plan = preflight(prepared.experiment, prepared.composed, is_shown=is_dry, tries_rewards=True)
    else:
        from rlhf_cli.launch.resuming import resume_once, resumed

        run = resumed(earlier, prepared, options.resume_options().allowed)
        prepared, plan = run.prepared, run.plan
    if is_dry and plan is not None:
        show_plan(console, prepared, plan, earlier=earlier)
        result = {"dry_run": True, **planned_json(prepared, plan, earlier=earlier)}
    elif earlier is not None:
        resume_once(console, run, take_over=options.on("--take-over"), leader=leader)
        result = {"dry_run": False, **run_result(earlier)}
    else:
        assert plan is not None
        if prepared.experiment.launch.slurm is not None:
            from rlhf_cli.launch.slurm import submit_once

            folder = submit_once(console, prepared, plan)
        else:
            folder = run_once(console, prepared, plan, leader)
        result = {"dry_run": False, **run_result(folder)}
    if options.as_json:
        print_json(result)
    return EXIT_OK
