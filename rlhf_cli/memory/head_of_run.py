"""Computes the peak memory of the policy's head in a run: one pass that keeps the softmax, TRL's tiles, or zero."""

from __future__ import annotations

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.memory import head_tiles
from rlhf_cli.memory.models_of_run import Loaded
from rlhf_cli.memory.run_load import RunLoad
from rlhf_cli.memory.shared_prompts import entropy_learns
from rlhf_cli.memory.states import Sharing

_FUSED_HEAD = ("GRPOTrainer", "RLOOTrainer", "GMPOTrainer", "SFTTrainer", "DPOTrainer", "KTOTrainer")


class PolicyHead:
    """The head of a policy: the bytes it needs for rows with and without a gradient."""

    def __init__(self, experiment: Experiment, load: RunLoad, policy: Loaded, sharing: Sharing, *, on_gpu: bool):
        self._experiment, self._load, self._policy, self._on_gpu = experiment, load, policy, on_gpu
        self._is_gathered = sharing.is_deepspeed and sharing.shards_weights  # gathered only in the forward pass
        self.is_fused = experiment.trainer.trl in _FUSED_HEAD

    def forward_bytes(self, rows: int) -> float:
        """Return the bytes for the log-probabilities of `rows` rows without a gradient."""
        if not self.is_fused:
            return 0.0
        arch, precision, tokens = self._policy.architecture, self._policy.precision, self.scored(rows)
        if self._is_one_pass(tokens):
            return head_tiles.one_pass_forward_bytes(arch, precision, tokens, has_entropy=False)
        return head_tiles.forward_bytes(arch, precision, tokens, on_gpu=self._on_gpu)

    def learning_bytes(self, rows: int) -> float:
        """Return the peak bytes for the gradient of `rows` rows, forward or backward."""
        arch, precision, tokens = self._policy.architecture, self._policy.precision, self.scored(rows)
        trains_head = self._policy.adapter is None
        if not self._is_one_pass(tokens):
            return head_tiles.backward_bytes(arch, precision, tokens, trains_head=trains_head, on_gpu=self._on_gpu)
        return max(
            head_tiles.one_pass_forward_bytes(arch, precision, tokens, has_entropy=True),
            head_tiles.one_pass_backward_bytes(
                arch, precision, tokens, trains_head=trains_head, entropy_learns=entropy_learns(self._experiment)
            ),
        )

    def scored(self, rows: int) -> int:
        """Return the tokens of `rows` rows that go through the head: without Triton, TRL includes the prompt."""
        load = self._load
        is_answer_alone = load.completion_tokens and (self._on_gpu or load.passes != "plain")
        return rows * (load.completion_tokens if is_answer_alone else load.tokens)

    def _is_one_pass(self, tokens: int) -> bool:
        if self._load.passes == "plain" or self._is_gathered:
            return False
        return head_tiles.fits_one_pass(self._policy.architecture, tokens)
