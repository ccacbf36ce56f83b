"""rlhf export RUN     write the model of a finished run to a folder to publish: whole weights (an adapter is merged
into its base), tokenizer and a card. transformers and vLLM load it as it is.

RUN is a run folder or run:NAME. Secrets and the paths of this machine are left out.

  --out FOLDER       write there; RUN/export without it. An existing folder is refused
  --checkpoint N     the weights of checkpoint-N, also of an unfinished run
  --trust            run the code that comes with the model, which the folder will then contain
  --json             {folder, kind, step, merged, files, weights_sha256, notes}
"""

from __future__ import annotations

import shlex
from dataclasses import asdict

from rich.text import Text

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import none_named, run_at
from rlhf_cli.display.terminal import Screen, wide_console
from rlhf_cli.errors import EXIT_OK, writing
from rlhf_cli.project.exported_folder import export_model, find_source
from rlhf_cli.runs.run_folder import as_typed
from rlhf_cli.runs.run_status import refuse_links, with_newest


def run(options: Options) -> int:
    """Write the model of a run, print its location and return the exit code."""
    if len(words := options.words) != 1:
        hint = with_newest("rlhf export", finished=True)
        raise none_named("rlhf export", "a run folder or run:NAME", got=" ".join(words), hint=hint)
    folder = run_at(words[0], [], where="rlhf export")
    refuse_links(folder.path)
    source = find_source(folder, step=options.number("--checkpoint", least=0), trust=options.on("--trust"))
    console = Screen(stderr=True) if options.as_json else wide_console()
    parts = filter(None, ["export", options.text("--checkpoint")])
    out = (options.path("--out") or folder.path / "-".join(parts)).absolute()
    with writing("the model", out, "--out FOLDER"):
        given = export_model(source, out, lambda message: console.print(f"[dim]{message}"))
    place = as_typed(given.folder)
    if options.as_json:
        print_json({**asdict(given), "folder": place})
        return EXIT_OK
    how = "adapter merged into its base" if given.merged else "weights as saved"
    console.print(Text.assemble((place, "bold"), f": the {given.kind} of step {given.step}, {how}"))
    console.print(Text(f"  {len(given.files)} files; README.md is its card: read it before you publish"))
    for note in given.notes:
        console.print(Text(f"  {note}", "yellow"))
    command = f"hf upload OWNER/NAME {shlex.quote(place)} --private"
    console.print(Text(f"  {command}  # publishes it with this card"), soft_wrap=True)
    return EXIT_OK
