"""`rlhf export` as it is typed: where it writes, what it prints, what it refuses, and a push of what was edited."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, RepositoryNotFoundError

from rlhf_cli.cli import main
from rlhf_cli.errors import UserError
from rlhf_cli.project.export import exported_folder
from rlhf_cli.project.export.exported_folder import push
from rlhf_cli.runs.run_folder import RunFolder
from tests.project.export.finished_runs import finished_run, random_model

KEYS = {"folder", "kind", "step", "merged", "files", "bytes", "weights_sha256", "notes", "pushed_to"}


class HubThatRemembers:
    """`private`: of the repository that is there, None where there is none. `raises`: by whichever call comes first."""

    def __init__(self, private: bool | None = None, raises: Exception | None = None) -> None:
        self.private, self.raises = private, raises
        self.calls: list[tuple[str, dict[str, object]]] = []

    def repo_info(self, repo_id: str) -> object:
        if self.raises is not None:
            raise self.raises
        if self.private is None:
            none = httpx2.Response(404, request=httpx2.Request("GET", "https://hub.example"))
            raise RepositoryNotFoundError("no such repository", response=none)
        return SimpleNamespace(private=self.private)

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> object:
        self.calls.append(("create", {"repo": repo_id, "private": private, "exist_ok": exist_ok}))
        return None

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> object:
        self.calls.append(("upload", {"repo": repo_id, "folder": folder_path, "message": commit_message}))
        return SimpleNamespace(repo_url=f"https://hub.example/{repo_id}")


@pytest.fixture
def run(place: Path) -> RunFolder:
    return finished_run(place / "runs" / "mine" / "one", random_model("CAUSAL_LM"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> HubThatRemembers:
    remembers = HubThatRemembers()
    monkeypatch.setattr(exported_folder, "HfApi", lambda: remembers)
    return remembers


def test_by_name_as_json_and_into_a_folder_with_a_blank(
    run: RunFolder, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "run:mine", "--out", "my model", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert set(found) == KEYS
    assert (found["folder"], found["kind"], found["step"]) == ("my model", "policy", 3)
    assert found["bytes"] == sum((place / "my model" / name).stat().st_size for name in found["files"])
    assert "copying the weights" in said.err


def test_into_the_run_and_never_over_something(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "runs/mine/one"]) == 0
    assert (run.path / "export" / "config.json").is_file()
    assert "--push OWNER/NAME" in capsys.readouterr().out
    assert main(["export", "runs/mine/one"]) == 2
    assert "there is something" in capsys.readouterr().err


def test_a_push_of_a_folder_whose_card_was_edited(
    run: RunFolder, place: Path, hub: HubThatRemembers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "runs/mine/one", "--out", "out"]) == 0
    (place / "out" / "README.md").write_text("my own words")
    capsys.readouterr()
    assert main(["export", "runs/mine/one", "--out", "out", "--push", "me/mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pushed_to"] == "https://hub.example/me/mine"
    assert (place / "out" / "README.md").read_text() == "my own words"
    assert hub.calls[1][1]["folder"] == place / "out"
    assert hub.calls[0][1]["private"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no run was named"),
        (["runs/mine/one", "runs/mine/two"], "one run at a time"),
        (["nowhere"], "is not a run folder"),
        (["run:nothing"], "no run of 'nothing' has finished"),
        (["runs/mine/one", "--public"], "--public is for --push"),
        (["runs/mine/one", "--checkpoint", "x"], "--checkpoint is a whole number"),
        (["runs/mine/one", "--checkpoint", "2"], "there is no checkpoint of step 2"),
        (["runs/mine/one", "--critic"], "this run has no critic"),
        (["runs/mine/one", "--oout", "x"], "--out"),
    ],
)
def test_refusals(words: list[str], said: str, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (run.path / "export").exists()


def test_the_upload_that_is_offered_is_what_was_typed_and_no_more(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "runs/mine/one"]) == 0
    assert "  rlhf export runs/mine/one --push OWNER/NAME  #" in capsys.readouterr().out
    assert main(["export", "runs/mine/one", "--out", "my model"]) == 0
    assert "  rlhf export runs/mine/one --out 'my model' --push OWNER/NAME  #" in capsys.readouterr().out


def pushed(hub: HubThatRemembers, *, public: bool = False) -> str:
    return push(Path("mine"), "me/mine", public=public, hub=cast("HfApi", hub))


@pytest.mark.parametrize(("private", "public"), [(None, False), (True, False), (None, True), (False, True)])
def test_a_push_is_private_unless_it_is_said(private: bool | None, public: bool) -> None:
    hub = HubThatRemembers(private)
    assert pushed(hub, public=public) == "https://hub.example/me/mine"
    assert hub.calls == [
        ("create", {"repo": "me/mine", "private": not public, "exist_ok": True}),
        ("upload", {"repo": "me/mine", "folder": Path("mine"), "message": "mine, by rlhf export"}),
    ]


def test_a_public_repository_is_not_written_to_unawares() -> None:
    hub = HubThatRemembers(private=False)
    with pytest.raises(UserError, match="this repository is public") as refused:
        pushed(hub)
    assert refused.value.hint == "--push me/mine --public"
    assert hub.calls == []


@pytest.mark.parametrize(
    "raises", [LocalTokenNotFoundError("no token"), HFValidationError("no"), httpx2.ConnectError("no route")]
)
def test_what_the_hub_refuses_is_told(raises: Exception) -> None:
    with pytest.raises(UserError, match="does not take the model") as refused:
        pushed(HubThatRemembers(raises=raises))
    assert str(raises) in str(refused.value.got)
