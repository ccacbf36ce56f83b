"""A push to a hub that only remembers what it was asked: private unless said otherwise, refusals in words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
)

from rlhf_cli.errors import UserError
from rlhf_cli.project.export.hub_push import push


def answer(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.example"))


class HubThatRemembers:
    """`private`: of the repository that is there, None where there is none. `raises`: by whichever call comes first."""

    def __init__(self, private: bool | None = None, raises: Exception | None = None) -> None:
        self.private, self.raises = private, raises
        self.calls: list[tuple[str, dict[str, object]]] = []

    def repo_info(self, repo_id: str) -> object:
        if self.raises is not None:
            raise self.raises
        if self.private is None:
            raise RepositoryNotFoundError("no such repository", response=answer(404))
        return SimpleNamespace(private=self.private)

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> object:
        self.calls.append(("create", {"repo": repo_id, "private": private, "exist_ok": exist_ok}))
        return None

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> object:
        self.calls.append(("upload", {"repo": repo_id, "folder": folder_path, "message": commit_message}))
        return SimpleNamespace(repo_url=f"https://hub.example/{repo_id}")


def pushed(hub: HubThatRemembers, *, public: bool = False) -> str:
    return push(Path("out"), "me/mine", public=public, message="mine, by rlhf export", hub=cast("HfApi", hub))


@pytest.mark.parametrize(("private", "public"), [(None, False), (True, False), (None, True), (False, True)])
def test_it_is_private_unless_it_is_said(private: bool | None, public: bool) -> None:
    hub = HubThatRemembers(private)
    assert pushed(hub, public=public) == "https://hub.example/me/mine"
    assert hub.calls == [
        ("create", {"repo": "me/mine", "private": not public, "exist_ok": True}),
        ("upload", {"repo": "me/mine", "folder": Path("out"), "message": "mine, by rlhf export"}),
    ]


def test_a_public_repository_is_not_written_to_unawares() -> None:
    hub = HubThatRemembers(private=False)
    with pytest.raises(UserError, match="this repository is public") as refused:
        pushed(hub)
    assert refused.value.hint == "--push me/mine --public"
    assert hub.calls == []


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        (LocalTokenNotFoundError("no token"), "hf auth login"),
        (HFValidationError("'a//b' is no repository"), "--push OWNER/NAME"),
        (HfHubHTTPError("forbidden", response=answer(403)), "HTTP 403"),
        (HfHubHTTPError("busy", response=answer(503)), "HTTP 503"),
        (httpx2.ConnectError("no route"), "ConnectError: no route"),
    ],
)
def test_refusals_are_told_in_words(raises: Exception, said: str) -> None:
    with pytest.raises(UserError, match="does not take the model") as refused:
        pushed(HubThatRemembers(raises=raises))
    assert said in str(refused.value)
    assert refused.value.exit_code == 2
