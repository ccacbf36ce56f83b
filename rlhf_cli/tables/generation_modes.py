"""Name how a model may be asked to generate."""

from __future__ import annotations

from typing import Literal

GenerationSetting = Literal["auto", "plain"]
"""`auto`: without finished rows wherever they can leave a batch. `plain`: by transformers' own loop."""
