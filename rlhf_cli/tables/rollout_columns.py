"""Name the columns of a completions table that say of which rollout a row is, and how it ended.

With them, and the raw scores beside them, a round can be settled again exactly (docs/whatif.md).
"""

from __future__ import annotations

ROUND = "rollout.round"
"""Which round of training the row was generated in, counted from 0; nothing for a row of an evaluation."""
STEP = "rollout.step"
"""How many optimizer steps the policy that wrote it had taken; schedules of weights stand there."""
TRUNCATED = "rollout.truncated"
"""Whether it was cut off, as the truncation policy sees it."""
TOKENS = "rollout.tokens"
"""Its length in tokens, the end-of-sequence token among them."""

ALL = (ROUND, STEP, TRUNCATED, TOKENS)
