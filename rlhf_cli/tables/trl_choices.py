"""Lists the values of TRL's and transformers' arguments that no docstring lists in a parseable form.

TRL rejects a misspelt value only when it computes the first loss, after loading the model and generating the first
answers. Tests compare the rows with the installed libraries.
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
"""Argument, or CONFIG.argument if configs differ -> its valid values."""
