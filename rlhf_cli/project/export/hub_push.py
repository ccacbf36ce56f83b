"""Upload an exported folder to the hub, private by default; refuse a public repository without --public."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
)

from rlhf_cli.errors import Prose, UserError


def push(folder: Path, repo: str, *, public: bool, message: str, hub: HfApi | None = None) -> str:
    """Upload a folder as one commit and return its address; create the repository if needed.

    Raises UserError without a login, write access or network, and if the repository is public but `public` is False.
    """
    api = hub or HfApi()
    with _asking(repo):
        if _is_public(api, repo) and not public:
            raise UserError(
                "this repository is public, and what is pushed would be, too",
                where=f"--push {repo}",
                expected="a private repository, or the word that it may be seen by all",
                hint=f"--push {repo} --public",
            )
        api.create_repo(repo, private=not public, exist_ok=True)
        done = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
    return str(getattr(done, "repo_url", None) or f"https://huggingface.co/{repo}")


def _is_public(api: HfApi, repo: str) -> bool:
    """Return whether a public repository of that name exists."""
    try:
        return getattr(api.repo_info(repo), "private", False) is False
    except GatedRepoError:
        return True
    except RepositoryNotFoundError:
        return False


@contextmanager
def _asking(repo: str) -> Iterator[None]:
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise _refused(repo, "no token for the hub", "hf auth login, or export HF_TOKEN=...") from error
    except HFValidationError as error:
        raise _refused(repo, str(error), "--push OWNER/NAME") from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        hint = "hf auth whoami  # the token needs the right to write there" if status in (401, 403) else None
        raise _refused(repo, f"HTTP {status}: {error!s:.200}", hint) from error
    except (OSError, httpx2.HTTPError) as error:
        raise _refused(repo, f"{type(error).__name__}: {error!s:.200}", Prose("once there is a network")) from error


def _refused(repo: str, got: str, hint: str | None) -> UserError:
    return UserError(
        "the hub does not take the model",
        where=f"--push {repo}",
        got=got,
        expected="the folder is written and stays; --push with the same --out uploads it as it is",
        hint=hint,
    )
