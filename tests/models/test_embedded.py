"""What is shipped is what it was when the numbers in docs were measured, and what conf/model asks for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.data.worlds import demonstrations
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.models.tiny import EMBEDDED, tiny_model_path

SHA256 = {
    "tiny": "a8440fe8db03316735dadd6ff1ccf9b47c470aeaab93c4c6f8152190f85d828d",
    "tiny_speakers": "32c1293e2ea21844c08e6bc23211d3404ff0391668fdc6e971ffce74737e8561",
    "tiny_untrained": "f77460b053c68cc66171b259f45a6e175c0aa1c24b498c47b35f0bc350247fe7",
}
"""What scripts/embedded_models.py printed."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def path_of(*words: str) -> Path:
    """Return where the model lies that these words ask for; a warm start would fail for want of demonstrations."""
    build = prepare(["+exp=quickstart", *words]).experiment.model.build
    assert build is not None
    return tiny_model_path(build.model_dump(), list, lambda step, steps: None)


def test_every_one_is_listed() -> None:
    assert {folder.name for folder in EMBEDDED.iterdir()} == set(SHA256)


@pytest.mark.parametrize("choice", SHA256)
def test_it_is_used_and_nothing_is_made(choice: str, own_cache: Path) -> None:
    assert path_of(f"model={choice}") == EMBEDDED / choice
    assert not own_cache.exists()


@pytest.mark.parametrize("choice", SHA256)
def test_its_weights_are_those_of_the_numbers_in_docs(choice: str) -> None:
    assert hashlib.sha256((EMBEDDED / choice / "model.safetensors").read_bytes()).hexdigest() == SHA256[choice]


@pytest.mark.parametrize("word", ["model.build.seed=1", "model.build.num_layers=1"])
def test_negative_control_another_recipe_is_made(word: str, own_cache: Path) -> None:
    assert path_of("model=tiny_untrained", word).is_relative_to(own_cache)


def test_another_seed_is_another_model_of_the_same_kind() -> None:
    words = ["model=tiny_untrained", "model.build.hidden_size=16"]
    first, second = (
        AutoModelForCausalLM.from_pretrained(path_of(*words, f"model.build.seed={seed}")) for seed in (1, 2)
    )
    assert first.config.to_dict() == {**second.config.to_dict(), "_name_or_path": first.config._name_or_path}
    assert not torch.equal(first.model.embed_tokens.weight, second.model.embed_tokens.weight)


def test_half_its_sums_are_right() -> None:
    """As conf/model/tiny.yaml says: neither nothing left to learn, nor nothing to begin with."""
    model, tokenizer = (cls.from_pretrained(EMBEDDED / "tiny") for cls in (AutoModelForCausalLM, AutoTokenizer))
    rows = demonstrations("toy_sums", 200, seed=99, name="worlds")
    encoded = tokenizer([row["prompt"] for row in rows], return_tensors="pt", padding=True, padding_side="left")
    torch.manual_seed(0)
    written = model.generate(**encoded, max_new_tokens=16, do_sample=True)[:, encoded["input_ids"].shape[1] :]
    sums = [sum(int(part) for part in row["prompt"].rstrip("=").split("+")) for row in rows]
    texts = tokenizer.batch_decode(written, skip_special_tokens=True)
    right = sum(str(total) in text for total, text in zip(sums, texts, strict=True)) / len(rows)
    assert 0.3 < right < 0.7
