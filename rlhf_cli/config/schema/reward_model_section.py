"""Defines the section `reward_model` for training one: margins between the answers, centred scores, pairs to look at.

Rules that need more than one section are in reward_model_rules.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_cli.config.schema.section import Section


class Margin(Section):
    """The distance by which the chosen answer is to be ahead (arXiv 2307.09288, equation 2).

    It comes from a `column` of the data, or is `scale` times the `transform` of how far the score in the column
    `chosen` is above that in `rejected`; what is not used is null. `on_bad` says what becomes of a pair whose margin is
    no number, or below 0.
    """

    column: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    scale: float = Field(default=1.0, gt=0)
    transform: Literal["identity", "log1p", "rank"] = "identity"
    on_bad: Literal["refuse", "drop"] = "refuse"

    @model_validator(mode="after")
    def _one_origin(self) -> Margin:
        scores = (self.chosen, self.rejected)
        if (self.column is None) == (scores == (None, None)) or (self.column is None and None in scores):
            raise ValueError("either `column`, or `chosen` and `rejected`: the columns of two scores")
        if self.column is not None and (self.scale != 1.0 or self.transform != "identity"):
            raise ValueError("`scale` and `transform` are for two scores; a `column` holds the margin itself")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the data that the margin is made of."""
        return tuple(name for name in (self.column, self.chosen, self.rejected) if name is not None)


class RewardModel(Section):
    """The settings for training a reward model that are not among TRL's arguments.

    `margin` is how far apart two answers are to be, null for no margin. `center` is the weight of the squared sum of a
    pair's scores (arXiv 2312.09244, equation 2), null or 0 for none. `on_bad_pair` says whether a pair with equal or
    empty answers ends the run or is dropped. `show_samples` pairs are scored and shown at every evaluation and at the
    end, -1 for all.
    """

    margin: Margin | None = None
    center: float | None = Field(default=None, ge=0)
    on_bad_pair: Literal["refuse", "drop"] = "refuse"
    show_samples: int = Field(default=4, ge=-1)
