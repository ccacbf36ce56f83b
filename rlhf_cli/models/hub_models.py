"""Check access to a hub model before loading anything large, and explain errors in our own words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from transformers import AutoConfig

from rlhf_cli.errors import ModelError, Prose


def require_model(name: str, *, where: str, revision: str | None, trust_remote_code: bool) -> None:
    """Read the configuration of a hub model, or its cached copy; do nothing for a local folder.

    Raise ModelError if the model is gated, does not exist, or is unreachable and not in the cache.
    """
    if Path(name).expanduser().exists():
        return
    try:
        AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except OSError as error:
        raise _model_error(name, where, error) from error


def _model_error(name: str, where: str, error: OSError) -> ModelError:
    causes = list(_chain(error))
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return ModelError(
            f"the hub gives {name} only to whom its owner has let in",
            where=where,
            got="a gated repository, and no token in the environment that opens it",
            hint=Prose(f"ask for access at https://huggingface.co/{name}, then export HF_TOKEN=..."),
        )
    if any(isinstance(cause, RepositoryNotFoundError | RevisionNotFoundError) for cause in causes):
        return ModelError(
            f"there is no model {name} on the hub, nor a folder of that name",
            where=where,
            got=str(error).splitlines()[0],
            hint="export HF_TOKEN=... for a private one",
        )
    return ModelError(
        f"{name} cannot be reached on the hub, and is not in the cache",
        where=where,
        got=str(error).splitlines()[0],
        hint=f"hf download {name}, or model.path=FOLDER",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
