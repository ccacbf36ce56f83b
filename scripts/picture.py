"""Draw the last screen of `rlhf train` as an SVG, the picture of docs/index.md.

usage: picture.py RUN OUT.svg
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from rlhf_cli.display.run_tables import show_end
from rlhf_cli.runs.run_folder import open_run

run, out = sys.argv[1:]
console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True)
show_end(console, open_run(Path(run)))
svg = console.export_svg(title="rlhf train +exp=quickstart")
# rich links to a font on a server; use the reader's monospace font instead.
svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code,", "DejaVu Sans Mono, Menlo,")
Path(out).write_text(svg, encoding="utf-8")
