"""The pictures of an evaluation, as PNG. matplotlib comes with the extra `plot`; without it there is no picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from rlhf_cli.runs.evaluations import REWARD_MODEL

MISSING = "no picture: matplotlib is not installed (pip install 'rlhf-cli[plot]')"
BLUE, ORANGE, GREEN, GREY = "#3b6ea5", "#d98032", "#4a8f5a", "#999999"
DPI = 120

Content = dict[str, Any]


def can_draw() -> bool:
    """Whether matplotlib is here."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(content: Content, file: Path) -> None:
    """Write the picture of an evaluation's content. No display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    is_reward_model = content["kind"] == REWARD_MODEL
    figure = Figure(figsize=(13, 4) if is_reward_model else (7, 1.2 + 0.45 * _num_bars(content)), layout="constrained")
    FigureCanvasAgg(figure)
    if is_reward_model:
        calibration, histogram, length = figure.subplots(1, 3)
        _calibration(calibration, content["calibration"])
        _histogram(histogram, content["histogram"], content["rewards"]["mean"]["mean"])
        _length(length, content["length"])
    else:
        _components(figure.subplots(), content["parts"])
    figure.suptitle(f"{content['model']} on {content['data']} ({content['rows']} rows)", fontsize=10)
    figure.savefig(file, dpi=DPI)


def _calibration(axes: Any, calibration: Content) -> None:
    bins = [one for one in calibration["bins"] if one["accuracy"]["count"]]
    axes.plot([0.5, 1], [0.5, 1], color=GREY, linestyle="--", linewidth=1, label="calibrated")
    _errorbar(axes, [one["confidence"] for one in bins], [one["accuracy"] for one in bins], BLUE)
    axes.set(xlabel="confidence: sigmoid(|difference|)", ylabel="accuracy", xlim=(0.48, 1.02), ylim=(-0.02, 1.02))
    axes.set_title(f"calibration error {calibration['ece']:.3f}", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _histogram(axes: Any, histogram: Content, mean: float) -> None:
    for name, colour in (("rejected", ORANGE), ("chosen", BLUE)):
        one = histogram[name]
        width = (one["to"] - one["from"]) / len(one["counts"]) or 0.1
        places = [one["from"] + (index + 0.5) * width for index in range(len(one["counts"]))]
        axes.bar(places, one["counts"], width=width, color=colour, alpha=0.55, label=name)
    axes.axvline(mean, color="black", linewidth=1, label=f"mean {mean:.3f}")
    axes.set(xlabel="reward", ylabel="completions")
    axes.set_title("rewards", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper center")


def _length(axes: Any, length: Content) -> None:
    bins = length["bins"]
    axes.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    _errorbar(axes, list(range(len(bins))), bins, BLUE)
    axes.set_xticks(range(len(bins)), [f"{one['from']} to {one['to']}" for one in bins], rotation=20, fontsize=8)
    axes.set(xlabel="tokens, chosen minus rejected", ylabel="accuracy", ylim=(-0.02, 1.02))
    correlation = length["pearson"]
    axes.set_title("length bias" + (f", correlation {correlation:.2f}" if correlation is not None else ""), fontsize=10)


def _components(axes: Any, parts: Content) -> None:
    """Bars of the raw scores, one group a reward and the total above, a bar for each way of answering."""
    names = [*next(iter(parts.values()))["rewards"], "total"]
    height = 0.8 / len(parts)
    for number, (part, colour) in enumerate(zip(parts, (BLUE, ORANGE), strict=False)):
        found = [parts[part]["rewards"].get(name, {"raw": parts[part]["total"]})["raw"] for name in names]
        places = [index + (number - (len(parts) - 1) / 2) * height for index in range(len(names))]
        known = [(place, one) for place, one in zip(places, found, strict=True) if one["mean"] is not None]
        values, where = [one for _, one in known], [place for place, _ in known]
        means = [one["mean"] for one in values]
        axes.barh(where, means, height=height, color=colour, xerr=_whiskers(values), capsize=2, label=part)
    axes.set_yticks(range(len(names)), [f"{name} (raw)" if name != "total" else name for name in names])
    axes.invert_yaxis()
    axes.set(xlabel="mean, 95 % interval over prompts")
    axes.legend(frameon=False, fontsize=8)


def _errorbar(axes: Any, places: list[float], estimates: list[Content], colour: str) -> None:
    means = [one["mean"] for one in estimates]
    axes.errorbar(places, means, yerr=_whiskers(estimates), fmt="o-", color=colour, markersize=4, capsize=2)


def _whiskers(estimates: list[Content]) -> list[list[float]]:
    """Lengths below and above the mean; 0 where an interval has no end."""
    below = [one["mean"] - one["low"] if one["low"] is not None else 0.0 for one in estimates]
    above = [one["high"] - one["mean"] if one["high"] is not None else 0.0 for one in estimates]
    return [[max(0.0, value) for value in side] for side in (below, above)]


def _num_bars(content: Content) -> int:
    parts = content["parts"]
    return len(parts) * (1 + len(next(iter(parts.values()))["rewards"]))
