"""Lists the ways in which rows go through a model: the values of `trainer.passes`."""

from __future__ import annotations

from typing import Literal

PassMode = Literal["packed", "trimmed", "plain"]
"""`packed`: the tokens of a micro-batch in one flat row, each prompt once. `trimmed`: rows sorted by length, without
columns that are all padding. `plain`: as TRL does it."""

PassSetting = Literal["auto", "packed", "trimmed", "plain"]
"""`auto` is the first of them that a model can go."""
