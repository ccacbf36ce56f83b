"""Check model folders before they are loaded: which kind of model they hold, and what it can be used for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_cli.errors import ModelError, RlhfError, with_causes
from rlhf_cli.models import tokenizer_files as files
from rlhf_cli.models.foreign_files import naming_foreign_files
from rlhf_cli.models.weight_shapes import stored_shapes, unlike_config
from rlhf_cli.text.json_values import JsonTree

_HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
_GENERATOR = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration)$")
EXPECTED_REWARD_MODEL = "a sequence-classification checkpoint with num_labels 1"
EXPECTED_CRITIC = (
    "a reward model (sequence classification) or a saved critic (token classification), with one label, or a language "
    "model, of any size"
)
_JSON_FILES = ("*_config.json", "*_map.json", "added_tokens.json", "*.index.json")
"""Files that transformers reads; damaged ones are tracebacks of its own."""


def is_hub_id(path: str) -> bool:
    """Return whether `path` has the form of a hub id and is not a relative path."""
    return _HUB_ID.match(path) is not None and not path.startswith(".")


def describe_model(path: str, *, where: str, needs_tokenizer: bool = True, needs_model: bool = True) -> str:
    """Describe a model in words: `PATH (Qwen3ForCausalLM)`, `PATH (adapter)` or `ID (hub)`.

    `where` is the config key for errors. Raise ModelError if `path` is a folder without what is needed in it, a model
    or a tokenizer, or neither a folder nor like a hub id.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if not is_hub_id(path):
            page = re.match(r"https?://(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)", path)
            expected = "a folder with config.json, run:NAME, or a hub id such as Qwen/Qwen3-0.6B"
            expected += ", or model=tiny" if where.startswith("model.path") else ""
            hint = f"{where.partition(' ')[0]}={page[1]}" if page is not None else None
            got, what = f"{path} (looked at {folder.resolve()})", "there is no such model folder"
            raise ModelError(what, where=where, got=got, expected=expected, hint=hint)
        return f"{path} (hub)"
    config = folder / "config.json"
    adapter = folder / "adapter_config.json"
    if needs_model and not (config.is_file() or adapter.is_file()):
        # the hub's cache, and what trainers leave; a longer name has a later step
        patterns = ("snapshots/*", "checkpoint-*", "*/model", "checkpoints/*", "model")
        found = [{file.parent for file in folder.glob(f"{pattern}/*config.json")} for pattern in patterns]
        inside = [one for below in found for one in sorted(below, key=lambda one: (len(one.name), one))]
        inside = [folder.parent] if folder.is_file() and (folder.parent / "config.json").is_file() else inside
        expected = "a folder that save_pretrained made, with config.json, weights and tokenizer files"
        hint = f"{where.partition(' ')[0]}{' ' if where.startswith('-') else '='}{inside[-1]}" if inside else None
        what, got = "the model folder holds no model", f"{folder.resolve()}: {_listing(folder)}"
        raise ModelError(what, where=where, got=got, expected=expected, hint=hint)
    if needs_tokenizer and not any((folder / name).is_file() for name in files.TOKENIZER_FILES):
        what, got = "the model folder holds no tokenizer", f"{folder.resolve()}: {_listing(folder)}"
        expected = "one of " + ", ".join(files.TOKENIZER_FILES)
        hint = f"model.tokenizer={files.adapter_base(folder, where) or 'FOLDER_OR_HUB_ID'}"
        raise ModelError(what, where=where, got=got, expected=expected, hint=hint)
    for file in sorted(file for pattern in _JSON_FILES for file in folder.glob(pattern)):
        files.read_json(file, where)
    if not config.is_file():
        if needs_model and (base := files.adapter_base(folder, where)) is not None:
            named = f"{where}: the base that {adapter} names"
            describe_model(base, where=named, needs_tokenizer=False, needs_model=False)
        return f"{path} (adapter)"
    content = files.read_json(config, where)
    if (other := unlike_config(stored_shapes(folder) or [], files.language_part(content))) is not None:
        what, got = "the weights of the model do not fit its config.json", f"{folder.resolve()}: {other}"
        expected, advice = "files that were saved together", "copy or download the folder again"
        raise ModelError(what, where=where, got=got, expected=expected, advice=advice)
    return f"{path} ({next(iter(files.architectures_of(content)), content.get('model_type', 'unknown'))})"


def describe_reward_model(path: str, *, where: str, conversational: bool = False) -> str:
    """Describe a reward model: `PATH (LlamaForSequenceClassification)`, `PATH (adapter of BASE)` or `ID (hub)`.

    Do not look up a hub id. Raise ModelError like describe_model, and also if a folder holds a generator, a classifier
    with another number of labels or an adapter trained as a language model, or if `conversational` prompts have no chat
    template. Errors in the weights (a missing head) are only detected when they are loaded.
    """
    folder = Path(path).expanduser()
    adapter = folder / "adapter_config.json"
    if not adapter.is_file():
        described = describe_model(path, where=where)
        if folder.is_dir():
            config = files.read_json(folder / "config.json", where)
            check_reward_config(files.architectures_of(config), files.num_labels_of(config), got=path, where=where)
            _check_chat_template([folder], conversational, where)
        return described
    config = files.read_json(adapter, where)
    base = str(config.get("base_model_name_or_path"))
    describe_model(base, where=f"{where}: the base that {adapter} names", needs_tokenizer=False)
    if config.get("task_type") == "CAUSAL_LM":
        what, got = "this is an adapter of a language model, not a reward model", f"{path}: task_type CAUSAL_LM"
        expected = f"an adapter of {EXPECTED_REWARD_MODEL}: task_type SEQ_CLS"
        raise ModelError(what, where=where, got=got, expected=expected)
    if Path(base).expanduser().is_dir():
        _check_chat_template([folder, Path(base).expanduser()], conversational, where)
    return f"{path} (adapter of {base})"


def is_reward_model(path: str, *, where: str) -> bool:
    """Return whether a model folder contains a reward model: a sequence classifier, or an adapter of one.

    Raise ModelError if there is no model, or neither a classifier nor a language model.
    """
    describe_model(path, where=where, needs_tokenizer=False)
    folder = Path(path).expanduser()
    if (folder / "adapter_config.json").is_file():
        return files.read_json(folder / "adapter_config.json", where).get("task_type") == "SEQ_CLS"
    name = next(iter(files.architectures_of(files.read_json(folder / "config.json", where))), "no architecture")
    if not name.endswith("ForSequenceClassification") and not _GENERATOR.search(name):
        what, got = "this is neither a reward model nor a language model", f"{path}: {name}"
        raise ModelError(what, where=where, got=got, expected=f"a causal language model, or {EXPECTED_REWARD_MODEL}")
    return name.endswith("ForSequenceClassification")


def check_reward_config(architectures: Sequence[str], num_labels: int | None, *, got: str, where: str) -> None:
    """Raise ModelError if a config, of the model `got`, is not a reward model's; `num_labels` is None if not given."""
    name = str(architectures[0]) if architectures else "no architecture"
    if _GENERATOR.search(name):
        what = "this is a causal checkpoint, a language model, not a reward model"
        advice = f"train one from it: rlhf train trainer=reward data=... model=local model.path={got}"
        raise ModelError(what, where=where, got=f"{got}: {name}", expected=EXPECTED_REWARD_MODEL, advice=advice)
    if num_labels not in (1, None):
        what, got = "a reward model has one label", f"{got}: {name}, num_labels {num_labels}"
        raise ModelError(what, where=where, got=got, expected=EXPECTED_REWARD_MODEL)


def describe_critic(path: str, policy: str, tokenizer: str | None, *, where: str) -> str:
    """Describe a critic: `PATH (LlamaForTokenClassification)`. Check a folder, but not a hub id.

    `policy` and `tokenizer` are folders or hub ids; None for the policy's own tokenizer. Raise ModelError like
    describe_model, and also if the folder holds no reward model, critic or language model, or one with another
    vocabulary. Its size may differ from the policy's.
    """
    folder = Path(path).expanduser()
    if (folder / "adapter_config.json").is_file():
        described = describe_reward_model(path, where=where)
        base = str(files.read_json(folder / "adapter_config.json", where).get("base_model_name_or_path"))
        file = Path(base).expanduser() / "config.json"
    else:
        described = describe_model(path, where=where, needs_tokenizer=False)
        file = folder / "config.json"
        if file.is_file():
            _check_critic_config(files.read_json(file, where), got=path, where=where)
    configs = file, Path(policy).expanduser() / "config.json"
    sizes = [files.vocab_size_of(files.read_json(config, where)) if config.is_file() else None for config in configs]
    vocabularies = [Path(place).expanduser() / "tokenizer.json" for place in (path, tokenizer or policy)]
    if all(vocabulary.is_file() for vocabulary in vocabularies):
        read, written = (files.token_ids(files.read_json(vocabulary, where)) for vocabulary in vocabularies)
        refuse_other_tokens(read, written, sizes[0], where=where)
    elif None not in sizes and sizes[0] != sizes[1]:
        raise _other_tokens(f"vocab_size {sizes[0]}; the policy has {sizes[1]} tokens", where)
    return described


def refuse_other_tokens(
    read: Mapping[str, int], written: Mapping[str, int], vocab_size: int | None, *, where: str
) -> None:
    """Compare a critic's tokens (`read`) with its policy's (`written`), both as token -> id.

    Raise ModelError if a token of the policy has another id in the critic, or none. A critic may have additional
    tokens. Its embedding may be smaller than the policy's if the missing rows have no token: vocabularies are padded,
    each to its own multiple.
    """
    if others := sorted((number, token) for token, number in written.items() if read.get(token) != number):
        number, token = others[0]
        got = f"the policy's id of {token!r} is {number}, the critic's {read.get(token, 'unknown')}"
        raise _other_tokens(got, where)
    if vocab_size is not None and any(number >= vocab_size for number in written.values()):
        raise _other_tokens(f"vocab_size {vocab_size}; the policy has {max(written.values()) + 1} tokens", where)


def is_language_model(config: JsonTree) -> bool:
    """Return whether a model's config describes a generator."""
    return any(_GENERATOR.search(name) for name in files.architectures_of(config))


def _check_critic_config(config: JsonTree, *, got: str, where: str) -> None:
    name = next(iter(files.architectures_of(config)), "no architecture")
    num_labels = files.num_labels_of(config)
    is_scorer = name.endswith(files.CLASSIFIERS)
    if is_language_model(config) or (is_scorer and num_labels in (1, None)):
        return  # a language model's backbone gets a head of zeros, like critic.init=policy
    what = f"this model has {num_labels} labels; a critic has one" if is_scorer else "this is no model for a critic"
    raise ModelError(what, where=where, got=f"{got}: {name}", expected=EXPECTED_CRITIC, hint="critic.init=policy")


def _other_tokens(got: str, where: str) -> ModelError:
    what, expected = "the critic's tokens differ from the policy's", "a critic with the policy's tokenizer"
    return ModelError(what, where=where, got=got, expected=expected, hint="critic.init=policy")


def _check_chat_template(folders: Sequence[Path], conversational: bool, where: str) -> None:
    if conversational and not any(files.read_tokenizer(folder, where=where).chat_template for folder in folders):
        raise no_template_to_score(", ".join(str(folder) for folder in folders), where=where)


def no_template_to_score(got: str, *, where: str) -> ModelError:
    """Return the error for a reward model that cannot read conversations; `got` is its tokenizer's folder."""
    what = "the reward model has no chat template, and the prompts are conversations"
    expected = "a chat_template.jinja, or chat_template in tokenizer_config.json"
    advice = "plain prompts (data.prompt='{question}'), or the template the reward model was trained with"
    return ModelError(what, where=where, got=got, expected=expected, advice=advice)


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "a file"
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join([*names[:6], *(["..."] if len(names) > 6 else [])]) or "empty"


Load = Callable[..., Any]


def loaders_of(
    path: str, *, trust_remote_code: bool = False, revision: str | None = None
) -> tuple[Load, Load, Load, Any]:
    """Return what loads a model, an adapter of it, and its tokenizer, or the processor of a model that reads images.

    The first loads the weights at `revision`, and those below an adapter at the adapter's. The last is the config.
    """
    import transformers
    from peft import AutoPeftModelForCausalLM

    folder = Path(path).expanduser()
    base = files.adapter_base(folder)
    revision = files.base_revision(folder) if base else revision
    given: dict[str, Any] = {"trust_remote_code": trust_remote_code, "revision": revision}
    auto: Any = transformers
    config = auto.AutoConfig.from_pretrained(base or path, **given)
    if not hasattr(config, "vision_config"):
        kinds: tuple[Any, Any, Any] = auto.AutoModelForCausalLM, AutoPeftModelForCausalLM, auto.AutoTokenizer
    else:
        whole = {"_target_class": auto.AutoModelForImageTextToText}
        kinds = whole["_target_class"], type("Adapter", (AutoPeftModelForCausalLM,), whole), auto.AutoProcessor
    load_model = partial(kinds[0].from_pretrained, revision=revision)
    return load_model, kinds[1].from_pretrained, kinds[2].from_pretrained, config


def require_model(name: str, *, where: str, revision: str | None, trust_remote_code: bool) -> None:
    """Read the configuration of a model on the hub, its cached copy, or that in a folder.

    Raise ModelError if the model is gated, does not exist, is unreachable and not in the cache, or if transformers
    cannot read its configuration.
    """
    import transformers
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    folder = Path(name).expanduser()
    if folder.exists() and not (folder / "config.json").is_file():
        return  # an adapter
    try:
        with naming_foreign_files({where: name}):
            transformers.AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except RlhfError:
        raise
    except Exception as error:  # each class of transformers raises its own
        causes, expected, advice, hint = list(with_causes(error)), None, None, None
        if any(isinstance(cause, GatedRepoError) for cause in causes):
            what = f"the owner of {name} gives access only on request"
            advice = f"ask for access at https://huggingface.co/{name}, then export HF_TOKEN=..."
        elif any(isinstance(cause, RepositoryNotFoundError | RevisionNotFoundError) for cause in causes):
            what = f"there is no model {name} on the hub, nor a folder of that name"
            hint = "export HF_TOKEN=... for a private one"
        elif isinstance(error, OSError):
            what = f"{name} cannot be reached on the hub, and is not in the cache"
            hint = f"hf download {name}, or model.path=FOLDER"
        else:
            what = f"transformers cannot read the configuration of {name}"
            expected = f"an architecture that transformers {transformers.__version__} knows"
        got, _, more = str(error).partition("\n")
        got += f" {more.splitlines()[0].strip()}" if got.endswith(":") and more else ""
        raise ModelError(what, where=where, got=got, expected=expected, hint=hint, advice=advice) from error
