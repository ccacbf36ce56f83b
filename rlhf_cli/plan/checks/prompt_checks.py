"""Check that the policy can read the rows, their images too, and has room to answer."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, cast

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.suggestions import as_typed
from rlhf_cli.config.trl_args import expected_instead, fields_of, generation_options
from rlhf_cli.data.dialogues import ANSWERS, THOUGHTS
from rlhf_cli.data.images import images_of, in_parts
from rlhf_cli.data.model_limits import TEMPLATE_ERRORS, Write, check_overlong, check_rendering, prompt_limit
from rlhf_cli.data.rows import DIALOGUES, Messages, RowTable
from rlhf_cli.errors import ConfigError, DataError, ModelError, UserError, in_a_line
from rlhf_cli.models import tokenizer_files as files
from rlhf_cli.models.foreign_files import variable_hint
from rlhf_cli.models.model_folders import describe_model
from rlhf_cli.plan.checks.facts import Check, DataFacts, Findings, Subject
from rlhf_cli.plan.prompt_room import served_tokens
from rlhf_cli.plan.row_tokens import SPECIAL, asking_columns, counter_of, rendered
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.runs.run_folder import run_of
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.tables.trl_values import STOP_STRINGS
from rlhf_cli.text.json_values import JsonTree, section, without_images
from rlhf_cli.text.suggest import nearest


def tokenizer_problems(subject: Subject, data: DataFacts) -> Check[files.TokenizerFiles | None]:
    """Yield an error if the tokenizer has no end-of-text token or chat template, or ids beyond the model's vocabulary.
    Return the tokenizer, None if its files are not on this machine.
    """
    experiment, model = subject.experiment, subject.experiment.model
    where = subject.where("model.tokenizer" if model.tokenizer else "model.path")
    if model.tokenizer is not None:
        describe_model(model.tokenizer, where=where, needs_model=False)
    template = model.chat_template
    if (other := experiment.trainer.args.get("chat_template_path")) is not None:
        # `prepare` has put a Jinja file of that name into `model.chat_template`, so this is a tokenizer.
        place, brought = subject.where("trainer.args.chat_template_path"), Path(str(other)).expanduser()
        describe_model(str(other), where=place, needs_model=False)
        template = files.read_tokenizer(brought, where=place).chat_template if brought.is_dir() else None
    is_embedded = model.build is not None and model.tokenizer is None
    folder = files.EMBEDDED_TOKENIZER if is_embedded else subject.folder_of(model.tokenizer or model.path)
    if folder is None:
        return None
    tokenizer = files.read_tokenizer(folder, where=where, template=template, response_template=model.response_template)
    if is_embedded:
        return tokenizer
    tokenizer.lengths([""], special_tokens=False)  # raises if its file is malformed
    if tokenizer.surely_lacks("eos_token"):
        yield files.no_end_token(folder, where=where)
    has_files = any((folder / name).is_file() for name in files.TOKENIZER_FILES)  # else another check reports it
    if tokenizer.chat_template is None and has_conversations(experiment, data) and has_files:
        yield files.no_chat_template(folder, where=where)
    # Spare added tokens beyond the vocabulary, which no text produces (Gemma 3's, for images), do not count.
    config, tokens = subject.config_below(model.path or str(files.EMBEDDED_TOKENIZER)), tokenizer.tokens
    size = files.vocab_size_of(config)
    beyond = [token for token, number in tokens.items() if size is not None and number >= size]
    spare = {str(entry["content"]) for entry in tokenizer.added_tokens} if beyond else set()
    spare -= {tokenizer.special(name) or "" for name in SPECIAL[:3]}
    if beyond := [token for token in beyond if token not in spare]:
        what = "the tokenizer has tokens that the model does not know"
        got = f"{len(beyond)} tokens of {tokenizer.folder} are {size} and more, {beyond[0]!r} is {tokens[beyond[0]]}"
        expected = f"ids below the model's vocab_size of {size}"
        advice = "use the tokenizer of the model: ~model.tokenizer, or model.tokenizer=FOLDER_OR_HUB_ID"
        yield ModelError(what, where=where, got=got, expected=expected, advice=advice)
    return tokenizer


def text_argument_problems(subject: Subject) -> Findings:
    """Yield an error for special tokens that the vocabulary lacks, and for stop strings that nothing reads."""
    experiment, tokenizer = subject.experiment, subject.tokenizer
    args, where = experiment.trainer.args, subject.where
    known = set[str]()  # chat_template_path brings tokens of its own
    if tokenizer is not None and "chat_template_path" not in args:
        added = section(tokenizer.settings, "added_tokens_decoder").values()
        known = {str(entry["content"]) for entry in added if isinstance(entry, dict)} | {*tokenizer.tokens}
    for name in ("eos_token", "pad_token") if known else ():
        token, key = args.get(name), f"trainer.args.{name}"
        if isinstance(token, str) and token not in known:
            what, expected = f"the tokenizer does not have the {name}", "a token of its vocabulary"
            yield ModelError(what, where=where(key), got=repr(token), expected=expected, hint=f"'~{key}'")
    key, right = "trainer.args.generation_kwargs", STOP_STRINGS.get(experiment.launch.rollout)
    given = section(cast(JsonTree, args), "generation_kwargs")
    if isinstance(args.get("generation_kwargs"), str):
        expected = "a mapping, such as {top_p: 0.9}"
        yield ConfigError(f"wrong value for {key}", where=where(key), got=args["generation_kwargs"], expected=expected)
    readable = generation_options() if experiment.launch.rollout == "hf" else {}
    for name, value in given.items() if readable else ():
        below, takes = f"{key}.{name}", expected_instead(readable[name], value) if name in readable else None
        what, hint, close = f"transformers does not read {below}", f"'~{below}'", nearest(name, readable)
        if name == "return_dict_in_generate" and value:
            takes = "false: trainers read the tokens alone"
        if takes is not None:
            what = f"wrong value for {below}"
        elif close:
            hint += f" {key}.{close}={value}"
        if takes or name not in {*readable, *STOP_STRINGS.values()}:
            yield ConfigError(what, where=where(below), got=str(value), expected=takes, hint=hint)
    for name in dict.fromkeys(STOP_STRINGS.values()):
        if name != right and given.get(name):
            text = json.dumps(given[name], ensure_ascii=False)
            what = f"launch.rollout={experiment.launch.rollout} does not read {key}.{name}"
            expected = f"{right}, its name there" if right else "launch.rollout=hf, or vLLM"
            hint = f"'~{key}.{name}' '{key}.{right}={text}'" if right else "launch.rollout=hf"
            yield ConfigError(what, where=where(key), got=text, expected=expected, hint=hint)


def template_problems(subject: Subject, data: DataFacts, used: frozenset[str]) -> Findings:
    """Yield an error for the first row of each source that the chat template cannot render."""
    key, tokenizer, reads_images = "trainer.args.chat_template_kwargs", subject.tokenizer, subject.reads_images
    settings = section(cast(JsonTree, subject.experiment.trainer.args), "chat_template_kwargs")
    if tokenizer is None or tokenizer.chat_template is None or not used:
        return
    try:
        known = files.variables_of(tokenizer.chat_template)
    except TEMPLATE_ERRORS:
        known = set(settings)  # the first row fails, too
    for name in [name for name in settings if name not in known]:
        what, close = f"the chat template does not read {key}.{name}", nearest(name, sorted(known))
        hint = f"'~{key}.{name}'" + (f" {key}.{close}={as_typed(settings[name])}" if close else "")
        yield ConfigError(what, where=subject.where(f"{key}.{name}"), expected=", ".join(sorted(known)), hint=hint)

    def write(messages: Messages, variables: Mapping[str, object]) -> str:
        return rendered(in_parts(messages) if reads_images else messages, tokenizer, settings | dict(variables))

    for read in data.sources:
        row = read.rows[0] if read.rows and "chat_template_kwargs" in subject.experiment.trainer.row.along else {}
        given = row.get("chat_template_kwargs")
        of_row = {name for name, value in given.items() if value is not None} if isinstance(given, dict) else set()
        if unread := sorted(of_row - known):
            text = f"the chat template does not read {', '.join(unread)} of the rows' chat_template_kwargs"
            yield Notice(read.source.name, f"{text}; it reads {', '.join(sorted(known))}")
        try:
            if read.rows is not None and used <= set(read.columns):
                check_rendering(read.rows, sorted(used), write, name=read.source.name)
                yield from _unread_thoughts(read.rows, sorted(used), write, read.source.name)
                if subject.experiment.trainer.row.reads_prompts:
                    yield from _unbegun_answer(read.rows, write, read.source.name)
        except UserError as error:
            is_argument = "chat_template_kwargs" in fields_of(subject.experiment.trainer.trl)
            error.hint = variable_hint(str(error.got), is_argument=is_argument) + (error.hint or "")
            yield read.source.with_file(error)


def _unbegun_answer(rows: RowTable, write: Write, name: str) -> Iterator[Notice]:
    """Yield a notice if the template begins no answer, and writes something between a prompt and its answer."""
    asked = rows[0].get("prompt") if len(rows) else None
    if not isinstance(asked, list):
        return
    with suppress(*TEMPLATE_ERRORS):  # it may not take an answer behind such a prompt
        prompt, whole = (write(asked, {"add_generation_prompt": begins}) for begins in (True, False))
        answered = write([*asked, {"role": "assistant", "content": "q1mark"}], {"add_generation_prompt": False})
        begun = answered.partition("q1mark")[0]
        if prompt == whole and begun.startswith(prompt) and (left := begun.removeprefix(prompt).strip()):
            text = f"the chat template does not read add_generation_prompt: the model has to write {left!r} itself"
            yield Notice(name, f"{text}, before its answer")


def _unread_thoughts(rows: RowTable, columns: list[str], write: Write, name: str) -> Iterator[Notice]:
    """Yield a notice if the template leaves out the reasoning of answers of the first rows, in a key or in <think>."""
    for column in (column for column in columns if column in (*DIALOGUES, *ANSWERS)):
        for row in (rows[place] for place in range(min(200, len(rows)))):
            *before, last = cast(
                "list[dict[str, object]]", row[column] if row[column] and isinstance(row[column], list) else [{}]
            )
            thoughts = dict.fromkeys((key for key in THOUGHTS if last.get(key)), "q1mark")
            in_content, end, _ = str(last.get("content")).partition("</think>")
            if end and (inner := in_content.rpartition("<think>")[2].strip()):
                thoughts["what is in <think>"] = inner
            if thoughts:
                asked = row["prompt"] if column in ANSWERS and isinstance(row.get("prompt"), list) else []
                marked = last | {key: thoughts[key] for key in THOUGHTS if key in thoughts}
                variables = cast("Mapping[str, object]", row.get("chat_template_kwargs") or {})
                written = write([*cast("Messages", asked), *before, marked], variables)
                if unread := [key for key, text in thoughts.items() if text not in written]:
                    text = f"the chat template does not write {' or '.join(unread)}: the model will not learn it"
                    yield Notice(name, f"{column}: {text}")
                break


def room_for_answers_problems(subject: Subject, data: DataFacts) -> Check[tuple[int | None, DataFacts]]:
    """Yield an error if a prompt leaves no room for an answer, or a notice how many are dropped or cut. Return the most
    tokens of a training prompt, None if no prompt is too long, and the facts without the rows that are dropped.
    """
    experiment, build = subject.experiment, subject.experiment.model.build
    if not experiment.trainer.row.reads_prompts or subject.tokenizer is None:
        return None, data
    read = build.context_tokens if build is not None else files.context_of(subject.config_below(experiment.model.path))
    where = subject.where("trainer.args.max_completion_length")
    answer = experiment.trainer.setting("max_completion_length")
    limit, bound = prompt_limit(read, served_tokens(experiment), answer, where=where), None
    if limit is None:
        return None, data
    policy, counter = experiment.data.overlong_prompts, counter_of(subject)
    for source in data.sources:
        # A processor alone knows how many tokens an image has.
        has_images = subject.reads_images and not set(IMAGES).isdisjoint(source.columns)
        if counter is None or source.rows is None or "prompt" not in source.columns or has_images:
            continue
        counts = counter.prompts(asking_columns(source.rows), limit)
        if not (long := {row: tokens for row, tokens in enumerate(counts) if tokens > limit}):
            continue
        try:
            described = check_overlong(source.rows, long, limit, policy=policy, name=source.source.name)
        except UserError as error:
            yield error
        else:
            bound = limit
            data = data.without(source, long if policy == "drop" else (), experiment)
            yield Notice("prompts", f"{source.source.name}: {described}")
    return bound, data


def has_conversations(experiment: Experiment, data: DataFacts) -> bool:
    """Return whether the rows are conversations, judging by the prompt template, or else by the first row."""
    if experiment.data.prompt is not None:
        return not isinstance(experiment.data.prompt, str)
    read = {"prompt"} | {name for names in experiment.trainer.row.learns_from for name in names}
    first = [(source.rows[0], read & set(source.columns)) for source in data.sources if source.rows]
    values = [row[name] for row, columns in first for name in sorted(columns)]
    return any(isinstance(value, list) and value and isinstance(value[0], dict) for value in values)


def format_notices(subject: Subject, data: DataFacts) -> Findings:
    """Yield a notice for a chat model that gets bare prompts, for a reward model that scores an untrained format, and
    for one that reads the end of a text as padding, so that it cannot tell a cut-off answer.

    A chat template alone does not make a chat model, so a model of our own runs counts as one only if that run's
    rows were messages, as the model's folder records. If the format of the rows is not known yet, yield no notice.
    """
    from rlhf_cli.runs.reward_records import trained_on_conversations, trained_with_eos

    experiment, trainer, tokenizer = subject.experiment, subject.experiment.trainer, subject.tokenizer
    if isinstance(prompt := experiment.data.prompt, str) and re.search(r"\\n(?![a-z])", prompt):
        text = f"{subject.where('data.prompt')} has a backslash and an n, not a new line"
        yield Notice("data.prompt", f"{text}; bash makes one in $'data.prompt=\"...\\n...\"'")
    end, given = tokenizer and tokenizer.unread_end, trainer.args.get("pad_token")
    if "reward_model" in trainer.row.sections and tokenizer is not None and end and given in (None, end):
        text = f"{end} both ends and pads texts: the model never reads it, and cannot tell a cut-off answer"
        if given is None and (other := tokenizer.other_padding) is not None:
            text = f"pads with {other}, because the tokenizer's padding {end} also ends texts"
        yield Notice("trainer.args.pad_token", text)
    if experiment.data.prompt is None and not any(read.rows for read in data.sources):
        return
    is_chat, policy = has_conversations(experiment, data), subject.folder_of(experiment.model.path)
    bare = "has a chat template, but the rows are bare text, which it does not format: write them as messages"
    has_ids, has_prompts = (all(name in read.columns for read in data.training) for name in ("input_ids", "prompt"))
    if policy is not None and not is_chat and not has_ids and is_chat_model(policy, tokenizer):
        as_messages = "prompts and answers, in the file"
        if trainer.row.generates or has_prompts:  # a template makes messages of prompts, and answers follow them
            as_messages = "such as data.prompt='[{role: user, content: \"{prompt}\"}]'"
        yield Notice("model", f"the model {bare}, {as_messages}, unless it is a base model")
    if policy is not None and is_chat and trained_on_conversations(policy) is False:
        yield Notice("model", "the model was trained on plain texts, but the rows are conversations")
    for name, reward in experiment.rewards.items():
        if (folder := subject.folder_of(reward.model)) is None:
            continue
        scorer = None
        with suppress(UserError):  # the run reports what is wrong with it
            scorer = files.read_tokenizer(folder, where="rewards")
        on_plain_texts = trained_with_eos(folder) is True or trained_on_conversations(folder) is False
        if is_chat and on_plain_texts:
            yield Notice(f"rewards.{name}", f"{reward.model} was trained on plain texts, but would score conversations")
        elif not is_chat and not on_plain_texts and is_chat_model(folder, scorer):
            yield Notice(f"rewards.{name}", f"{reward.model} {bare}")
        if scorer is not None and scorer.unread_end is not None and not is_chat:
            text = f"{reward.model} pads with {scorer.unread_end}, so it never reads that token at the end of a text: "
            yield Notice(f"rewards.{name}", text + "with_eos has no effect, and it cannot tell a cut-off answer")


def is_chat_model(folder: Path, tokenizer: files.TokenizerFiles | None) -> bool:
    """Return whether a model is made for conversations: it has a chat template, and no run trained it on bare texts."""
    from rlhf_cli.runs.reward_records import trained_on_conversations

    if tokenizer is None or tokenizer.chat_template is None:
        return False
    if (recorded := trained_on_conversations(folder)) is not None:
        return recorded
    if (run := run_of(folder.resolve())) is not None:
        return isinstance(section(run.read_config(), "data").get("prompt"), list)
    # the embedded models have a template, but were trained on bare text
    return tokenizer.chat_template != files.read_tokenizer(files.EMBEDDED_TOKENIZER, where="model.path").chat_template


_DECODED = 64  # rows of a source whose images are decoded to their ends; of others, only the beginning is read


def image_problems(subject: Subject, data: DataFacts) -> Findings:
    """Yield an error for all that keeps a model that reads images from training on them; `row_problems` refuses them
    for a model that does not.
    """
    experiment, trainer, where = subject.experiment, subject.experiment.trainer, subject.where
    column = next((name for name in IMAGES if any(name in read.columns for read in data.sources)), None)
    if column is None or not subject.reads_images:
        return
    if trainer.has_critic or "images" not in trainer.row.along:
        what, expected = f"trainer={trainer.name} does not train on images", "trainer=grpo, rloo, sft or dpo"
        advice = f"take such a trainer; data.rename.picture={column} reads the texts alone"
        yield ConfigError(what, where="data", got=column, expected=expected, advice=advice)
        return
    refused = {"packing", "padding_free", "precompute_ref_log_probs"}
    instead = {f"trainer.args.{name}": "false" for name in sorted(refused) if trainer.setting(name) is True}
    instead |= {"launch.rollout": "hf"} if experiment.launch.rollout == "continuous" else {}
    instead |= {"sampling.keep_groups": "null"} if experiment.sampling.keep_groups is not None else {}
    for key, value in instead.items():
        yield ConfigError(f"{key} takes no images", where=where(key), got=column, hint=f"{key}={value}")
    reads_videos = "video_token_id" in subject.config_below(experiment.model.path)
    for module, package in [("PIL", "pillow"), *[("torchvision", "torchvision")] * reads_videos]:
        if importlib.util.find_spec(module) is None:
            what = f"the model's processor needs the package {package}, which is not installed"
            yield ConfigError(what, where=where("model.path"), hint=f"pip install {package}")
    for read in data.sources if importlib.util.find_spec("PIL") is not None else ():
        rows = read.rows or RowTable([], [])
        for number in range(len(rows)):
            if wrong := _wrong_images(rows[number], subject.tokenizer, decodes=number < _DECODED):
                place = f"{read.source.name}, row {number + 1} (the first row is 1)"
                yield read.source.with_file(DataError(wrong[0], where=place, got=wrong[1], expected=wrong[2]))
                break


def _wrong_images(row: Mapping[str, Any], tokenizer: files.TokenizerFiles | None, *, decodes: bool) -> tuple[str, ...]:
    """Return the problem with the images of a row, their value and the expected one; empty without a problem."""
    import PIL.Image

    images, asked = images_of(row), row.get("prompt", row.get("messages", row.get("conversations")))
    for image in images if isinstance(row.get("images", []), list) else [row["images"]]:
        stored = image if isinstance(image, Mapping) else {"path": image}
        try:
            with PIL.Image.open(stored["path"] if stored.get("bytes") is None else BytesIO(stored["bytes"])) as opened:
                if decodes:
                    opened.load()
        except Exception as error:
            expected = "a path, seen from the folder of the data file, or the bytes of a whole image in Parquet"
            return "an image cannot be read", f"{in_a_line(error):.200}, of {without_images(image)!r:.80}", expected
    if not isinstance(asked, list):
        return "images need messages", f"{asked!r:.80}", "data.prompt='[{role: user, content: \"{prompt}\"}]'"
    messages = in_parts(asked, len(images))
    texts = [{**one, "content": [part for part in one["content"] if part["type"] != "image"]} for one in messages]
    places = sum(len(one["content"]) - len(text["content"]) for one, text in zip(messages, texts, strict=True))
    if places != len(images):
        return "the messages have places for another number of images", f"{places} for {len(images)}", "one for each"
    try:
        if images and tokenizer is not None and rendered(messages, tokenizer, {}) == rendered(texts, tokenizer, {}):
            return "the chat template leaves out the image", f"{asked!r:.80}", "a template for images"
    except TEMPLATE_ERRORS as error:
        return "the chat template does not take messages with images", repr(error), "a template for images"
    return ()
