"""rlhf sync RUN | SWEEP | FOLDER ...   send offline records of runs to wandb

Runs that were sent already, or are still training, are skipped. Needs a login: `wandb login`, or WANDB_API_KEY.

  --dry-run   print what would be sent and send nothing; needs no login
  --json      print a list of objects instead of lines
"""

from __future__ import annotations

import os

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import none_named, place_of
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import refuse_links
from rlhf_cli.runs.tracking.wandb_files import send, to_send

_STYLES = {"sent": "green", "to send": "cyan", "not sent": "red"}


def run(options: Options) -> int:
    """Send the records of the runs in the typed words to wandb; return the exit code, 1 if some could not be sent."""
    words = options.words
    if not words:
        raise none_named("rlhf sync", "runs, sweeps or folders of them", all_of_it=True)
    sendings = to_send([place_of(word, where="rlhf sync") for word in words])
    console = Screen()
    if not options.on("--dry-run"):
        for sending in sendings:
            refuse_links(sending.folder)  # an incomplete record is cut off, in the file that a link names
        count = sum(sending.state == "to send" for sending in sendings)
        with console.status(f"sending {count} to wandb ..."):
            sendings = send(sendings)
    if options.as_json:
        content = []
        for sending in sendings:
            about = {"run": RunFolder(sending.folder).shown, "state": sending.state, "why": sending.why}
            content.append({**about, "files": [os.path.relpath(file) for file in sending.files]})
        print_json(content)
    else:
        width = max(len(sending.state) for sending in sendings)
        for sending in sendings:
            style = _STYLES.get(sending.state, "dim")
            why = f"  [dim]{sending.why}[/]" if sending.why else ""
            run = RunFolder(sending.folder).shown
            console.print(f"[{style}]{sending.state:<{width}}[/]  {run}{why}", soft_wrap=True)
    return EXIT_CRASH if any(sending.state == "not sent" for sending in sendings) else EXIT_OK
