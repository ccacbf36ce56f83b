"""Load the policy and check that it can read the prompts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoConfig, BitsAndBytesConfig, PreTrainedTokenizerBase, TrainingArguments
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config
from trl import is_conversational

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import Build
from rlhf_cli.data.learnt_columns import check_columns
from rlhf_cli.data.worlds import demonstrations
from rlhf_cli.models.cache import merged_model
from rlhf_cli.models.model_folders import loaders_of, require_model
from rlhf_cli.models.tiny import tiny_model_path
from rlhf_cli.models.tokenizer_files import load_tokenizer, no_chat_template, no_end_token
from rlhf_cli.plan.prompt_room import prompt_room
from rlhf_cli.tables.trl_trainers import IMAGES, data_key

_WARM_START_ROWS = 6000
OnProgress = Callable[[str], None]
"""Called with a description of the work that begins."""


@contextmanager
def loading_unsharded(args: TrainingArguments) -> Iterator[None]:
    """Open a context in which transformers loads models unsharded under every strategy.

    Once a process enables ZeRO-3 in TrainingArguments, transformers shards every model: also a reward model, which each
    rank runs on its own, a critic, which is trained outside the engine, and the base of an adapter that is merged.
    """
    # From our own argument, or from accelerate's config file; transformers checks both.
    config = getattr(args, "hf_deepspeed_config", None) or getattr(args.deepspeed_plugin, "dschf", None)
    if config is None:
        yield
        return
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(config)


def policy_path(experiment: Experiment, on_progress: OnProgress) -> str:
    """Return the policy's path or hub id; first build an embedded model, or merge an adapter into its base."""
    model = experiment.model
    if model.build is None:
        assert model.path is not None
        trusts = model.trust_remote_code
        require_model(model.path, where="model.path", revision=model.revision, trust_remote_code=trusts)
        return merged_model(model.path, dtype=model.dtype, trust_remote_code=trusts)

    def warming_up(step: int, steps: int) -> None:
        on_progress(f"warming up the tiny model {step}/{steps}")

    return str(tiny_model_path(model.build.model_dump(), partial(warm_start_rows, model.build), warming_up))


def warm_start_rows(build: Build) -> list[dict[str, str]]:
    """Return the demonstrations (prompt and completion) for the warm start of `build`."""
    key, worlds = "model.build.warm_start.worlds", build.warm_start.worlds if build.warm_start else []
    return [row for world in worlds for row in demonstrations(world, _WARM_START_ROWS, seed=build.seed, name=key)]


def lora_config(experiment: Experiment, path: str) -> LoraConfig:
    """Return the policy's LoraConfig; for a reward model, its head is trained and saved too."""
    model = experiment.model
    assert model.lora is not None
    given = {**model.lora.model_dump(), "revision": model.revision}
    if experiment.trainer.row.trains != "reward model":
        return LoraConfig(task_type="CAUSAL_LM", **given)
    from rlhf_cli.models.scalar_heads import head_names

    head = head_names(path, revision=model.revision, trust_remote_code=model.trust_remote_code)
    given["modules_to_save"] = [*head, *(name for name in given.get("modules_to_save") or () if name not in head)]
    return LoraConfig(task_type="SEQ_CLS", **given)


def teacher_arguments(experiment: Experiment, policy: str) -> dict[str, object]:
    """Return TRL's arguments for a teacher: its path, merged if it is an adapter, and the policy's tokenizer."""
    teacher, trusts = experiment.teacher, experiment.model.trust_remote_code
    assert teacher is not None
    require_model(teacher.path, where="teacher.path", revision=teacher.revision, trust_remote_code=trusts)
    tokenizer = tokenizer_of(experiment, policy)
    # GKD and GOLD make their collators before they load a tokenizer or set its padding.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    path = merged_model(teacher.path, dtype=teacher.dtype, trust_remote_code=trusts)
    return {"teacher_model": path, "processing_class": tokenizer}


def quantization(bits: str) -> BitsAndBytesConfig:
    """Return the settings of QLoRA (arXiv 2305.14314), 4-bit and quantised doubly, or of 8-bit integers."""
    # Heads stay whole: a new one is trained, and rounding shows most in a language model's head.
    whole = ["lm_head", "score", "classifier"]
    if bits == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=whole)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=whole,
    )


def tokenizer_of(
    experiment: Experiment, policy: str, load: Callable[..., PreTrainedTokenizerBase] | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the policy at `policy`, with the configured templates, or what `load` loads."""
    model = experiment.model
    return load_tokenizer(
        model.tokenizer or policy,
        model.chat_template,
        model.response_template,
        load,
        where="model.tokenizer" if model.tokenizer else "model.path",
        revision=None if model.tokenizer else model.revision,
        padding_side="left",
        trust_remote_code=model.trust_remote_code,
    )


def readable_rows(
    experiment: Experiment, args: TrainingArguments, policy: str, train: Dataset, held_out: dict[str, Dataset]
) -> tuple[Dataset, dict[str, Dataset]]:
    """Return training rows and evaluation sets that the model at `policy` can read.

    Raise ModelError if its tokenizer has no end-of-sequence token or, for conversations, no chat template. Raise
    DataError for prompts that leave no room to answer, unless `data.overlong_prompts` says how to handle them.
    """
    model, row = experiment.model, experiment.trainer.row
    config = AutoConfig.from_pretrained(policy, revision=model.revision, trust_remote_code=model.trust_remote_code)
    reads_images, has_images = hasattr(config, "vision_config"), not set(IMAGES).isdisjoint(train.column_names)
    if has_images and not reads_images:
        check_columns(train, row, reads_images=False)  # refuses them
    load = None
    if reads_images:
        load = loaders_of(policy, revision=model.revision, trust_remote_code=model.trust_remote_code)[2]
    reader: Any = tokenizer_of(experiment, policy, load)
    tokenizer = getattr(reader, "tokenizer", reader)
    tokenizer.chat_template = reader.chat_template
    where = "model.tokenizer" if model.tokenizer else "model.path"
    if tokenizer.eos_token_id is None:
        raise no_end_token(tokenizer.name_or_path, where=where)
    # TRL replaces the tokenizer's template by the one of `chat_template_path`.
    has_own_template = getattr(args, "chat_template_path", None) is not None
    if is_conversational(train[0]) and not has_own_template and tokenizer.chat_template is None:
        raise no_chat_template(tokenizer.name_or_path, where=where)
    room = prompt_room(experiment, config, tokenizer)
    if room is None:
        return train, held_out
    fitting = dict[str, Dataset]()
    for name, rows in {"train": train, **held_out}.items():
        fitting[name], said = room.fitting(rows, data_key(name))
        for message in said if args.process_index == 0 else ():
            logging.getLogger("rlhf").warning(message)
            print(f"warning: {message}")
    return fitting.pop("train"), fitting
