"""Check that the policy can read the rows and has room to answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.overlong_prompts import check_overlong, describe_overlong, prompt_limit
from rlhf_cli.data.rendering import TEMPLATE_ERRORS, Messages, check_rendering
from rlhf_cli.data.rows import RowTable, values_of
from rlhf_cli.errors import ConfigError, ModelError, UserError
from rlhf_cli.models.model_folders import describe_model
from rlhf_cli.models.tokenizer_files import (
    EMBEDDED_TOKENIZER,
    TokenizerFiles,
    context_of,
    no_chat_template,
    no_end_token,
    read_tokenizer,
    render_chat,
    vocab_size_of,
)
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.runs.run_folder import run_of
from rlhf_cli.tables.trl_values import STOP_STRINGS
from rlhf_cli.text.json_values import JsonTree, section

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_ADDED = 8
"""Upper bound on the special tokens added to a plain text."""


def tokenizer_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield what the tokenizer lacks: an end-of-text token, a chat template, or ids within the model's vocabulary."""
    model = experiment.model
    key = "model.tokenizer" if model.tokenizer else "model.path"
    where = composed.origins.where(key)
    if model.tokenizer is not None:
        describe_model(model.tokenizer, where=where, needs_model=False)
    template = model.chat_template
    if (other := experiment.trainer.args.get("chat_template_path")) is not None:
        template = _template_of(str(other), composed.origins.where("trainer.args.chat_template_path"))
    folder = context.folder_of(model.tokenizer or model.path)
    if model.build is not None and model.tokenizer is None:
        folder = EMBEDDED_TOKENIZER
    if folder is None:
        return
    tokenizer = read_tokenizer(folder, where=where, template=template)
    if folder != EMBEDDED_TOKENIZER:
        tokenizer.lengths([""], special_tokens=False)  # raises if its file is malformed
    context.tokenizer = tokenizer
    if folder == EMBEDDED_TOKENIZER:
        return
    if tokenizer.surely_lacks("eos_token"):
        yield no_end_token(folder, where=where)
    if tokenizer.chat_template is None and has_conversations(experiment, context):
        yield no_chat_template(folder, where=where)
    yield from _too_many_tokens(tokenizer, context.config_of(model.path or str(EMBEDDED_TOKENIZER)), where)


def text_argument_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for special tokens that the vocabulary lacks, and for stop strings that nothing reads."""
    args, where, tokenizer = experiment.trainer.args, composed.origins.where, context.tokenizer
    # the tokenizer that chat_template_path names brings tokens of its own
    named = {} if "chat_template_path" in args or tokenizer is None else {"eos_token", "pad_token"} & args.keys()
    for name in sorted(named):
        key, token = f"trainer.args.{name}", args[name]
        assert tokenizer is not None
        added = section(tokenizer.settings, "added_tokens_decoder").values()
        known = {str(one["content"]) for one in added if isinstance(one, dict)} | {*tokenizer.tokens}
        if isinstance(token, str) and known and token not in known:
            what, expected = f"the tokenizer has no such {name}", "a token of its vocabulary"
            yield ModelError(what, where=where(key), got=repr(token), expected=expected, hint=f"'~{key}'")
    key, right = "trainer.args.generation_kwargs", STOP_STRINGS.get(experiment.launch.rollout)
    given = section(cast(JsonTree, args), "generation_kwargs")
    for name in {*STOP_STRINGS.values()} - {right}:
        if given.get(name):
            text = json.dumps(given[name], ensure_ascii=False)
            yield ConfigError(
                f"launch.rollout={experiment.launch.rollout} reads no {key}.{name}",
                where=where(key),
                got=text,
                expected=f"{right}, as it is called there" if right else "a way to generate that stops at texts",
                hint=f"'~{key}.{name}' '{key}.{right}={text}'" if right else "launch.rollout=hf",
            )


def _template_of(tokenizer: str, where: str) -> str | None:
    """Return the chat template of the tokenizer that `chat_template_path` names; None if it is on the hub.

    `prepare` has put a Jinja file of that name into `model.chat_template`. Raise ModelError if there is no such folder.
    """
    describe_model(tokenizer, where=where, needs_model=False)
    folder = Path(tokenizer).expanduser()
    return read_tokenizer(folder, where=where).chat_template if folder.is_dir() else None


def template_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield the first row of each source that the chat template does not take."""
    settings, tokenizer = experiment.trainer.args.get("chat_template_kwargs"), context.tokenizer
    if tokenizer is None or tokenizer.chat_template is None or not context.used_columns:
        return

    def write(messages: Messages, variables: Mapping[str, object]) -> str:
        return rendered(messages, tokenizer, (settings if isinstance(settings, dict) else {}) | dict(variables))

    for read in context.sources:
        try:
            if read.rows is not None and context.used_columns <= set(read.columns):
                check_rendering(read.rows, sorted(context.used_columns), write, name=read.source.name)
        except UserError as error:
            yield read.source.with_file(error)


def room_for_answers_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if prompts leave no room for an answer, or note how many `data.overlong_prompts` drops or cuts."""
    build, args = experiment.model.build, experiment.trainer.args
    read = build.context_tokens if build is not None else context_of(context.config_of(experiment.model.path))
    where = composed.origins.where("trainer.args.max_completion_length")
    answer = experiment.trainer.setting("max_completion_length")
    limit = prompt_limit(read, args.get("vllm_max_model_length"), answer, where=where)
    if limit is None or context.tokenizer is None:
        return
    settings, policy = args.get("chat_template_kwargs"), experiment.data.overlong_prompts
    for source in context.sources:
        if source.rows is None or "prompt" not in source.columns:
            continue
        overlong = _overlong(source.rows, limit, context.tokenizer, settings if isinstance(settings, dict) else {})
        if not overlong:
            continue
        name = source.source.name
        try:
            check_overlong(source.rows, overlong, limit, policy=policy, name=name)
        except UserError as error:
            yield error
        else:
            context.most_prompt_tokens = limit
            described = describe_overlong(overlong, len(source.rows), limit, policy)
            context.notices.append(Notice("prompts", f"{name}: {described}"))


def _overlong(rows: RowTable, limit: int, tokenizer: TokenizerFiles, settings: Mapping[str, object]) -> dict[int, int]:
    """Map each row whose prompt has more than `limit` tokens to its length; empty if they cannot be counted here."""
    texts, is_chat = dict[int, str](), False
    for row, prompt in enumerate(values_of(rows, "prompt")):
        if isinstance(prompt, list):
            is_chat = True
            try:
                prompt = rendered(cast("Messages", prompt), tokenizer, settings)
            except TEMPLATE_ERRORS:
                return {}  # `template_problems` reports it
        # A token is at least a byte, so most prompts need no count.
        if isinstance(prompt, str) and len(prompt.encode()) + _ADDED > limit:
            texts[row] = prompt
    lengths = tokenizer.lengths(list(texts.values()), special_tokens=not is_chat) if texts else []
    return {row: length for row, length in zip(texts, lengths or (), strict=False) if length > limit}


def rendered(messages: Messages, tokenizer: TokenizerFiles, settings: Mapping[str, object]) -> str:
    """Return a prompt's messages as the chat template writes them. Raises one of TEMPLATE_ERRORS."""
    special = {name: token for name in _SPECIAL if (token := tokenizer.special(name)) is not None}
    return render_chat(tokenizer.chat_template or "", messages, special, settings)


def has_conversations(experiment: Experiment, context: CheckContext) -> bool:
    """Return whether the rows are conversations, judging by the prompt template, or else by the first row."""
    if experiment.data.prompt is not None:
        return not isinstance(experiment.data.prompt, str)
    read = {"prompt"} | {name for names in experiment.trainer.row.learns_from for name in names}
    first = [(source.rows[0], read & set(source.columns)) for source in context.sources if source.rows]
    values = [row[name] for row, columns in first for name in sorted(columns)]
    return any(isinstance(value, list) and value and isinstance(value[0], dict) for value in values)


def _too_many_tokens(tokenizer: TokenizerFiles, config: JsonTree, where: str) -> Iterator[UserError]:
    """Yield an error if the tokenizer produces token ids beyond the model's embedding.

    Some tokenizers list spare added tokens beyond the vocabulary that no text produces (Gemma 3's, for images). So only
    the vocabulary itself and the special tokens count.
    """
    size, tokens = vocab_size_of(config), tokenizer.tokens
    if size is None or not tokens:
        return
    added = {str(entry["content"]) for entry in tokenizer.added_tokens}
    special = {tokenizer.special(name) for name in _SPECIAL[:3]}
    beyond = [token for token, number in tokens.items() if number >= size and (token not in added or token in special)]
    if beyond:
        yield ModelError(
            "the tokenizer writes tokens that the model does not know",
            where=where,
            got=f"{len(beyond)} tokens of {tokenizer.folder} are {size} and more, {beyond[0]!r} is {tokens[beyond[0]]}",
            expected=f"no more than the model's vocab_size {size}",
            advice="the tokenizer that belongs to the model: ~model.tokenizer, or model.tokenizer=FOLDER_OR_HUB_ID",
        )


def format_notices(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note a chat model that gets bare prompts, and a reward model that scores a format it was not trained on.

    A chat template alone does not make a chat model, so a model of our own runs counts as one only if that run's
    rows were messages, as the model's folder records. If the format of the rows is not known yet, note nothing.
    """
    from rlhf_cli.runs.text_endings import trained_on_conversations, trained_with_eos

    if experiment.data.prompt is None and not any(source.rows for source in context.sources):
        return
    is_chat = has_conversations(experiment, context)
    bare = "has a chat template, and the rows are bare text that does not go through it: write them as messages"
    policy = context.folder_of(experiment.model.path)
    if policy is not None and not is_chat and is_chat_model(policy, context.tokenizer):
        as_messages = "such as data.prompt='[{role: user, content: \"{prompt}\"}]'"
        if not experiment.trainer.row.generates:  # a template makes messages of prompts alone, not of their answers
            as_messages = "prompts and answers, in the file"
        text = f"the model {bare}, {as_messages}, unless it is a base model"
        context.notices.append(Notice("model", text))
    if policy is not None and is_chat and trained_on_conversations(policy) is False:
        text = "the model was trained on plain texts, and the rows are conversations"
        context.notices.append(Notice("model", text))
    for name, reward in experiment.rewards.items():
        folder = context.folder_of(reward.model)
        if folder is None:
            continue
        on_plain_texts = trained_with_eos(folder) is True or trained_on_conversations(folder) is False
        if is_chat and on_plain_texts:
            text = f"{reward.model} was trained on plain texts, and would score conversations"
            context.notices.append(Notice(f"rewards.{name}", text))
        elif not is_chat and not on_plain_texts and is_chat_model(folder, _tokenizer_of(folder)):
            context.notices.append(Notice(f"rewards.{name}", f"{reward.model} {bare}"))


def ending_notices(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note where the end of a text is padding to a reward model, which therefore cannot tell a cut answer."""
    trainer, tokenizer = experiment.trainer, context.tokenizer
    end = tokenizer.unread_end if tokenizer is not None else None
    given = trainer.args.get("pad_token")
    if "reward_model" in trainer.row.sections and tokenizer is not None and end and given in (None, end):
        other = None if given else tokenizer.other_padding
        text = f"it pads with {other}, for the tokenizer's own padding, {end}, is also how a text ends"
        if other is None:
            text = f"{end} ends texts and pads them: the model never reads it, and cannot tell a cut answer"
        context.notices.append(Notice("trainer.args.pad_token", text))
    for name, reward in experiment.rewards.items():
        folder = context.folder_of(reward.model)
        scorer = _tokenizer_of(folder) if folder is not None else None
        if scorer is not None and scorer.unread_end is not None and not has_conversations(experiment, context):
            text = f"{reward.model} pads with {scorer.unread_end}, so it never reads that token at the end of a text: "
            text += "with_eos has no effect, and it cannot tell a cut answer from a finished one"
            context.notices.append(Notice(f"rewards.{name}", text))


def _tokenizer_of(folder: Path) -> TokenizerFiles | None:
    try:
        return read_tokenizer(folder, where="rewards")
    except UserError:
        return None  # the run reports what is wrong with it


def is_chat_model(folder: Path, tokenizer: TokenizerFiles | None) -> bool:
    """Return whether a model is made for conversations: it has a chat template, and no run trained it on bare texts."""
    from rlhf_cli.runs.text_endings import trained_on_conversations

    template = tokenizer.chat_template if tokenizer is not None else None
    if template is None or template == read_tokenizer(EMBEDDED_TOKENIZER, where="model.path").chat_template:
        return False  # the embedded models have a template, but were trained on bare text
    recorded = trained_on_conversations(folder)
    if recorded is not None:
        return recorded
    run = run_of(folder.resolve())
    return run is None or isinstance(section(run.read_config(), "data").get("prompt"), list)
