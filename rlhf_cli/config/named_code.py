"""Lists the code outside this package that a configuration runs: reward files, a trainer class, remote code."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.json_values import JsonTree, JsonValue, section

_SHIPPED = "rlhf_cli.rewards."


def code_of(config: JsonTree) -> list[str]:
    """Return the code that a configuration runs and that is not shipped: one line per key that names it."""
    named = [(f"rewards.{name}.fn", section(section(config, "rewards"), name).get("fn")) for name in _rewards(config)]
    named += [("trainer.class", section(config, "trainer").get("class"))]
    aggregate = config.get("aggregate")
    named += [("aggregate", aggregate)] if isinstance(aggregate, str) and ":" in aggregate else []
    code = [f"{key}: {value}" for key, value in named if value and not str(value).startswith(_SHIPPED)]
    return [*code, *_remote_code(config)]


def _rewards(config: JsonTree) -> list[str]:
    return list(section(config, "rewards"))


def _remote_code(node: JsonValue, key: str = "") -> Iterator[str]:
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        if name == "trust_remote_code" and value is True:
            yield f"{key}.{name}: the code that comes with {node.get('path') or node.get('model') or 'the model'}"
        yield from _remote_code(value, f"{key}.{name}" if key else name)
