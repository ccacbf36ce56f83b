"""Check that the experiment's models and datasets on the Hugging Face hub are available, and that it may upload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.errors import ConfigError, DataError, ModelError, UserError
from rlhf_cli.plan.checks.facts import Check, Findings, Subject
from rlhf_cli.plan.sources_and_components import eval_sources, training_sources

if TYPE_CHECKING:
    from rlhf_cli.services.hub_lookup import HubAnswer, HubQuestion


def hub_problems(subject: Subject) -> Check[dict[str, Path]]:
    """Yield an error for every model and dataset that the hub does not have or that cannot be downloaded here.

    Return hub model -> its cache folder.
    """
    experiment, teacher, cached = subject.experiment, subject.experiment.teacher, dict[str, Path]()
    model, named = experiment.model, {"model.tokenizer": experiment.model.tokenizer} | subject.folders.named()
    paths = {key: path for key, path in named.items() if path is not None and not Path(path).expanduser().exists()}
    data = [source for source in (*training_sources(experiment), *eval_sources(experiment)) if source.is_hub]
    if not (paths or data):
        return cached
    from rlhf_cli.models.model_folders import is_hub_id
    from rlhf_cli.services.hub_lookup import HubQuestion, look_up

    revisions = {"model.path": model.revision, "teacher.path": teacher.revision if teacher is not None else None}
    asked = {
        key: HubQuestion("model", path, revisions.get(key), needs_weights=key != "model.tokenizer")
        for key, path in paths.items()
        if is_hub_id(path)
    }
    asked |= {f"{source.name}.path": HubQuestion("dataset", source.paths[0], source.revision) for source in data}
    for (key, question), answer in zip(asked.items(), look_up(list(asked.values())), strict=True):
        if answer.folder is not None:
            cached[question.name] = answer.folder
        local = f"{key}={'FILE' if question.kind == 'dataset' else 'FOLDER'}"
        if (error := _problem(key, subject.where(key), question, answer, local)) is not None:
            yield error
    return cached


def upload_problems(subject: Subject) -> Findings:
    """Yield an error for an argument that makes the run upload something, without a network or a token."""
    args = subject.experiment.trainer.args
    for key in [f"trainer.args.{name}" for name in ("push_to_hub", "log_completions_hub_repo") if args.get(name)]:
        from huggingface_hub import get_token

        from rlhf_cli.services.hub_lookup import is_offline

        got, hint = "no token of the hub", f"'~{key}', or hf auth login"
        if (variable := is_offline()) is not None:
            got, hint = f"{variable}={os.environ[variable]}", f"'~{key}', or unset {variable}"
        elif get_token() is not None:
            return
        what, expected = f"{key} cannot upload from here", "a network, and a token that may write"
        yield ConfigError(what, where=subject.where(key), got=got, expected=expected, hint=hint)


def require_on_hub(question: HubQuestion, *, where: str, local: str) -> None:
    """Raise DataError or ModelError if the hub does not have the repository and it is not in the cache.

    `local` is what to type for a local file or folder instead. This imports no large library and waits only briefly;
    the libraries that load the repository would retry for a minute.
    """
    from rlhf_cli.services.hub_lookup import look_up

    if (error := _problem(where, where, question, look_up([question])[0], local)) is not None:
        raise error


def _problem(key: str, where: str, question: HubQuestion, answer: HubAnswer, local: str) -> UserError | None:
    from rlhf_cli.services.hub_lookup import TIMEOUT_VARIABLE

    name, repository, is_dataset = question.name, f"{question.kind} {question.name}", question.kind == "dataset"
    page, folder = f"https://huggingface.co/{'datasets/' * is_dataset}{name}", Path(name).absolute()
    got, expected, hint, advice = answer.detail, "", "", None
    if answer.state in ("there", "cached"):
        return None
    if answer.state == "impossible":
        what = f"{name} is neither a folder nor a valid name on the hub"
        expected = "OWNER/NAME, such as Qwen/Qwen3-0.6B, or a folder"
    elif answer.state == "missing":
        what = f"the {repository} exists neither on the hub nor as a folder"
        got, expected = f"{name}; looked for {folder}", f"the name of a {question.kind} on the hub, or a folder"
        hint = f"{local}, or hf auth login"
    elif answer.state == "no_revision":
        what, got = f"the {repository} has no revision {question.revision!r}", str(question.revision)
        revision = f"{key.rpartition('.')[0]}.revision"
        where, hint = where.replace(key, revision), f"'~{revision}'"
        expected = f"a branch, tag or commit: {page}/tree/main"
    elif answer.state == "gated":
        what, got = f"the {repository} is gated: its owner has to give you access", "no token with access"
        advice = f"accept its terms at {page}, then `hf auth login`"
    else:
        what = f"the {repository} is not in the cache, and the hub cannot be reached"
        got, expected = f"{answer.detail}; looked for {folder}", "a network, or a copy on this machine"
        hint = f"hf download {name}{' --repo-type dataset' * is_dataset}, or {local}"
        hint += f", or export {TIMEOUT_VARIABLE}=20" if answer.is_silence else ""
    kind = DataError if is_dataset else ModelError
    return kind(what, where=where, got=got, expected=expected or None, hint=hint or None, advice=advice)
