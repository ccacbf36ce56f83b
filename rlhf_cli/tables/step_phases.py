"""Lists the phases into which training time is divided: one row each, in the order of a step.

The time of a phase excludes phases nested in it. So the shares of all rows, with those of each reward and `rest`, add
up to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

SHARE, OF_REWARD = "time/share/", "time/share/reward/"
"""Prefixes of the metrics for shares; a reward's metric ends in its name."""
ELAPSED = "time/elapsed_s"
"""The seconds that the shares of a log event refer to."""
SLOTS, TOKENS, SLOTS_PER_TOKEN = "passes/slots", "passes/tokens", "passes/slots_per_token"

WAITING, REST, EVALUATION = "waiting", "rest", "evaluation"


Where: TypeAlias = Literal["all", "rollouts", "critic", "ranks"]


@dataclass(frozen=True)
class PhaseRow:
    """A phase: the end of its metric's name, its label in a table, and what happens in it.

    `where` it is logged: by all trainers, by those that generate, by those with a critic, or with several ranks.
    """

    key: str
    label: str
    meaning: str
    where: Where = "all"


_ROWS = (
    PhaseRow("data", "data", "rows read, collated and moved; a generation batch shuffled and split"),
    PhaseRow(
        "generation",
        "generation",
        "the policy answers, by transformers or vLLM",
        "rollouts",
    ),
    PhaseRow("rollout", "rest of a rollout", "tokenising, decoding, tools, advantages", "rollouts"),
    PhaseRow("scoring", "around rewards", "scores gathered and settled, the table of completions", "rollouts"),
    PhaseRow("old_logps", "old log-probabilities", "the policy's pass over its rollout without a gradient", "rollouts"),
    PhaseRow("reference_logps", "reference log-probabilities", "the reference model's passes"),
    PhaseRow("values", "values", "the critic's pass over the rollout", "critic"),
    PhaseRow("forward", "forward", "the policy's pass with a gradient, and the loss"),
    PhaseRow("backward", "backward", "gradients, recomputed activations and averaging over the ranks included"),
    PhaseRow("critic", "critic", "the critic's own forward, backward and step", "critic"),
    PhaseRow("checks", "checks of numbers", "whether loss, gradients and weights are finite"),
    PhaseRow("optimizer", "optimizer", "the gradient clipped, the step taken"),
    PhaseRow("logging", "logging", "metrics, tables and trackers written"),
    PhaseRow("saving", "saving", "checkpoints and models written"),
    PhaseRow(EVALUATION, "evaluation", "all of it, whatever happens within"),
    PhaseRow(WAITING, "waiting for other ranks", "collectives of TRL and accelerate outside of backward", "ranks"),
    PhaseRow(REST, "the rest", "what is in no other: the Trainer's loop, callbacks, the schedule"),
)

PHASES: dict[str, PhaseRow] = {row.key: row for row in _ROWS}
"""The end of a metric's name -> row."""
