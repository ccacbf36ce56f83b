"""List bounds and choices of TRL's arguments that no docstring holds, and what TRL passes to a reward.

TRL rejects such a value only after loading the model and generating the first answers, or not at all. Tests compare the
rows with the installed libraries.
"""

from __future__ import annotations

import math
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
    also: float | None = None
    """A value outside the bounds that means "not given"."""

    def holds(self, value: float) -> bool:
        """Return whether a value is within the bounds; -0.0 is below 0, and takes a sign with it."""
        is_minus_zero = value == 0 and math.copysign(1, value) < 0
        return (
            (self.at_least is None or (value >= self.at_least and not is_minus_zero))
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
_COUNT, _SHARE = "it is a number of them", "it is a share"

RANGES: tuple[Range, ...] = (
    Range("learning_rate", at_least=0, why="a step goes against the gradient"),
    Range("temperature", above=0, why="scores are divided by it; next to 0 every answer of a group is the same"),
    Range("top_p", above=0, at_most=1, why="it is a share of the probability"),
    Range("min_p", at_least=0, at_most=1, why="it is a share of the largest probability"),
    Range("top_k", at_least=0, why="it is a number of tokens; 0 keeps all"),
    Range("repetition_penalty", above=0, why="scores are divided by it; 1 is none"),
    Range("max_completion_length", at_least=1, why="an answer has a token"),
    Range("warmup_steps", at_least=0, why=_STEPS),
    Range("max_steps", at_least=1, also=-1, why="a run takes a step; without it, num_train_epochs decides"),
    Range("beta", at_least=0, why="below 0 it pays for leaving the reference"),
    Range("epsilon", at_least=0, why="it is the width of a range around a ratio of 1"),
    Range("epsilon_high", at_least=0, why="it is the width of a range above a ratio of 1"),
    Range("per_device_eval_batch_size", at_least=1, why=_COUNT),
    Range("ref_model_sync_steps", at_least=1, why=_COUNT),
    Range("ref_model_mixup_alpha", at_least=0, at_most=1, why=_SHARE),
    Range("top_entropy_quantile", at_least=0, at_most=1, why=_SHARE),
    Range("label_smoothing", at_least=0, below=0.5, why="it is the share of wrong labels, less than half"),
    Range("max_grad_norm", at_least=0, why="it is a length; 0 does not clip"),
    Range("adam_beta1", at_least=0, below=1, why=_ADAM),
    Range("adam_beta2", at_least=0, below=1, why=_ADAM),
    Range("adam_epsilon", at_least=0, why=_ADAM),
    Range("weight_decay", at_least=0, why=_ADAM),
    Range("dataloader_num_workers", at_least=0, why="torch's DataLoader takes no other"),
    Range("logging_steps", above=0, why=_STEPS, strategy="logging_strategy"),
    Range("eval_steps", above=0, why=_STEPS, strategy="eval_strategy"),
    Range("save_steps", above=0, why=_STEPS, strategy="save_strategy"),
)


STOP_STRINGS = {"hf": "stop_strings", "vllm": "stop", "vllm_server": "stop"}
"""Way to generate -> its key in `generation_kwargs` for texts that end a completion; continuous batching has none."""

MAX_RELATIVE_KL_ERROR = 0.2
"""Bound on |KL / target - 1| in the adaptive controller (Ziegler et al., arXiv 1909.08593, section 2.2)."""

_LOG_LEVELS = ("detail", "debug", "info", "warning", "error", "critical", "passive")

CHOICES: dict[str, tuple[str, ...]] = {
    "importance_sampling_level": ("token", "sequence"),
    "DPOConfig.loss_type": (
        *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot"),
        *("aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
    ),
    "f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"),
    "truncation_mode": ("keep_start", "keep_end"),
    "packing_strategy": ("bfd", "bfd_split", "wrapped", "bfd-requeue"),
    "KTOConfig.train_sampling_strategy": ("random", "sequential", "group_by_length"),
    "dataloader_multiprocessing_context": ("fork", "spawn", "forkserver"),
    "log_level": _LOG_LEVELS,
    "log_level_replica": _LOG_LEVELS,
    "include_num_input_tokens_seen": ("all", "non_padding", "no"),
}
"""Argument, or CONFIG.argument if configs differ -> its valid values."""


TEXT_ARGUMENTS = ("prompts", "completions", "completion_ids")
"""Arguments of a reward that hold texts, messages or token ids by row. A function needs one to count as a reward."""
TRAINERS_OWN = frozenset(("environments", "trainer_state", "log_extra", "log_metric"))
"""Arguments of a reward that are not data, and so stay in the training process. Only `environments` are by row."""
REWARD_ARGUMENTS = frozenset(TEXT_ARGUMENTS) | TRAINERS_OWN
"""Every other argument that a reward function requires is a column of the dataset."""
NEVER_COLUMNS = {"prompt": "prompts", "completion": "completions"} | dict.fromkeys(
    ("response", "solution_str", "predict_str", "predict", "model_output", "output", "queries", "predicts"),
    "completions",
)
"""What no reward is given under this name: two columns, and arguments of other tools -> the argument that holds it."""


ROUND = "rollout.round"
"""The training round in which the row was generated, counted from 0; empty for an evaluation row."""
STEP = "rollout.step"
"""The optimizer steps that the generating policy had taken; weight schedules are evaluated at this step."""
TRUNCATED = "rollout.truncated"
"""Whether it was truncated, as the truncation policy defines it."""
TOKENS = "rollout.tokens"
"""Its length in tokens, including the end-of-sequence token."""

ALL = (ROUND, STEP, TRUNCATED, TOKENS)
"""With these and the raw scores, a round's rewards can be recomputed exactly (docs/how-to/scoring.md)."""
