"""Read the figures of a run's own evaluations, RUN/eval/NAME.json, written by `rlhf eval`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.runs.evaluations import POLICY
from rlhf_cli.runs.run_folder import RunFolder

Figures = Mapping[str, float]
"""Map a figure's name -> its mean: `greedy/correct`, `sampled/total`, `pass@4/correct`, `win rate`, `accuracy`."""


def read_figures(folder: RunFolder) -> dict[str, Figures]:
    """Return name of an evaluation -> its figures, newest first; ignore invalid files."""
    found: list[tuple[float, str, Figures]] = []
    for file in (folder.path / "eval").glob("*.json"):
        try:
            content = orjson.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and (figures := dict(_figures(content))):
            time = content.get("time")
            found.append((float(time) if isinstance(time, int | float) else 0.0, file.stem, figures))
    return {name: figures for _, name, figures in sorted(found, key=lambda one: (-one[0], one[1]))}


def _figures(content: JsonTree) -> Iterator[tuple[str, float]]:
    if content.get("kind") != POLICY:
        yield from _mean("accuracy", content.get("accuracy"))
        calibration = section(content, "calibration")
        yield from ((name, value) for name in ("log_loss", "ece") if isinstance(value := calibration.get(name), float))
        return
    for part, measured in section(content, "parts").items():
        if isinstance(measured, dict):
            yield from _mean(f"{part}/total", measured.get("total"))
            for name, reward in section(measured, "rewards").items():
                yield from _mean(f"{part}/{name}", reward.get("raw") if isinstance(reward, dict) else None)
            yield from _mean(f"{part}/truncated", measured.get("truncated"))
            yield from _mean(f"{part}/tokens", measured.get("tokens"))
    for name, attempts in section(content, "attempts").items():
        for kind, by_k in attempts.items() if isinstance(attempts, dict) else ():
            if isinstance(by_k, dict) and by_k:
                most = max(by_k, key=int)
                yield from _mean(f"{kind}@{most}/{name}", by_k[most])
    yield from _mean("win rate", section(content, "win_rate").get("greedy"))


def _mean(name: str, estimate: object) -> Iterator[tuple[str, float]]:
    mean = estimate.get("mean") if isinstance(estimate, dict) else None
    if isinstance(mean, int | float):
        yield name, float(mean)
