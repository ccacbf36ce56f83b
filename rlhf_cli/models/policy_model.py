"""Generate completions with a causal language model and its tokenizer, loaded from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError  # a value of another type in config.json
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel
from trl.chat_template_utils import parse_response
from trl.data_utils import prepare_multimodal_messages

from rlhf_cli.errors import DataError, ModelError
from rlhf_cli.models.foreign_files import naming_foreign_files
from rlhf_cli.models.live_generation import STOP_KEYS, Generating, StopStrings, arguments_alone, greedy_arguments
from rlhf_cli.models.model_folders import loaders_of
from rlhf_cli.models.tokenizer_files import load_tokenizer, no_end_token
from rlhf_cli.tables.passes import GenerationSetting
from rlhf_cli.text.json_values import JsonTree

SAMPLING_ARGUMENTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Arguments of both the trainer and `generate`."""


@dataclass(frozen=True)
class Completion:
    """One answer. `ids` end with the end-of-sequence token or a stop string unless `is_truncated`.

    `message` is the answer to messages as a tokenizer with a response template reads it, None if none did.
    """

    text: str
    ids: list[int]
    is_truncated: bool
    message: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Sampling:
    """How answers are generated: `each` per prompt, `settings` under TRL's names, and rows per batch.

    The same seed gives the same completions. `on_batch` is called with the number of new completions.
    """

    settings: Mapping[str, object]
    batch_size: int
    seed: int
    each: int = 1
    is_greedy: bool = False
    on_batch: Callable[[int], None] | None = None


class PolicyModel:
    """A causal language model with its tokenizer, loaded from a folder (also an adapter) onto a device.

    Its weights are loaded when they are first used. A processor makes the inputs of a model that reads images.
    `tokenizer` is that of another folder or hub id. `parses`: it reads answers to messages by the tokenizer's response
    template, as GRPOTrainer does for its rewards. Raise ModelError if either cannot be loaded, or if the tokenizer
    has no token to pad with.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: str = "auto",
        device: torch.device | str = "cpu",
        generation: GenerationSetting = "auto",
        trust_remote_code: bool = False,
        chat_template: str | None = None,
        response_template: JsonTree | None = None,
        parses: bool = False,
        tokenizer: str | None = None,
        revision: str | None = None,
    ) -> None:
        self.path, self.device = path, torch.device(device)
        self._generating = Generating(is_plain=generation == "plain")
        trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        with self._loading():
            load_model, _, load_reader, self.config = loaders_of(str(path), revision=revision, **trust)
            self._load = partial(load_model, str(path), dtype=dtype, **trust)
            given = trust if tokenizer or revision is None else {**trust, "revision": revision}
            templates = (chat_template, response_template)
            self._reader: Any = load_tokenizer(tokenizer or str(path), *templates, load=load_reader, **given)
        self.tokenizer = getattr(self._reader, "tokenizer", self._reader)
        self.tokenizer.chat_template = self._reader.chat_template
        self._parses = parses and getattr(self.tokenizer, "response_template", None) is not None
        # A sampled image token has no image (as in TRL).
        image_token = getattr(self.config, "image_token_id", None)
        self._suppressed = {} if image_token is None else {"suppress_tokens": [image_token]}
        if self.tokenizer.pad_token is None:
            if self.tokenizer.eos_token is None:
                raise no_end_token(tokenizer or path, where="model.tokenizer" if tokenizer else "model.path")
            self.tokenizer.pad_token = self.tokenizer.eos_token

    @contextmanager
    def _loading(self) -> Iterator[None]:
        try:
            with naming_foreign_files({"model.path": str(self.path)}):
                yield
        except (OSError, ValueError, ImportError, StrictDataclassError) as error:
            raise ModelError("the policy cannot be loaded", where=str(self.path), got=error) from error

    @cached_property
    def _model(self) -> PreTrainedModel:
        with self._loading():
            model: Any = self._load()  # mypy takes the device of `to` for the model
        loaded: PreTrainedModel = model.to(self.device).eval()
        return loaded

    @cached_property
    def _eos(self) -> list[int]:
        given = self._model.generation_config.eos_token_id
        tokens = [self.tokenizer.eos_token_id, *(given if isinstance(given, list) else [given])]
        return sorted({token for token in tokens if token is not None})

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def complete(
        self, prompts: Sequence[object], sampling: Sampling, images: Sequence[list[Any]] | None = None
    ) -> list[Completion]:
        """Return a completion per prompt, in order. Batches have similar lengths; the random state is restored."""
        settings, batch_size = sampling.settings, sampling.batch_size
        with naming_foreign_files({"model.path": str(self.path)}):
            given = zip(prompts, images or [[]] * len(prompts), strict=True)
            encoded = [self._encoded(*each, settings) for each in given]
        stops = self._generating.stops = StopStrings.of(self.tokenizer, settings["generation_kwargs"])
        order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]), reverse=True)
        config = self._generation(settings, greedy=sampling.is_greedy)
        completions: dict[int, Completion] = {}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(sampling.seed)
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                generated = self._generate([encoded[row] for row in rows], config, settings)
                for row, ids in zip(rows, generated, strict=True):
                    end = next((place for place, token in enumerate(ids) if token in self._eos), None)
                    stop = stops.length(ids) if stops is not None else None
                    kept = ids[:stop] if stop is not None else ids if end is None else ids[: end + 1]
                    message = None
                    if self._parses and isinstance(prompts[row], list):
                        before = encoded[row]
                        prefix = self._chat_ids(before, settings) if isinstance(before[0], dict) else before
                        message = parse_response(self.tokenizer, kept, prefix=prefix)
                    completions[row] = Completion(self.decode(kept), kept, end is None and stop is None, message)
                if sampling.on_batch is not None:
                    sampling.on_batch(len(rows))
        return [completions[row] for row in range(len(encoded))]

    def _encoded(self, prompt: object, images: list[Any], settings: Mapping[str, object]) -> list[Any]:
        if isinstance(prompt, str):
            ids: list[int] = self.tokenizer(prompt)["input_ids"]
            return ids
        if self._reader.chat_template is None:
            raise ModelError("the prompts are messages, but the policy has no chat template", where=str(self.path))
        if not isinstance(prompt, list):
            got = f"{type(prompt).__name__} {prompt!r:.80}"
            raise DataError("a prompt is neither a text nor a list of messages", where="the evaluation rows", got=got)
        if self._reader is not self.tokenizer:
            return prepare_multimodal_messages(prompt, images)
        return self._chat_ids(prompt, settings)

    def _chat_ids(self, messages: list[Any], settings: Mapping[str, object]) -> list[int]:
        # The template writes the special tokens itself.
        ids: list[int] = self.tokenizer(self._rendered(messages, settings), add_special_tokens=False)["input_ids"]
        return ids

    def _rendered(self, messages: list[Any], settings: Mapping[str, object]) -> str:
        given = settings["chat_template_kwargs"]
        given = given if isinstance(given, dict) else {}
        return str(self._reader.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **given))

    def _generation(self, settings: Mapping[str, object], *, greedy: bool) -> GenerationConfig:
        given = settings["generation_kwargs"]
        given = {key: value for key, value in given.items() if key not in STOP_KEYS} if isinstance(given, dict) else {}
        arguments = {
            "max_new_tokens": settings["max_completion_length"],
            "do_sample": True,
            "pad_token_id": self.tokenizer.pad_token_id,
            "eos_token_id": self._eos,
            **{name: settings[name] for name in SAMPLING_ARGUMENTS},
            **self._suppressed,
            **given,
        }
        return GenerationConfig(**(greedy_arguments(arguments) if greedy else arguments), disable_compile=True)

    def _generate(
        self, rows: list[list[Any]], config: GenerationConfig, settings: Mapping[str, object]
    ) -> list[list[int]]:
        """Return the new tokens."""
        if isinstance(rows[0][0], dict):
            texts = [self._rendered(row, settings) for row in rows]
            parts = [[part for message in row for part in message["content"]] for row in rows]
            images = [[part["image"] for part in some if part["type"] == "image"] for some in parts]
            form = {"padding": True, "add_special_tokens": False, "return_tensors": "pt"}
            inputs = self._reader(text=texts, images=images if any(images) else None, **form)
            inputs = inputs.to(self.device, self._model.dtype)  # ids stay whole numbers
        else:
            ids, padding = [torch.tensor(row, dtype=torch.long) for row in rows], int(self.tokenizer.pad_token_id)
            input_ids = pad_sequence(ids, batch_first=True, padding_value=padding, padding_side="left")
            mask = pad_sequence(list(map(torch.ones_like, ids)), batch_first=True, padding_side="left")
            inputs = {"input_ids": input_ids.to(self.device), "attention_mask": mask.to(self.device)}
        with arguments_alone(self._model):
            output = self._generating.generate(cast(Any, self._model).generate, **inputs, generation_config=config)
        generated: list[list[int]] = output[:, inputs["input_ids"].shape[1] :].tolist()
        return generated
