"""rlhf join HOST:PORT     add this machine to a run on several machines

`rlhf train ... launch.nodes=2 launch.rdzv=HOST:PORT` on the first machine prints the line to type on the others, and
waits for them. They need the same Python environment, and the run's folder under the same path (a shared file system).
Stopping the run on any of them saves it and stops it on all.

  --trust          run its code, submit its jobs and ask its servers, although its maker is unknown here
  --json           print the result of the run as one object, at the end
"""

from __future__ import annotations

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.launch.resume_run import refuse_foreign_code
from rlhf_cli.plan.network import meeting_place
from rlhf_cli.runs.run_status import run_result


def run(options: Options) -> int:
    """Train on this machine what the first machine offers, and return its exit code."""
    words = options.words
    place = meeting_place(words[0]) if len(words) == 1 else None
    if place is None:
        raise ConfigError(
            "join needs the address of the first machine",
            got=" ".join(words) or "nothing",
            expected="HOST:PORT, as the first machine printed it",
            hint="rlhf join HOST:29500",
        )
    from rlhf_cli.launch.joining import find_run_to_join, join_run  # imports torch

    console = Screen()
    invitation = find_run_to_join(place, console)
    trust, typed = options.on("--trust"), "launch.rdzv"
    refuse_foreign_code(invitation.folder, trust=trust, command=f"rlhf join {place}", typed=typed)
    join_run(invitation, console)
    if options.as_json:
        print_json(run_result(invitation.folder))
    return EXIT_OK
