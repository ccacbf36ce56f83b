"""Notes models that would see a text format they were not trained on: bare prompts instead of chats, or the reverse."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError
from rlhf_cli.json_values import section
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER, TokenizerFiles, read_tokenizer
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.checks.prompt_checks import has_conversations
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.runs.evaluations import run_of
from rlhf_cli.runs.text_endings import trained_with_eos


def format_notices(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Note a chat model that gets bare prompts, and a reward model that scores a format it was not trained on.

    A chat template alone does not make a chat model, so a model of our own runs counts as one only if that run's
    prompts were messages. If the format of the rows is not known yet, note nothing.
    """
    yield from ()
    if experiment.data.prompt is None and not any(seen.rows for seen in known.sources):
        return
    is_chat = has_conversations(experiment, known)
    policy = known.folder_of(experiment.model.path)
    if policy is not None and not is_chat and known.tokenizer is not None and _is_chat_model(policy, known.tokenizer):
        text = "the model has a chat template, and the prompts are bare text that does not go through it"
        known.notices.append(Notice("model", f"{text}: {_as_messages(experiment)}, unless it is a base model"))
    for name, reward in experiment.rewards.items():
        folder = known.folder_of(reward.model)
        if folder is None:
            continue
        if is_chat and trained_with_eos(folder) is True:
            text = "was trained on plain texts, and would score conversations"
            known.notices.append(Notice(f"rewards.{name}", f"{reward.model} {text}: {_as_text(experiment)}"))
        elif not is_chat and trained_with_eos(folder) is not True and _is_chat_model(folder, _tokenizer_of(folder)):
            text = "has a chat template, and would score bare texts that do not go through it"
            known.notices.append(Notice(f"rewards.{name}", f"{reward.model} {text}: {_as_messages(experiment)}"))


def _tokenizer_of(folder: Path) -> TokenizerFiles | None:
    try:
        return read_tokenizer(folder, where="rewards")
    except UserError:
        return None  # the run reports what is wrong with it


def _is_chat_model(folder: Path, tokenizer: TokenizerFiles | None) -> bool:
    template = tokenizer.chat_template if tokenizer is not None else None
    if template is None or template == read_tokenizer(EMBEDDED_TOKENIZER, where="model.path").chat_template:
        return False  # the embedded models have a template, but were trained on bare text
    run = run_of(folder.resolve())
    return run is None or isinstance(section(run.read_config(), "data").get("prompt"), list)


def _as_messages(experiment: Experiment) -> str:
    if not experiment.trainer.row.generates:
        return "write the rows as messages, [{role: user, content: ...}] and [{role: assistant, content: ...}]"
    prompt = experiment.data.prompt if isinstance(experiment.data.prompt, str) else "{prompt}"
    return shlex.quote(f"data.prompt=[{{role: user, content: {_quoted(prompt)}}}]")


def _as_text(experiment: Experiment) -> str:
    prompt = experiment.data.prompt
    if not isinstance(prompt, list):
        return "take one that was trained on conversations, or rows whose prompts are text"
    return shlex.quote(f"data.prompt={_quoted(prompt[-1].content)}")


def _quoted(text: str) -> str:
    """Return a text quoted for Hydra's grammar."""
    return '"' + text.replace('"', '\\"') + '"'
