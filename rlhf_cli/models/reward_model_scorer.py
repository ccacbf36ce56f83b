"""Score texts with a reward model, one number each.

The score is the `score` head's output at a row's last token that is not padding, as in transformers' decoders. If the
model supports it, rows are packed into flat rows of `batch_size * max_length` tokens, and a prefix shared by neighbours
is computed once. Otherwise rows are sorted by length to reduce padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification
from trl import apply_chat_template, is_conversational

from rlhf_cli.errors import ModelError, in_a_line
from rlhf_cli.models.model_folders import no_template_to_score
from rlhf_cli.models.packing.packed_rows import packed_texts, passes_of
from rlhf_cli.models.packing.row_attention import heads_of_model, model_inputs, why_no_varlen, why_not_packed
from rlhf_cli.models.scalar_heads import load_reward_model, where_reward_model


def why_not_scored_packed(model: PreTrainedModel | PeftModel) -> str | None:
    """Return why texts cannot be scored packed, in words, or None if they can."""
    classifier = model.get_base_model() if isinstance(model, PeftModel) else model
    if getattr(type(classifier), "forward", None) is not GenericForSequenceClassification.forward:
        return "its head is not the one of transformers' decoders"
    return why_not_packed(model)


def packed_scores(model: PreTrainedModel | PeftModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return (B,) scores of rows of tokens, whose last token is not padding; sorted rows share most prefixes."""
    classifier = cast(PreTrainedModel, model.get_base_model()) if isinstance(model, PeftModel) else model
    packed = packed_texts(rows, torch.device(classifier.device))
    states: Tensor = classifier.base_model(**model_inputs(packed), use_cache=False).last_hidden_state
    head = cast(torch.nn.Module, classifier.score)
    scores: Tensor = head(states[0, packed.last_states()])
    return scores[:, 0]


# A tokenizer without a limit reports 1e30.
_NO_LIMIT = 10**9
_TRIED_ROWS = 3
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Allowed absolute and relative error of packed scores against padded ones; 0.1 in half precision."""


class RewardModelScorer:
    """A scorer that calls a one-label sequence classifier on prompt + completion and returns its logit.

    Texts, tokenisation and padding match TRL's GRPOTrainer, so a reward model scores the same here as there. Higher is
    better, in the model's own unit. A row longer than `max_length` tokens loses its beginning, except a
    begin-of-sequence token: the score is read at the end. `num_truncated` counts such rows.

    Args:
        path: a folder or hub id: a full checkpoint, or a PEFT adapter saved with its head.
        batch_size: rows in one forward pass; a packed pass has at most this many times the longest row's tokens.
        max_length: tokens of a row; None for the limit of the model and its tokenizer.
        dtype: of the weights and the arithmetic; `auto` is the checkpoint's own. Autocast does not change it.
        with_eos: end plain texts with the end-of-sequence token, like TRL's RewardTrainer in training; its GRPOTrainer
            does not in scoring.
        trust_remote_code: run code that came with the checkpoint.
        tokenizer: the folder or hub id of another tokenizer than the checkpoint's own.
        revision: the checkpoint's commit, branch or tag on the hub; None for the default branch.
        may_pack: False to pad rows like TRL, with exactly TRL's scores.

    Raise ModelError if the checkpoint is not a reward model, lost its head, or cannot be loaded.
    """

    def __init__(
        self,
        path: str,
        *,
        batch_size: int = 16,
        max_length: int | None = None,
        dtype: str = "auto",
        device: torch.device | str = "cpu",
        with_eos: bool = False,
        trust_remote_code: bool = False,
        tokenizer: str | None = None,
        revision: str | None = None,
        may_pack: bool = True,
    ) -> None:
        self.path = path
        self.with_eos = with_eos
        self.batch_size = batch_size
        self.num_truncated = 0
        self._device = torch.device(device)
        self._model, self._tokenizer = load_reward_model(
            path, dtype=dtype, trust_remote_code=trust_remote_code, tokenizer=tokenizer, revision=revision
        )
        self.max_length = self._limit(max_length)
        text_config = self._model.config.get_text_config()
        # The model finds the end of a right-padded row by its own pad token.
        if self._tokenizer.pad_token_id is None:
            if self._tokenizer.eos_token_id is None:
                what = "the reward model's tokenizer has neither a pad nor an eos token"
                raise ModelError(what, where=where_reward_model(path))
            self._tokenizer.pad_token = self._tokenizer.eos_token
        text_config.pad_token_id = int(self._tokenizer.pad_token_id)
        # The KV cache is useless in a single pass, and as large as the activations.
        text_config.use_cache = False
        module: torch.nn.Module = self._model  # transformers wraps `to`, which makes mypy take the device for the model
        module.to(self._device).eval()
        why = why_not_scored_packed(self._model)
        if why is None and self._device.type != "cpu":  # packed rows are slow there, unless one kernel takes them all
            slow = why_no_varlen(heads_of_model(self._model, self._device, self._model.dtype))
            why = None if slow is None else f"packed, each text would attend separately: {slow}"
        self.why_not_packed = why if may_pack else "may_pack is False"
        self._has_tried = False

    def __call__(self, prompts: Sequence[object], completions: Sequence[object], **_: object) -> list[float]:
        return self.scored(prompts, completions)[0]

    def scored(self, prompts: Sequence[object], completions: Sequence[object]) -> tuple[list[float], list[int]]:
        """Return the scores, and each row's tokens before truncation. Raise ModelError if a score is not finite."""
        texts = [self._text(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        if not texts:
            return [], []
        if self.with_eos and (eos := self._tokenizer.eos_token) and not is_conversational({"prompt": prompts[0]}):
            texts = [text if text.endswith(eos) else text + eos for text in texts]
        encoded = self._tokenizer(text=texts, add_special_tokens=False, verbose=False)["input_ids"]
        rows = [self._fitted(ids) for ids in encoded]
        scores = self._scores(rows)
        for row, score in enumerate(scores):
            if not math.isfinite(score):
                what, advice = (f"the score of row {row} is not a number", "dtype: float32; float16 may overflow")
                where = where_reward_model(self.path)
                raise ModelError(what, where=where, got=score, expected="a finite logit", advice=advice)
        return scores, [len(ids) for ids in encoded]

    def check_prompt(self, prompt: object) -> None:
        """Raise ModelError if the model does not support this kind of prompt. Call it before training."""
        if is_conversational({"prompt": prompt}) and self._tokenizer.chat_template is None:
            raise no_template_to_score(self.path, where=where_reward_model(self.path))

    def _text(self, prompt: object, completion: object) -> str:
        if isinstance(prompt, str) and isinstance(completion, str):
            return prompt + completion
        if not (isinstance(prompt, list) and isinstance(completion, list)):
            kinds = f"{type(prompt).__name__} and {type(completion).__name__}"
            raise TypeError(f"a prompt and its completion are both texts, or both lists of messages; got {kinds}")
        self.check_prompt(prompt)
        return str(apply_chat_template({"messages": prompt + completion}, self._tokenizer)["text"])

    def _fitted(self, ids: list[int]) -> list[int]:
        if self.max_length is None or len(ids) <= self.max_length:
            return ids
        self.num_truncated += 1
        head = ids[:1] if ids[0] == self._tokenizer.bos_token_id and self.max_length > 1 else []
        return head + ids[len(ids) - self.max_length + len(head) :]

    def _why_not_as_padded(self, rows: list[list[int]]) -> str | None:
        try:
            packed = torch.tensor(self._packed(rows))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            return f"it raised {in_a_line(error)}"
        tolerance = _TOLERANCE.get(self._model.dtype, 0.1)
        is_same = torch.allclose(packed, torch.tensor(self._padded(rows)), tolerance, tolerance, equal_nan=True)
        return None if is_same else "its scores differed from those of padded rows"

    def _scores(self, rows: list[list[int]]) -> list[float]:
        """Return the scores of all rows, in batches of packed or of padded rows.

        The first call scores three rows both ways, and so detects a model that does not pass arguments to its attention
        or that attends to later tokens, and a kernel that is wrong.
        """
        if self.why_not_packed is None and not self._has_tried:
            self._has_tried = True
            # At least two rows, if necessary the same one twice: a single row cannot attend to another by mistake.
            num_tried = max(2, min(_TRIED_ROWS, self.batch_size))
            wrong = self._why_not_as_padded(sorted(rows[row % len(rows)] for row in range(num_tried)))
            self.why_not_packed = None if wrong is None else f"packed, {wrong}"
        if self.why_not_packed is None:
            score, batches = self._packed, passes_of(rows, self.batch_size * max(map(len, rows)))
        else:
            # Longest first, so that an out-of-memory error occurs at once. The given order is kept within a batch: if
            # all rows fit into one batch, it equals TRL's batch to the last bit.
            order = sorted(range(len(rows)), key=lambda row: len(rows[row]), reverse=True)
            starts = range(0, len(order), self.batch_size)
            score, batches = self._padded, (sorted(order[start : start + self.batch_size]) for start in starts)
        scores: dict[int, float] = {}
        for batch in batches:
            scores.update(zip(batch, score([rows[row] for row in batch]), strict=True))
        return [scores[row] for row in range(len(rows))]

    def _packed(self, rows: list[list[int]]) -> list[float]:
        pad = self._tokenizer.pad_token_id
        with torch.inference_mode(), torch.autocast(self._device.type, enabled=False):
            scores: list[float] = packed_scores(self._model, [_read_part(ids, pad) for ids in rows]).float().tolist()
        return scores

    def _padded(self, rows: list[list[int]]) -> list[float]:
        token = self._tokenizer.pad_token_id
        texts = [torch.tensor(ids or [token]) for ids in rows]  # a row without tokens still needs one
        input_ids = pad_sequence(texts, batch_first=True, padding_value=token)
        mask = pad_sequence(list(map(torch.ones_like, texts)), batch_first=True)
        with torch.inference_mode(), torch.autocast(self._device.type, enabled=False):
            output = self._model(input_ids=input_ids.to(self._device), attention_mask=mask.to(self._device))
            scores: list[float] = output.logits[:, 0].float().tolist()
        return scores

    def _limit(self, asked: int | None) -> int | None:
        """Return the maximum row length in tokens, or None if neither model nor tokenizer has a limit."""
        # RoBERTa-like models start counting after the padding index: 514 positions mean 512.
        tables = (getattr(module, "position_embeddings", None) for module in self._model.modules())
        paddings = (getattr(table, "padding_idx", None) for table in tables)
        taken = max((padding + 1 for padding in paddings if padding is not None), default=0)
        positions = int((getattr(self._model.config.get_text_config(), "max_position_embeddings", None) or 0) - taken)
        known = [limit for limit in (positions, self._tokenizer.model_max_length) if 0 < limit < _NO_LIMIT]
        if asked is None:
            return min(known, default=None)
        if 0 < positions < asked:
            what = "max_length exceeds the number of positions of the reward model"
            raise ModelError(what, where=where_reward_model(self.path), got=asked, expected=f"at most {positions}")
        return asked


def _read_part(ids: list[int], pad: int) -> list[int]:
    """Return a row up to its last token that is not padding, where the score is read; one token if all are padding."""
    end = next((place for place in range(len(ids), 0, -1) if ids[place - 1] != pad), 0)
    return ids[:end] or [pad]
