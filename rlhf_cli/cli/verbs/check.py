"""rlhf check +exp=NAME [overrides]     everything that can be checked before a run: keys, types, values, data files,
columns, reward functions, model folder, batch arithmetic, disk space for checkpoints; with run.resume=auto, whether the
existing run could continue. Imports no torch and writes nothing.

--allow KEY ...   with run.resume=auto: accept that this key, or `data`, `code`, `config`, has changed
--take-over       with run.resume=auto: accept a run that another machine left
--rows N          show the first N prompts as the model will see them, with special tokens, the lengths of all prompts
                  in tokens, and every reward on the right answer, an empty answer and the prompt itself
--json            print the plan as one object
"""

from __future__ import annotations

from dataclasses import asdict

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.display.terminal import Screen, spinner
from rlhf_cli.errors import EXIT_OK
from rlhf_cli.plan.prepare import prepare


def run(options: Options) -> int:
    """Check an experiment, print the plan of its run and return the exit code."""
    prepared = prepare(options.words)

    from rlhf_cli.display.start_panel import describe_launch, show_start
    from rlhf_cli.launch.freeze import existing_run, experiment_name, new_folder
    from rlhf_cli.launch.one_run import first_rows, planned_json
    from rlhf_cli.launch.resuming import resumed
    from rlhf_cli.plan.launch_plan import plan_launch
    from rlhf_cli.plan.preflight import preflight
    from rlhf_cli.runs.writer_lock import previous_writer

    experiment, composed = prepared.experiment, prepared.composed
    plan = preflight(experiment, composed, tries_rewards=True)
    if (earlier := existing_run(experiment, composed)) is not None:
        how = options.resume_options()
        if resumed(earlier, prepared, how.allowed).plan is not None:
            previous_writer(earlier, take_over=how.take_over)
    tried = None
    if (count := options.number("--rows")) is not None:
        with spinner("importing transformers and trying the rewards"):
            tried = first_rows(experiment, count)
    if options.as_json:
        rows = asdict(tried) if tried is not None else None
        print_json({"ok": True, **planned_json(prepared, plan, earlier=earlier), "rows": rows})
        return EXIT_OK
    console = Screen()
    if tried is not None:
        from rlhf_cli.display.audit_table import show_tried_rows

        show_tried_rows(console, tried)
    launch = plan_launch(experiment, new_folder(experiment, composed, is_dry=True), accelerate_env=plan.accelerate_env)
    show_start(console, experiment, plan, title=experiment_name(composed), folder=None, is_whole=True)
    console.print(f"launch: {describe_launch(launch)}; `rlhf train --dry-run` shows the commands")
    console.print("[green]ok[/], nothing was written")
    return EXIT_OK
