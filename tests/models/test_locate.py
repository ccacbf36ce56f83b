"""What is and what is not a model, said before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.errors import ModelError
from rlhf_cli.models.locate import describe_model


def test_a_hub_id_is_taken_at_its_word() -> None:
    assert describe_model("Qwen/Qwen3-0.6B", where="model.path") == "Qwen/Qwen3-0.6B (hub)"


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder", "a/b/c"])
def test_no_such_folder(path: str) -> None:
    with pytest.raises(ModelError, match="no such model folder") as caught:
        describe_model(path, where="model.path (command line)")
    assert "model.path (command line)" in str(caught.value)


def test_a_folder_without_a_model_lists_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelError, match="no model in it") as caught:
        describe_model(str(tmp_path), where="model.path")
    assert "notes.txt" in str(caught.value)


def test_a_model_without_a_tokenizer_wants_one_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelError, match="no tokenizer") as caught:
        describe_model(str(tmp_path), where="model.path")
    assert "model.tokenizer=" in str(caught.value)
    assert describe_model(str(tmp_path), where="model.path", needs_tokenizer=False).endswith("(LlamaForCausalLM)")
