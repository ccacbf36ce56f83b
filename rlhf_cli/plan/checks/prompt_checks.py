"""Checks that the policy can read the rows and has room to answer them, by the files of its tokenizer alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting
from rlhf_cli.data.overlong_prompts import describe_overlong, no_cut_of_conversations, refuse_overlong
from rlhf_cli.data.row_table import RowTable
from rlhf_cli.data.rows import values_of
from rlhf_cli.errors import ModelError, UserError, in_a_line
from rlhf_cli.json_values import JsonTree
from rlhf_cli.models.config_json import context_of, vocab_size_of
from rlhf_cli.models.foreign_files import failing_template
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER, TokenizerFiles, read_tokenizer
from rlhf_cli.plan.checks.known import Known, Seen
from rlhf_cli.plan.prompt_room import prompt_limit
from rlhf_cli.plan.run_plan import Notice

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_ADDED = 8
"""More tokens than are put around a plain text."""


def tokenizer_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield what the tokenizer lacks: its end of a text, a template for conversations, a place in the vocabulary."""
    model = experiment.model
    key = "model.tokenizer" if model.tokenizer else "model.path"
    where = composed.origins.where(key)
    folder = known.folder_of(model.tokenizer or model.path)
    if model.build is not None and model.tokenizer is None:
        folder = EMBEDDED_TOKENIZER
    if folder is None:
        return
    known.tokenizer = tokenizer = read_tokenizer(folder, where=where)
    if folder == EMBEDDED_TOKENIZER:
        return
    if tokenizer.surely_lacks("eos_token"):
        yield ModelError(
            "the tokenizer has no token for the end of a text: nothing could end, and nothing be padded",
            where=where,
            got=f"{folder}: eos_token is not set",
            expected="eos_token in its tokenizer_config.json",
            hint="model.tokenizer=FOLDER_OR_HUB_ID",
        )
    # TRL puts the template of `chat_template_path` in the place of the tokenizer's.
    has_template = tokenizer.chat_template is not None or experiment.trainer.args.get("chat_template_path") is not None
    if not has_template and has_conversations(experiment, known):
        yield ModelError(
            "the model has no chat template, and the rows are conversations",
            where=where,
            got=str(folder),
            expected="a chat_template.jinja, or chat_template in tokenizer_config.json",
            hint="plain prompts (data.prompt='{question}'), or model.tokenizer=FOLDER_OR_HUB_ID of its chat model",
        )
    if experiment.trainer.args.get("chat_template_path") is None:
        yield from _failing_template(tokenizer, known, where)
    tokenizer.lengths([""], special_tokens=False)  # raises what is wrong with its file
    yield from _too_many_tokens(tokenizer, known.config_of(experiment.model.path), where)


def room_for_answers_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield that prompts leave no room to answer them, or note how many `data.overlong_prompts` leaves out or cuts."""
    if not experiment.trainer.row.generates:
        return
    model, args = experiment.model, experiment.trainer.args
    read = model.build.context_tokens if model.build is not None else context_of(known.config_of(experiment.model.path))
    completion = setting(known.trainer, args, "max_completion_length")
    where = composed.origins.where("trainer.args.max_completion_length")
    limit = prompt_limit(read, args.get("vllm_max_model_length"), completion, where=where)
    if limit is None or known.tokenizer is None:
        return
    settings = args.get("chat_template_kwargs")
    for seen in known.sources:
        if seen.rows is None or "prompt" not in seen.columns:
            continue
        overlong = _overlong(seen.rows, limit, known.tokenizer, settings if isinstance(settings, dict) else {})
        policy = experiment.data.overlong_prompts
        if not overlong:
            continue
        why = f"at most {limit}, what the model reads less trainer.args.max_completion_length"
        name, rows = seen.source.name, len(seen.rows)
        refused = refuse_overlong(overlong, limit, policy=policy, rows=rows, why=why, name=name)
        if (
            refused is None
            and policy == "truncate"
            and any(isinstance(seen.rows[row]["prompt"], list) for row in overlong)
        ):
            refused = no_cut_of_conversations(overlong, rows, name)
        if refused is not None:
            yield refused
        else:
            known.most_prompt_tokens = limit
            known.notices.append(Notice("prompts", f"{name}: {describe_overlong(overlong, rows, limit, policy)}"))


def _overlong(rows: RowTable, limit: int, tokenizer: TokenizerFiles, settings: Mapping[str, object]) -> dict[int, int]:
    """Return the tokens of every prompt that has more than `limit` of them; empty where they cannot be counted here."""
    texts, is_chat = dict[int, str](), False
    for row, prompt in enumerate(values_of(rows, "prompt")):
        if isinstance(prompt, list):
            is_chat = True
            prompt = _written_out(cast("Sequence[Mapping[str, object]]", prompt), tokenizer, settings)
            if prompt is None:
                return {}
        # A token is at least a byte: most prompts need not be counted.
        if isinstance(prompt, str) and len(prompt.encode()) + _ADDED > limit:
            texts[row] = prompt
    lengths = tokenizer.lengths(list(texts.values()), special_tokens=not is_chat) if texts else []
    if lengths is None:
        return {}
    return {row: length for row, length in zip(texts, lengths, strict=True) if length > limit}


def _written_out(
    messages: Sequence[Mapping[str, object]], tokenizer: TokenizerFiles, settings: Mapping[str, object]
) -> str | None:
    import jinja2  # only conversations need it

    try:
        return _rendered(messages, tokenizer, settings)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError):
        return None  # what a template makes of such a conversation is for the run to say


def _rendered(
    messages: Sequence[Mapping[str, object]], tokenizer: TokenizerFiles, settings: Mapping[str, object]
) -> str:
    from rlhf_cli.models.chat_rendering import render_chat

    special = {name: token for name in _SPECIAL if (token := tokenizer.special(name)) is not None}
    return render_chat(tokenizer.chat_template or "", messages, special, settings)


def _failing_template(tokenizer: TokenizerFiles, known: Known, where: str) -> Iterator[UserError]:
    """Yield that the chat template is malformed, or does with a first prompt what its sandbox forbids."""
    seen = next((seen for seen in known.sources if seen.rows and "prompt" in seen.columns), None)
    prompt = next(iter(values_of(seen.rows, "prompt")), None) if seen is not None and seen.rows is not None else None
    if not isinstance(prompt, list) or tokenizer.chat_template is None:
        return
    import jinja2  # only conversations need it

    try:
        _rendered(cast("Sequence[Mapping[str, object]]", prompt), tokenizer, {})
    except (jinja2.TemplateSyntaxError, jinja2.exceptions.SecurityError, ArithmeticError) as error:
        yield failing_template(in_a_line(error), where=f"{where}: {tokenizer.folder}")
    except (jinja2.TemplateError, TypeError, ValueError):
        return  # perhaps the settings that the run gives it mend this


def has_conversations(experiment: Experiment, known: Known) -> bool:
    """Return whether the rows are conversations, by the template of the prompt, else by the first of them."""
    if experiment.data.prompt is not None:
        return not isinstance(experiment.data.prompt, str)
    return any(_has_messages(seen, experiment) for seen in known.sources)


def _has_messages(seen: Seen, experiment: Experiment) -> bool:
    columns = {"prompt"} | {name for names in experiment.trainer.row.learns_from for name in names}
    if seen.rows is None or len(seen.rows) == 0:
        return False
    values = [seen.rows[0][name] for name in sorted(columns & set(seen.columns))]
    return any(isinstance(value, list) and value and isinstance(value[0], dict) for value in values)


def _too_many_tokens(tokenizer: TokenizerFiles, config: JsonTree, where: str) -> Iterator[UserError]:
    """Yield that the tokenizer writes tokens the model has no row for.

    Some list spare tokens beyond the vocabulary that no text is made of (Gemma 3's, for pictures): what counts is the
    vocabulary itself, and the tokens that every text is given.
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
            hint="the tokenizer that belongs to the model: ~model.tokenizer, or model.tokenizer=FOLDER_OR_HUB_ID",
        )
