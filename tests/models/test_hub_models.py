"""A model that the hub does not give is refused in our words, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError
from transformers import AutoConfig

from rlhf_cli.errors import ModelError
from rlhf_cli.models.loading import require_model


def refused_with(monkeypatch: pytest.MonkeyPatch, cause: BaseException) -> ModelError:
    """What comes of transformers' OSError over an error of the hub's own client."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("We couldn't do it.\nMore of it.") from cause

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    with pytest.raises(ModelError) as caught:
        require_model("org/model", where="model.path", revision=None, trust_remote_code=False)
    assert caught.value.where == "model.path"
    return caught.value


@pytest.mark.parametrize(
    ("kind", "what", "hint"),
    [
        (GatedRepoError, "the hub gives org/model only to", "https://huggingface.co/org/model"),
        (RepositoryNotFoundError, "there is no model org/model on the hub", "HF_TOKEN"),
        (OfflineModeIsEnabled, "org/model cannot be reached on the hub", "hf download org/model"),
    ],
)
@pytest.mark.fault(45)
def test_why(monkeypatch: pytest.MonkeyPatch, kind: type[Exception], what: str, hint: str) -> None:
    error = refused_with(monkeypatch, kind.__new__(kind))
    assert error.what.startswith(what)
    assert hint in str(error.hint)


def test_a_folder_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: pytest.fail("the hub was asked"))
    require_model(str(tmp_path), where="model.path", revision=None, trust_remote_code=False)
