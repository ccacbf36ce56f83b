"""Print metric names and their meanings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rlhf_cli.reference.metric_reference import MetricReference
from rlhf_cli.screen.option_lists import show_pairs


def show_metrics(console: Console, metrics: Sequence[MetricReference]) -> None:
    """Print metrics under their group headings. Metrics with the same meaning share one entry."""
    for number, (group, members) in enumerate(itertools.groupby(metrics, key=lambda one: one.group)):
        if number:
            console.print()
        console.print(Text(group, style="bold"))
        for (text, _), same in itertools.groupby(members, key=lambda one: (one.text, tuple(one.more.items()))):
            metrics_of_row = list(same)
            names = ", ".join(one.name for one in metrics_of_row)
            console.print(Text(f"  {names}", style="cyan"), soft_wrap=not console.is_terminal)
            more = [("    ", f"{head}: {said}") for head, said in metrics_of_row[0].more.items()]
            show_pairs(console, [*([("    ", text)] if text else []), *more])
