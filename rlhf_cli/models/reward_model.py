"""A reward model as a reward function: texts in, one scalar a row out, as TRL's own trainers score with it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from trl import apply_chat_template, is_conversational


class RewardModelScorer:
    """Calls a sequence-classification model with one label on prompt + completion and returns its logit.

    The texts, the tokenisation and the padding are those of TRL's GRPOTrainer, so that a reward model scores the
    same here as there; a test holds it. Higher is better, in the model's own unit.
    """

    def __init__(self, path: str, *, device: torch.device | str = "cpu") -> None:
        self.path = path
        self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype="auto")
        # The model finds the end of a right-padded row by its own pad token.
        model.config.pad_token_id = self._tokenizer.pad_token_id
        self._model = model.to(device).eval()

    def __call__(self, prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        if is_conversational({"prompt": prompts[0]}):
            messages = [
                {"messages": prompt + completion} for prompt, completion in zip(prompts, completions, strict=True)
            ]
            texts = [apply_chat_template(example, self._tokenizer)["text"] for example in messages]
        else:
            texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        inputs = self._tokenizer(
            text=texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False
        ).to(self._model.device)
        with torch.inference_mode():
            logits = self._model(**inputs).logits[:, 0]
        scores: list[float] = logits.float().tolist()
        return scores
