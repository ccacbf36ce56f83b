"""Plan the memory of one device of a run, from the longest rows of its data.

Only the rows with the most characters are counted, with the policy's own tokenizer and without torch. The chat template
is not rendered: a message counts a few more tokens than its text.

The run itself decides from the loaded model (trainers/pass_mixin.py). Both use tables/passes.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.models.tokenizer_files import language_part, read_json
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.checks.prompt_checks import TEMPLATE_ERRORS, rendered
from rlhf_cli.plan.devices import answer_of, host_bytes, uses_gpu
from rlhf_cli.plan.memory_estimate import Device, MemoryPlan, RowLengths, memory_plan
from rlhf_cli.tables.passes import ATTENTIONS, Passes, why_config_not_packed
from rlhf_cli.text.json_values import JsonTree


def planned_memory(
    experiment: Experiment, context: CheckContext, lengths: RowLengths | None, passes: Passes | None
) -> MemoryPlan:
    """Return how much device memory a process needs, given the data and the batches.

    `passes` is how rows will go through the models. If it is None (unknown), assume TRL's way, which needs the most.
    """
    batches, launch, on_gpu = context.batches, experiment.launch, uses_gpu(experiment.launch)
    if on_gpu:
        num_bytes = _gpu_bytes() if launch.slurm is None else None
    else:
        num_bytes = (host_bytes() or 0) // max(1, context.processes // launch.nodes) or None
    bf16 = launch.precision == "bf16" or (on_gpu and launch.precision == "auto")
    plan = memory_plan(
        experiment,
        lengths or RowLengths(0, 0),
        batches.per_device * batches.steps_per_generation if batches is not None else 0,
        passes=passes.mode if passes is not None else "plain",
        device=Device(on_gpu, bf16, context.processes, num_bytes),
        folder_of=context.folder_of,
    )
    if plan.peak is None:
        return plan
    left_out = plan.leaves_out if lengths is not None else ("prompts, whose length is not known", *plan.leaves_out)
    return replace(plan, leaves_out=left_out)


def _gpu_bytes() -> int | None:
    """Return the memory of the smallest visible NVIDIA GPU according to nvidia-smi, or None without a GPU."""
    nvidia_smi, visible = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES")
    sizes: dict[str, int] = {}
    query = ("--query-gpu=index,memory.total", "--format=csv,noheader,nounits")
    for line in answer_of(nvidia_smi, *query).splitlines() if nvidia_smi else ():
        index, _, size = line.partition(",")
        if size.strip().isdigit():
            sizes[index.strip()] = int(size) * 2**20
    seen = [entry.strip() for entry in visible.split(",")] if visible is not None else list(sizes)
    return min([sizes[entry] for entry in seen if entry in sizes], default=None)


_AROUND_A_MESSAGE = 8
"""Tokens that a chat template puts around a message (role, start and end markers); more than most templates use."""
_COUNTED = 64
"""How many rows are counted, those with the most characters: tokenizing a hundred thousand rows would take seconds."""
_ANSWERS = ("completion", "chosen", "rejected", "reference")
_WHOLE = ("messages", "conversations", "text")
_IDS = ("input_ids", "chosen_ids", "rejected_ids")

Count = Callable[[str], int]


def longest_rows(experiment: Experiment, context: CheckContext) -> RowLengths | None:
    """Return the longest prompt and row of all sources, in tokens.

    Return None if the rows or the policy's tokenizer are not on this machine.
    """
    tokenizer = context.tokenizer
    rows = [
        table[number] for seen in context.sources if (table := seen.rows) is not None for number in range(len(table))
    ]
    if not rows or tokenizer is None or tokenizer.lengths([""], special_tokens=False) is None:
        return None

    def count(text: str) -> int:
        return sum(tokenizer.lengths([text], special_tokens=False) or ())

    settings = experiment.trainer.args.get("chat_template_kwargs")

    def count_prompt(prompt: object) -> int:
        if isinstance(prompt, list) and tokenizer.chat_template is not None:
            try:
                return count(rendered(prompt, tokenizer, settings if isinstance(settings, Mapping) else {}))
            except TEMPLATE_ERRORS:
                pass  # the run reports a template that fails on this conversation
        return _tokens(prompt, count)

    prompts = sorted((row.get("prompt") for row in rows), key=lambda prompt: _tokens(prompt, len), reverse=True)
    longest = max(count_prompt(prompt) for prompt in prompts[:_COUNTED])
    if experiment.trainer.row.generates:
        return RowLengths(min(longest, context.most_prompt_tokens or longest), 0)
    by_size = sorted(rows, key=lambda row: _whole(row, len), reverse=True)
    wholes = [_whole(row, count) for row in by_size[:_COUNTED]]
    return RowLengths(longest, max(wholes), padded=_whole(by_size[0], len) != _whole(by_size[-1], len))


def _whole(row: Mapping[str, object], count: Count) -> int:
    """Return the tokens of a row that is trained on: the prompt with its longest answer, or the whole text."""
    ids = [len(value) for name in _IDS if isinstance(value := row.get(name), list)]
    wholes = [_tokens(row[name], count) for name in _WHOLE if row.get(name)]
    answers = [_tokens(row[name], count) + 1 for name in _ANSWERS if row.get(name)]  # 1: the end of the sequence
    return max([*ids, *wholes, _tokens(row.get("prompt"), count) + max(answers, default=0)])


def _tokens(value: object, count: Count) -> int:
    if isinstance(value, str):
        return count(value)
    if isinstance(value, list):
        texts = [message.get("content", message.get("value")) for message in value if isinstance(message, Mapping)]
        return sum(count(str(text)) + _AROUND_A_MESSAGE for text in texts)
    return 0


_ATTENTION = ATTENTIONS[0]
"""The default of transformers; no key of an experiment changes it."""


def planned_passes(experiment: Experiment, context: CheckContext) -> Passes | None:
    """Return how rows go through the models of a trainer that generates.

    Return None for a trainer that does not generate, and if only the loaded model can tell: its config.json is not on
    this machine, or is of a model family that is not in the table.
    """
    trainer = experiment.trainer
    if not trainer.row.generates:
        return None
    if trainer.passes in ("trimmed", "plain"):
        return Passes(trainer.passes, "as asked")
    config: JsonTree = {"model_type": "llama"}  # what `model.build` makes
    if experiment.model.build is None:
        config = _config_of(str(experiment.model.path), context)
    try:
        why = _why_not(experiment, config)
        if why is None and experiment.critic is not None and experiment.critic.init != "policy":
            of_critic = _why_not(experiment, _config_of(experiment.critic.init, context))
            why = None if of_critic is None else f"the critic: {of_critic}"
    except KeyError:
        return None
    if why is None and trainer.setting("torch_compile") is True:
        why = "it is compiled for rows of one shape"
    dtype = experiment.model.dtype
    stored = str(config.get("dtype", "float32") if dtype == "auto" else dtype)
    is_float32 = experiment.launch.precision == "float32" and "16" not in stored
    # For float32 a GPU has no kernel that takes all packed rows at once.
    if why is None and trainer.passes == "auto" and is_float32 and uses_gpu(experiment.launch):
        why = "packed, each row would attend by itself: it is computed in float32"
    return Passes("packed") if why is None else Passes("trimmed", why)


def _why_not(experiment: Experiment, config: JsonTree) -> str | None:
    """Return why rows are not packed in the model of a config.json. Raise KeyError if its family is unknown."""
    if language_part(config) is not config:
        return "it reads more than text"
    why = why_config_not_packed(config, _ATTENTION)
    if why is None and _drops(experiment, config):
        return "it drops at random in training, each row for itself"
    return why


def _drops(experiment: Experiment, config: JsonTree) -> bool:
    """Return whether a forward pass in training applies dropout. TRL's `disable_dropout` does not disable dropout in
    the attention; ours under PPO does (trainers/assemble/ppo_setup.py).
    """
    trainer, lora = experiment.trainer, experiment.model.lora
    if trainer.disables_dropout and trainer.baseline == "critic":
        return False
    in_adapter = lora is not None and lora.lora_dropout > 0 and not trainer.disables_dropout
    return bool(config.get("attention_dropout")) or in_adapter


def _config_of(path: str, context: CheckContext) -> JsonTree:
    """Return a model's config.json, or that of an adapter's base; empty if it is not on this machine."""
    folder = context.folder_of(path)
    if folder is not None and not (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        return context.config_of(str(read_json(folder / "adapter_config.json").get("base_model_name_or_path")))
    return context.config_of(path)
