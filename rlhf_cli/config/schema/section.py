"""What all sections of a configuration share, and the types of value that several of them use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator


class Section(BaseModel):
    """A part of the configuration. It refuses unknown keys and wrong types, and does not change after validation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, serialize_by_alias=True, defer_build=True)
    exactly_one: ClassVar[tuple[str, ...]] = ()
    """Exactly one of these keys must be given."""

    @model_validator(mode="after")
    def _has_exactly_one(self) -> Self:
        if self.exactly_one and sum(getattr(self, name) is not None for name in self.exactly_one) != 1:
            *most, last = (f"`{name}`" for name in self.exactly_one)
            raise ValueError(f"exactly one of {', '.join(most)} and {last}")
        return self


OFF = BeforeValidator(lambda value: "off" if value is False else value)
"""Accepts `off` without quotes, which YAML reads as false."""


def _in_order(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError("[low, high], the lower bound first")
    return bounds


Bounds = Annotated[tuple[float, float], Field(strict=False), AfterValidator(_in_order)]
"""[low, high]. YAML has no tuples, so a list is accepted."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


Entry = TypeVar("Entry", bound=Section)
_OneOrNamed: TypeAlias = Annotated[Entry, Tag("one")] | Annotated[dict[str, Entry], Tag("named")]
_Null: TypeAlias = Annotated[None, BeforeValidator(lambda _: None), Tag("none")]
OneOrNamed: TypeAlias = _OneOrNamed[Entry] | _Null
OneOrSeveral: TypeAlias = _OneOrNamed[Entry] | Annotated[list[Entry], Tag("list")] | _Null
"""What `one_or_several` tells apart."""


def one_or_several(keys: tuple[str, ...], shape: str, *, has_list: bool = True) -> Discriminator:
    """Return a discriminator of one section (`one`), a list (`list`), a mapping of several (`named`) and null (`none`).

    A mapping with any of `keys` is one section. `shape` describes a section in the message for any other value.
    """

    def kind_of(value: object) -> str | None:
        if value is None or value is False or value in ("off", [], {}):
            return "none"
        if isinstance(value, list):
            return "list" if has_list else None
        if isinstance(value, Mapping):
            is_one = any(key in value for key in keys)
            are_sections = all(isinstance(part, Mapping | Section) for part in value.values())
            return "one" if is_one or not are_sections else "named"
        return "one" if isinstance(value, Section) else None

    return Discriminator(
        kind_of,
        custom_error_type="wrong_shape",
        custom_error_message=f"{shape}, {'a list of these, ' * has_list}a mapping of names to these, or null",
    )


def entries_of(section: Entry | dict[str, Entry] | list[Entry] | None) -> dict[str, Entry]:
    """Return the entries by their keys below the section: '' for a single one, `0`, `1` in a list."""
    if section is None:
        return {}
    if isinstance(section, list):
        return {str(number): entry for number, entry in enumerate(section)}
    return section if isinstance(section, dict) else {"": section}
