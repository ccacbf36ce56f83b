"""rlhf reproduce RUN [key=value ...]   run it again from its folder, in a new one, and compare: every metric except
times to the last bit, and the weights; or the first step and metric that differ, and recorded differences that may be
the cause: settings, data, reward code, starting model, versions, threads, processor. RUN is not changed

key=value shows what a change affects first. The new run is in runs/reproduced and is not tracked.

  --steps N        only the first N steps, with the schedules of the whole run
  --against RUN    compare with this existing run, and train nothing
  --trust          run its code, submit its jobs and ask its servers, even if another user made it
  --json           an object: `equal`, `first_difference`, `weights`, `causes`

Exit code 0 if the runs are equal, 1 if they differ.
"""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.analysis.reproducibility import compare_again
from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import one_named, run_at
from rlhf_cli.display.run_tables import show_reproduction
from rlhf_cli.display.terminal import wide_console
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, ConfigError
from rlhf_cli.launch.one_run import show_run_folder
from rlhf_cli.launch.reproducing import reproduction_of, run_again
from rlhf_cli.launch.resume_run import refuse_foreign_code
from rlhf_cli.runs.run_folder import open_run


def run(options: Options) -> int:
    """Run a run again, print whether the result is the same, and return the exit code."""
    words = options.words
    named = one_named(words, "rlhf reproduce", "a run folder or run:NAME")
    earlier, steps = run_at(named, words, where="rlhf reproduce"), options.number("--steps")
    other = options.text("--against")
    if other is not None and words:
        raise ConfigError(
            "--against trains no run, so no key can be changed",
            where="command line",
            got=" ".join(words),
            hint=f"rlhf reproduce {named} --against {other}",
        )
    if other is not None:
        both = compare_again(earlier, open_run(Path(other)), up_to=steps)
    else:
        trust = options.on("--trust")
        refuse_foreign_code(earlier, trust=trust, command=f"rlhf reproduce {earlier.shown}")
        again = reproduction_of(earlier, words, steps=steps)
        both = compare_again(earlier, run_again(wide_console(), again), up_to=again.up_to)
    if options.as_json:
        print_json(both.as_json())
    else:
        console = wide_console()
        show_reproduction(console, both)
        show_run_folder(console, both.after)
    return EXIT_OK if both.is_equal else EXIT_CRASH
