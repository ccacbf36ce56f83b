"""Draw the rewards of an experiment as a tree: a gated reward is below the one that gates it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from rlhf_cli.config.schema.reward_section import Gate, Reward
from rlhf_cli.redaction import redacted


def reward_tree(rewards: Mapping[str, Reward], scored_by: Mapping[str, str]) -> Table:
    """Return a table with one line per reward: its name, weight, gates and scorer.

    A reward with several gates is drawn below the first one; all gates are listed.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("reward", style="bold", no_wrap=True)
    table.add_column("weight", justify="right", no_wrap=True)
    is_gated = any(reward.gates for reward in rewards.values())
    if is_gated:
        table.add_column("only where")
    table.add_column("scored by", overflow="fold")
    for name, branch in _lines(rewards):
        reward = rewards[name]
        args = ", ".join(f"{key}={redacted(str(value))}" for key, value in reward.args.items())
        gates = [Text(", ".join(_gate(gate) for gate in reward.gates))] if is_gated else []
        scored = Text(scored_by[name] + (f" ({args})" if args else ""))
        table.add_row(Text.assemble((branch, "dim"), name), _weight(reward), *gates, scored)
    return table


def _lines(rewards: Mapping[str, Reward]) -> Iterator[tuple[str, str]]:
    """Yield (name, branch) once per reward, each below the one that gates it."""
    below: dict[str | None, list[str]] = {}
    for name, reward in rewards.items():
        by = reward.gates[0].by if reward.gates else None
        below.setdefault(by if by in rewards else None, []).append(name)
    seen: set[str] = set()

    def walk(name: str, branch: str, rest: str) -> Iterator[tuple[str, str]]:
        if name in seen:
            return
        seen.add(name)
        yield name, branch
        gated = below.get(name, [])
        for number, child in enumerate(gated):
            is_last = number == len(gated) - 1
            yield from walk(child, rest + ("└ " if is_last else "├ "), rest + ("  " if is_last else "│ "))

    for name in [*below.get(None, []), *rewards]:
        yield from walk(name, "", "")


def _weight(reward: Reward) -> str:
    weight = reward.weight
    return f"{weight:g}" if isinstance(weight, float) else f"{weight.start:g} to {weight.end:g}"


def _gate(gate: Gate) -> str:
    if gate.between is not None:
        return f"{gate.between[0]:g} <= {gate.by} <= {gate.between[1]:g}"
    tests = ((">=", gate.at_least), ("<=", gate.at_most), ("=", gate.equals))
    return "".join(f"{gate.by} {sign} {value:g}" for sign, value in tests if value is not None)
