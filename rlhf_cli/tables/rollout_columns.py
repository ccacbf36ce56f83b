"""Names the columns of a completions table that identify a row's rollout and say how it ended.

With them and the raw scores, a round's rewards can be recomputed exactly (docs/whatif.md).
"""

from __future__ import annotations

ROUND = "rollout.round"
"""The training round in which the row was generated, counted from 0; empty for an evaluation row."""
STEP = "rollout.step"
"""The optimizer steps that the generating policy had taken; weight schedules are evaluated at this step."""
TRUNCATED = "rollout.truncated"
"""Whether it was truncated, as the truncation policy defines it."""
TOKENS = "rollout.tokens"
"""Its length in tokens, including the end-of-sequence token."""

ALL = (ROUND, STEP, TRUNCATED, TOKENS)
