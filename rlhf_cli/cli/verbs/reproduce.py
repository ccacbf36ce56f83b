"""rlhf reproduce RUN [key=value ...]   run it again in runs/reproduced, untracked, and compare to the last bit: every
metric except times, and the weights; or the first difference and its possible causes. RUN is not changed

key=value shows what a change affects first. Exit code 0 if the runs are equal, 1 if they differ.

  --steps N        only the first N steps, with the schedules of the whole run
  --against RUN    compare with this existing run, and train nothing
  --trust          run its code and ask its servers, even if another user made it
  --json           an object: `equal`, `first_difference`, `weights`, `causes`
"""

from __future__ import annotations

import shlex
from dataclasses import asdict

from rlhf_cli.analysis.verification import compare_again
from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.cli.run_arguments import one_named, run_at
from rlhf_cli.display.run_tables import show_reproduction
from rlhf_cli.display.terminal import wide_console
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK
from rlhf_cli.launch.freeze import refuse_foreign_code
from rlhf_cli.launch.one_run import reproduce


def run(options: Options) -> int:
    """Run a run again, print whether the result is the same, and return the exit code."""
    words, up_to, other = options.words, options.number("--steps"), options.text("--against")
    named = one_named(words, "rlhf reproduce", "a run folder or run:NAME")
    earlier = run_at(named, words, where="rlhf reproduce")
    if other is not None and words:
        hint = shlex.join(["rlhf", "reproduce", named, "--against", other])
        raise options.error("--against trains no run, so no key can be changed", got=" ".join(words), hint=hint)
    if other is None:
        refuse_foreign_code(earlier, trust=options.on("--trust"), command=f"rlhf reproduce {earlier.typed}")
        again, up_to = reproduce(wide_console(), earlier, words, up_to)
    else:
        again = run_at(other, [], where="rlhf reproduce --against")
    result = compare_again(earlier, again, up_to=up_to)
    print_result(options, lambda: asdict(result), lambda console: show_reproduction(console, result))
    return EXIT_OK if result.equal else EXIT_CRASH
