"""Names the modes of generation."""

from __future__ import annotations

from typing import Literal

GenerationSetting = Literal["auto", "plain"]
"""`auto`: drop finished rows from the batch where possible. `plain`: use transformers' own loop."""
