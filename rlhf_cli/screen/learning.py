"""How a run without rewards went: its loss, and what TRL measures of pairs, answers and tokens beside it."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from rlhf_cli.runs.metrics import series, start_and_end

_MEASURES = {
    "loss": -1,
    "accuracy": 1,
    "margin": 1,
    "rewards/accuracies": 1,
    "rewards/margins": 1,
    "mean_token_accuracy": 1,
}
"""TRL's name -> whether more is better (1) or worse (-1), in the order of the table."""

_HELD_OUT = "eval_"


def learning(events: list[dict[str, Any]]) -> Table | None:
    """Start and end of each measure, of the training rows and of the held-out ones; None where there are none.

    Of the training rows it is the mean of the first and last tenth of the log events, of the held-out ones the first
    and the last value.
    """
    rows = []
    for prefix in ("", _HELD_OUT):
        for name, sign in _MEASURES.items():
            values = series(events, prefix + name)[1]
            if not values:
                continue
            span = (values[0], values[-1]) if prefix else start_and_end(values)
            assert span is not None
            rows.append((prefix, name, sign, *span))
    if not rows:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("measure", style="bold")
    for column in ("start", "end", "change"):
        table.add_column(column, justify="right")
    for prefix, name, sign, start, end in rows:
        change = (end - start) * sign
        colour = "green" if change > 0 else "red" if change < 0 else "dim"
        label = name.replace("rewards/", "").replace("_", " ") + (", held out" if prefix else "")
        table.add_row(label, f"{start:.3f}", f"{end:.3f}", f"[{colour}]{end - start:+.3f}")
    return table
