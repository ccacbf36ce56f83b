"""Export a comparison as JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict

from rlhf_cli.analysis.comparison.comparison import Comparison, total_in_words
from rlhf_cli.errors import RlhfError
from rlhf_cli.text.json_values import finite_or_none


def comparison_json(comparison: Comparison, problems: Sequence[RlhfError] = ()) -> dict[str, object]:
    """Return the whole comparison as JSON values; NaN becomes null."""
    grouped, front = comparison.grouped, comparison.front
    return {
        "window": str(comparison.asked.window),
        "differs": [
            {"key": one.key, "short": one.short, "keys": list(one.others), "values": list(dict.fromkeys(one.texts))}
            for one in [*grouped.axes, *grouped.seeds]
        ],
        "measures": [
            {
                "label": one.label,
                "metric": dict(one.weights) if one.weights is not None else one.metric,
                "kind": one.kind,
                "direction": one.direction,
            }
            for one in comparison.measures
        ],
        "settings": [
            {
                "name": setting.name,
                "values": dict(setting.values),
                "seeds": {seed: run.name for seed, run in setting.by_seed.items()},
                "estimates": {label: asdict(one) for label, one in comparison.estimates[setting.name].items()},
            }
            for setting in grouped.settings
        ],
        "runs": [
            {
                "name": run.name,
                "place": run.place,
                "state": run.state,
                "step": run.step,
                "max_steps": run.max_steps,
                "reason": run.reason,
                "trainer": run.trainer,
                "differs": {key: texts[place] for key, texts in grouped.keys.items()},
                "values": {label: finite_or_none(of[run.name]) for label, of in comparison.values.items()},
            }
            for place, run in enumerate(comparison.runs)
        ],
        "no_verdict": comparison.no_verdict,
        "verdicts": [
            {
                "measure": verdict.measure.label,
                "direction": verdict.measure.direction,
                "by": verdict.key,
                "baseline": verdict.baseline,
                "text": verdict.text,
                "winner": verdict.winner,
                "values": {value: asdict(one) for value, one in verdict.arms.items()},
                "differences": [
                    {**asdict(one), "degrees": max(0, len(one.seeds) - 1), "seeds_needed": one.seeds_needed}
                    for one in verdict.differences
                ],
            }
            for verdict in comparison.verdicts
        ],
        "front": None if front is None else {"by": front.by, "best": front.best, "dominated": dict(front.dominated)},
        "total": total_in_words(comparison),
        "notes": comparison.notes,
        "left_out": [str(problem) for problem in problems],
    }


def comparison_csv(comparison: Comparison) -> str:
    """Return one row per run: its name, setting and state, each key that differs, each measure."""
    grouped = comparison.grouped
    counted = {run.name: one.name for one in grouped.settings for run in one.runs}
    setting_of = counted | {name: one.name for one in grouped.settings for name in one.left_out}
    labels = [one.label for one in comparison.measures]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["run", "place", "setting", "counts", "state", "step", *grouped.keys, *labels])
    for place, run in enumerate(comparison.runs):
        counts = "true" if run.name in counted else "false"
        keys = [texts[place] for texts in grouped.keys.values()]
        numbers = [finite_or_none(comparison.values[label][run.name]) for label in labels]
        writer.writerow([run.name, run.place, setting_of[run.name], counts, run.state, run.step, *keys, *numbers])
    return stream.getvalue()
