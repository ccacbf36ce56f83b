"""Checks that the experiment's models and datasets on the Hugging Face hub are available, in the cache or online."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import DataError, ModelError, UserError
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.data_sources import eval_sources, training_sources

if TYPE_CHECKING:
    from rlhf_cli.services.hub_lookup import HubAnswer, HubQuestion


def hub_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error for every model and dataset that the hub does not have or that cannot be downloaded here.

    Notes the cache folders of models.
    """
    model = experiment.model
    named = {"model.path": model.path, "model.tokenizer": model.tokenizer} | context.named_models()
    paths = {key: path for key, path in named.items() if path is not None and not Path(path).expanduser().exists()}
    sources = (*training_sources(experiment), *eval_sources(experiment))
    data = [source for source in sources if source.is_hub]
    if not (paths or data):
        return
    from rlhf_cli.models.model_folders import is_hub_id
    from rlhf_cli.services.hub_lookup import HubQuestion, look_up

    models = {key: path for key, path in paths.items() if is_hub_id(path)}
    if not (models or data):
        return
    asked = {
        key: HubQuestion(
            "model", path, model.revision if key == "model.path" else None, needs_weights=key != "model.tokenizer"
        )
        for key, path in models.items()
    }
    asked |= {f"{one.name}.path": HubQuestion("dataset", one.paths[0], one.revision) for one in data}
    for (key, question), answer in zip(asked.items(), look_up(list(asked.values())), strict=True):
        if answer.folder is not None:
            context.cached[question.name] = answer.folder
        if answer.state not in ("there", "cached"):
            local = f"{key}={'FILE' if question.kind == 'dataset' else 'FOLDER'}"
            yield _problem(key, composed.origins.where(key), question, answer, local)


def require_on_hub(question: HubQuestion, *, where: str, local: str) -> None:
    """Raise DataError or ModelError if the hub does not have the repository and it is not in the cache.

    `local` is what to type for a local file or folder instead. This imports no large library and waits only briefly;
    the libraries that load the repository would retry for a minute.
    """
    from rlhf_cli.services.hub_lookup import look_up

    answer = look_up([question])[0]
    if answer.state not in ("there", "cached"):
        raise _problem(where, where, question, answer, local)


def _problem(key: str, where: str, question: HubQuestion, answer: HubAnswer, local: str) -> UserError:
    from rlhf_cli.services.hub_lookup import TIMEOUT_VARIABLE

    name, what = question.name, f"{question.kind} {question.name}"
    is_dataset = question.kind == "dataset"
    page = f"https://huggingface.co/{'datasets/' * is_dataset}{name}"
    folder = Path(name).absolute()
    got, expected, hint, advice = answer.detail, "", "", None
    if answer.state == "impossible":
        said = f"{name} is no name that the hub could have, nor is there such a folder"
        expected = "OWNER/NAME, such as Qwen/Qwen3-0.6B, or a folder"
    elif answer.state == "missing":
        said = f"there is no {what} on the hub, nor a folder of that name"
        got, hint = f"{name}; looked for {folder}", f"{local}, or hf auth login"
        expected = f"the name of a {question.kind} as its page has it, or a folder"
    elif answer.state == "no_revision":
        said, got = f"the {what} has no revision {question.revision!r}", str(question.revision)
        revision = f"{key.rpartition('.')[0]}.revision"
        where, hint = where.replace(key, revision), f"~{revision}"
        expected = f"a branch, tag or commit: {page}/tree/main"
    elif answer.state == "gated":
        said = f"the hub gives the {what} only to whom its owner has let in"
        got = "a gated repository, and no token here that opens it"
        advice = f"accept its terms at {page}, then `hf auth login`"
    else:
        said = f"the {what} is not in the cache, and the hub cannot be reached"
        got, expected = f"{answer.detail}; looked for {folder}", "a network, or a copy on this machine"
        hint = f"hf download {name}{' --repo-type dataset' * is_dataset}, or {local}"
        hint += f", or export {TIMEOUT_VARIABLE}=20" if answer.is_silence else ""
    kind = DataError if is_dataset else ModelError
    return kind(said, where=where, got=got, expected=expected or None, hint=hint or None, advice=advice)
