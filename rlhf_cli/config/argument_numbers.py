"""Reads numeric trainer arguments: the experiment's value, or TRL's default."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_cli.config.trl_args import TrainerFields, setting
from rlhf_cli.errors import ConfigError


def whole_number(trainer: TrainerFields, args: Mapping[str, object], name: str) -> int:
    """Return an argument that is an integer. Raise ConfigError if it is not an integer, or unset."""
    value = whole_number_or_none(trainer, args, name)
    if value is None:
        raise _wrong_value(name, value, "a whole number")
    return value


def whole_number_or_none(trainer: TrainerFields, args: Mapping[str, object], name: str) -> int | None:
    """Return an argument that is an integer, or None if it is unset. Raise ConfigError for other types."""
    value = setting(trainer, args, name)
    if value is None or isinstance(value, int):
        return value
    raise _wrong_value(name, value, "a whole number or null")


def real_number(trainer: TrainerFields, args: Mapping[str, object], name: str) -> float:
    """Return an argument that is a number. Raise ConfigError if it is not a number, or unset."""
    value = setting(trainer, args, name)
    if isinstance(value, int | float):
        return float(value)
    raise _wrong_value(name, value, "a number")


def _wrong_value(name: str, value: object, expected: str) -> ConfigError:
    key = f"trainer.args.{name}"
    return ConfigError(f"wrong value for {key}", where=key, got=repr(value), expected=expected)
