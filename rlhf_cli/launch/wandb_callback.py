"""Mirrors a run in wandb as transformers does, without the secrets that its arguments hold."""

from __future__ import annotations

from transformers import TrainingArguments
from transformers.integrations import WandbCallback

from rlhf_cli.redaction import redacted_tree


class WandbWithoutSecrets(WandbCallback):
    """Takes the place of transformers' callback, which uploads every argument; tokens alone are left out there."""

    def setup(self, args: object, state: object, model: object, **named: object) -> None:
        """Set the run up with arguments that tell no secret."""
        super().setup(_Shown(args), state, model, **named)  # type: ignore[no-untyped-call]


class _Shown:
    """Arguments that answer as the given ones do, but give a dict without secrets."""

    def __init__(self, args: object) -> None:
        self._args = args

    def __getattr__(self, name: str) -> object:
        return getattr(self._args, name)

    def to_dict(self) -> dict[str, object]:
        """Return the arguments by name, as texts and numbers."""
        assert isinstance(self._args, TrainingArguments)
        return redacted_tree(self._args.to_dict())
