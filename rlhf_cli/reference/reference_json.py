"""Convert reference descriptions to JSON: the values shown on screen, under stable names."""

from __future__ import annotations

from collections.abc import Iterable

from rlhf_cli.json_values import JsonTree, JsonValue
from rlhf_cli.reference.function_source import NO_DEFAULT
from rlhf_cli.reference.key_reference import KeyReference
from rlhf_cli.reference.reward_reference import RewardReference
from rlhf_cli.reference.trainer_reference import TrainerArgument, TrainerReference
from rlhf_cli.reference.worked_examples import ExampleRow


def reward_json(reward: RewardReference) -> JsonTree:
    """Return a reward; an argument without `default` is required."""
    source, example = reward.source, reward.example
    return {
        "name": reward.option,
        "fn": reward.fn,
        "caption": reward.caption,
        "summary": source.docstring.summary,
        "text": reward.text,
        "arguments": [
            {
                "name": one.name,
                "type": one.type,
                **_default(one.default),
                "choices": list(one.choices),
                "text": one.text,
                "shipped": _plain(one.shipped),
            }
            for one in reward.arguments
        ],
        "columns": [{"name": one.name, "required": one.is_required, "text": one.text} for one in reward.columns],
        "example": None
        if example is None
        else {"prompt": example.prompt, "args": dict(example.args), "rows": [_row(row) for row in example.rows]},
        "yaml": reward.yaml,
        "override": reward.on_command_line,
        "conf_file": str(reward.conf_file) if reward.conf_file else None,
        "file": str(source.file),
        "line": source.line,
    }


def trainer_json(trainer: TrainerReference, arguments: Iterable[TrainerArgument]) -> JsonTree:
    """Return a trainer with the given arguments."""
    return {
        "name": trainer.option,
        "caption": trainer.caption,
        "trl": trainer.trl,
        "has_critic": trainer.has_critic,
        "conf_file": str(trainer.conf_file),
        "arguments": [
            {
                "name": one.name,
                "key": None if one.home else one.key,
                "set_by": one.home,
                "type": one.type,
                "default": _plain(one.default),
                "choices": list(one.choices),
                "text": one.text,
                "config_class": one.config_class,
                **({} if one.origin is None else {"here": one.ours, "origin": str(one.origin)}),
            }
            for one in arguments
        ],
    }


def key_json(key: KeyReference) -> JsonTree:
    """Return a key of the configuration; one without `default` is required."""
    return {
        "key": key.key,
        "type": key.type,
        **_default(key.default),
        "values": list(key.values),
        "text": key.text,
        "holds": list(key.holds),
    }


def _row(row: ExampleRow) -> JsonTree:
    return {
        "completion": row.completion,
        "columns": dict(row.columns),
        **({} if row.reply is None else {"reply": row.reply}),
        **({} if row.num_tokens is None else {"num_tokens": row.num_tokens}),
        "score": _plain(row.score),
    }


def _default(value: object) -> JsonTree:
    return {} if value is NO_DEFAULT else {"default": _plain(value)}


def _plain(value: object) -> JsonValue:
    """Return a value as JSON, or as text if JSON does not have its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return str(value)
