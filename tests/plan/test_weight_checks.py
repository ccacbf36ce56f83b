"""Missing, truncated or untrained weights are detected from the headers of their files."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from tests.support.model_copies import model_copy
from tests.support.planning import Refused, planned

MODEL = ("exp=quickstart", "launch=cpu", "model=local", "model.path=model")
WEIGHTS = "model.safetensors"


def test_no_weights(place: Path, refused: Refused) -> None:
    model_copy(place / "model", without=(WEIGHTS,))
    error = refused(*MODEL)
    assert error.where == "model.path (command line)"
    assert "config.json" in str(error.got)


def test_a_folder_has_no_revisions(place: Path, refused: Refused) -> None:
    model_copy(place / "model")
    assert refused(*MODEL, "model.revision=v2").hint == "model.revision=null"


def test_a_truncated_file(place: Path, refused: Refused) -> None:
    file = model_copy(place / "model") / WEIGHTS
    file.write_bytes(file.read_bytes()[:-5])
    error = refused(*MODEL)
    size = file.stat().st_size
    assert f"{WEIGHTS} has {size} bytes, but its header says {size + 5}" in str(error.got)


class TestBaseOfAnAdapter:
    """The policy, a critic and a reward model may be adapters, which need their base."""

    @pytest.fixture
    def adapter(self, place: Path) -> Path:
        folder = model_copy(place / "model", without=("config.json", WEIGHTS))
        config = {"base_model_name_or_path": str(place / "base"), "peft_type": "LORA", "task_type": "CAUSAL_LM"}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        shutil.copy(model_copy(place / "whole") / WEIGHTS, folder / "adapter_model.safetensors")
        return folder

    def test_it_is_gone(self, adapter: Path, refused: Refused) -> None:
        error = refused(*MODEL)
        assert str(error.where).startswith("model.path (command line): the base that")

    def test_it_was_cut(self, place: Path, adapter: Path, refused: Refused) -> None:
        file = model_copy(place / "base") / WEIGHTS
        assert planned(*MODEL).notices == (), "the control"
        file.write_bytes(file.read_bytes()[:-5])
        error = refused(*MODEL)
        assert error.where == "model.path (command line)"
        assert str(place / "base") in str(error.got)


@pytest.mark.fault(46)
@pytest.mark.parametrize("model", [MODEL, ("exp=quickstart", "launch=cpu")], ids=["folder", "embedded"])
class TestAdapters:
    def test_target_modules_without_a_layer(self, place: Path, refused: Refused, model: tuple[str, ...]) -> None:
        model_copy(place / "model")
        error = refused(*model, "model.lora.target_modules=[q_prj,v_prj]")
        assert error.where == "model.lora.target_modules (command line)"
        assert error.got == "q_prj, v_prj"
        assert "all-linear, or some of" in str(error.expected)
        assert error.hint == "model.lora.target_modules='[q_proj,v_proj]'"

    @pytest.mark.parametrize("targets", ["all-linear", "'.*q_proj'", "[layers.0.self_attn.q_proj]"])
    def test_negative_control_what_peft_finds(self, place: Path, model: tuple[str, ...], targets: str) -> None:
        model_copy(place / "model")
        assert planned(*model, f"model.lora.target_modules={targets}").notices == ()


class TestPackages:
    @pytest.fixture(autouse=True)
    def nothing_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.util.find_spec
        ours = ("bitsandbytes", "torchao", "liger_kernel", "peft", "math_verify", "reasoning_gym")
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *more: None if name in ours else real(name, *more)
        )

    @pytest.mark.parametrize(
        ("word", "package", "key"),
        [
            ("trainer.args.optim=paged_adamw_8bit", "bitsandbytes", "trainer.args.optim"),
            ("trainer.args.optim=adamw_torch_8bit", "torchao", "trainer.args.optim"),
            ("model.lora.r=8", "peft", "model.lora"),
            ("trainer.args.use_liger_kernel=true", "liger_kernel", "trainer.args.use_liger_kernel"),
            ("reward@rewards.maths=trl_accuracy", "math_verify", "rewards.maths.fn"),
            ("reward@rewards.task=reasoning_gym", "reasoning_gym", "rewards.task.fn"),
        ],
    )
    def test_a_package_that_is_not_installed(
        self, place: Path, refused: Refused, word: str, package: str, key: str
    ) -> None:
        (place / "rows.jsonl").write_text('{"prompt": "1+1=", "a": 1, "b": 1, "solution": "2", "entry": "{}"}\n' * 9)
        error = refused("exp=quickstart", "launch=cpu", "data=file", "data.path=rows.jsonl", word)
        assert f"{package}, which is not installed" in error.what
        assert str(error.where).startswith(key)
        assert str(error.hint).startswith(("pip install ", f"{key}=false"))
