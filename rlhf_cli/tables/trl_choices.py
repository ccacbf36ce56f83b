"""The words that arguments of TRL's and transformers take where no docstring lists them in a form that can be read.

TRL finds a misspelt one when it computes the first loss, which is after the model was loaded and the first answers
were generated. Tests hold the rows against what the installed libraries compare and list.
"""

from __future__ import annotations

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
"""Argument, or CONFIG.argument where configs differ -> the words that it takes."""
