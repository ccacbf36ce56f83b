"""Lists the arguments of TRL's trainers whose bounds are checked only by a library below TRL.

TRL passes them on, so without this table they would be rejected only at the first batch, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """The bounds of one argument, each None if there is no such bound. `why` says what enforces them.

    `strategy` names the argument that has to be `steps` for this one to be used, None if it is always used.
    """

    name: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    why: str = ""
    strategy: str | None = None

    def holds(self, value: float) -> bool:
        """Return whether a value is within the bounds."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def in_words(self) -> str:
        """Return the bounds in words: `at least 0 and below 1`."""
        bounds = (("at least", self.at_least), ("above", self.above), ("at most", self.at_most), ("below", self.below))
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


_ADAM = "torch.optim.AdamW takes no other"
_STEPS = "transformers takes no other"

RANGES: tuple[Range, ...] = (
    Range("temperature", above=0, why="scores are divided by it; next to 0 every answer of a group is the same"),
    Range("top_p", above=0, at_most=1, why="it is a share of the probability"),
    Range("min_p", at_least=0, at_most=1, why="it is a share of the largest probability"),
    Range("top_k", at_least=0, why="it is a number of tokens; 0 keeps all"),
    Range("repetition_penalty", above=0, why="scores are divided by it; 1 is none"),
    Range("max_completion_length", at_least=1, why="an answer has a token"),
    Range("warmup_steps", at_least=0, why=_STEPS),
    Range("adam_beta1", at_least=0, below=1, why=_ADAM),
    Range("adam_beta2", at_least=0, below=1, why=_ADAM),
    Range("adam_epsilon", at_least=0, why=_ADAM),
    Range("weight_decay", at_least=0, why=_ADAM),
    Range("dataloader_num_workers", at_least=0, why="torch's DataLoader takes no other"),
    Range("logging_steps", above=0, why=_STEPS, strategy="logging_strategy"),
    Range("eval_steps", above=0, why=_STEPS, strategy="eval_strategy"),
    Range("save_steps", above=0, why=_STEPS, strategy="save_strategy"),
)
