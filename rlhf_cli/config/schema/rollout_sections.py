"""The sections `tools`, `environment` and `rollout`: what a model may call, and who generates."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Tag

from rlhf_cli.config.schema.section import OFF, Seconds, Section, one_or_several


class CallLimits(Section):
    """The limits of a call that the model makes; the model reads the result, or the error, as text.

    `timeout_s` is the time of one call in seconds, `off` for no limit. `max_characters` is the length at which its
    result is cut. `on_error` is what happens if a call fails: `tell` the model, or `raise` and end the run.
    """

    timeout_s: Annotated[Seconds | Literal["off"], OFF] = 10.0
    max_characters: int = Field(default=2000, gt=10)
    on_error: Literal["tell", "raise"] = "tell"

    @property
    def seconds(self) -> float | None:
        """Return the time of one call, None for no limit."""
        return None if self.timeout_s == "off" else self.timeout_s


class Tool(CallLimits):
    """A function that the model may call in a conversation.

    `fn` is module:function or ./file.py:function. Its annotations and docstring are what the model is told about it.
    """

    fn: str


class Environment(CallLimits):
    """A class with a state for every rollout. Its `reset(**row)` begins one, and its public methods are tools.

    `class` is module:Class or ./file.py:Class, and `args` are the arguments of its constructor. A reward reads the
    state at the end: `rewards.NAME.environment` names one of its methods.
    """

    own_class: str = Field(alias="class")
    args: dict[str, object] = Field(default_factory=dict)


class Rollout(Section):
    """A function of the user's that generates, in place of the trainer.

    `fn` takes (prompts, trainer) and returns a dict with prompt_ids, completion_ids and logprobs (or None) by row. Its
    env_mask may be 0 for tokens that the model did not write. `columns` are the further lists that it returns, one
    entry a row; rewards read them by name.
    """

    fn: str
    columns: list[str] = Field(default_factory=list)


_KEYS = ("class", *(name for name in Environment.model_fields if name != "own_class"))
Environments: TypeAlias = Annotated[
    Annotated[Environment, Tag("one")]
    | Annotated[dict[str, Environment], Tag("named")]
    | Annotated[None, BeforeValidator(lambda _: None), Tag("none")],
    one_or_several(_KEYS, "{class: ./env.py:Maze, args: {...}}", has_list=False),
]
"""One class for all rows, or several by the name in the column `environment`."""
ENVIRONMENT_COLUMN = "environment"


def environment_key(name: str | None) -> str:
    """Return the key of an environment's section."""
    return "environment" if name is None else f"environment.{name}"
