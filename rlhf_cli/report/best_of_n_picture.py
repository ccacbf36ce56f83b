"""Plot the best-of-n curve as PNG: the score used for picking, and its effect on the other rewards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.report.evaluation_picture import BLUE, DPI, GREY
from rlhf_cli.sampling.best_of_n import BestOfN


def draw_best_of_n(best: BestOfN, title: str, file: Path) -> None:
    """Draw a curve with more than one point into a PNG file. No display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    picked, others = figure.subplots(1, 2)
    counts = [one.k for one in best.curve]
    low, high = _ends([one.score for one in best.curve])
    picked.plot(counts, [one.score.mean for one in best.curve], color=BLUE, marker="o", markersize=3)
    picked.fill_between(counts, low, high, color=BLUE, alpha=0.2, linewidth=0)
    picked.set_title(f"{best.by}: picked by it", fontsize=10)
    for name in best.curve[0].rewards:
        means = [float("nan") if (mean := one.rewards[name].mean) is None else mean for one in best.curve]
        others.plot(counts, means, marker="o", markersize=3, label=name)
    cut = [float("nan") if (mean := one.truncated.mean) is None else mean for one in best.curve]
    others.plot(counts, cut, color=GREY, linestyle="--", label="share cut off")
    others.set_title("the others at that pick", fontsize=10)
    others.legend(frameon=False, fontsize=8)
    ticks = sorted({2**power for power in range(counts[-1].bit_length())} | {counts[-1]})
    for axes in (picked, others):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.set(xlabel="best of k")
    picked.set(ylabel="mean over prompts, 95 % interval")
    figure.suptitle(f"{title} ({best.prompts} prompts)", fontsize=10)
    temporary = file.with_name(f".{file.name}")
    figure.savefig(temporary, dpi=DPI, format="png")
    temporary.replace(file)


def _ends(estimates: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """Return the lower and upper ends of the band. Use the mean if an interval has no ends."""
    means = [one.mean or 0.0 for one in estimates]
    low = [mean if one.low is None else one.low for mean, one in zip(means, estimates, strict=True)]
    high = [mean if one.high is None else one.high for mean, one in zip(means, estimates, strict=True)]
    return low, high
