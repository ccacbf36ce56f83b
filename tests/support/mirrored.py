"""How a test asks for the mirror of a run: `mirrored(folder)`, see tests/runs/tracking/conftest.py."""

from __future__ import annotations

from collections.abc import Callable

Mirrored = Callable[..., list[str]]
"""Mirrors what a run folder has logged in a tracker; returns what was said."""
