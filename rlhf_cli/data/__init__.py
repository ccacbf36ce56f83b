"""Room of the data: where rows come from, whether they are sound, what the trainer sees of them.

Everything here but `load` works without torch, transformers and datasets, so that `rlhf check` can ask it.
"""

from __future__ import annotations

from rlhf_cli.data.columns import column_names_after
from rlhf_cli.data.peeking import Preview, peek
from rlhf_cli.data.rows import check_rows, hold_out
from rlhf_cli.data.source import Source
from rlhf_cli.data.template import render, template_columns

__all__ = [
    "Preview",
    "Source",
    "check_rows",
    "column_names_after",
    "hold_out",
    "peek",
    "render",
    "template_columns",
]
