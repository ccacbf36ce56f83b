"""The embedded model: built once, the same everywhere, better at its task for the warm start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.data.worlds import demonstrations
from rlhf_cli.models.tiny import byte_tokenizer, tiny_model_path

SHAPE = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "context_tokens": 64, "seed": 0}
WARM = {"worlds": ["toy_sums"], "steps": 40, "batch_size": 32, "learning_rate": 1e-2}


def rows() -> list[dict[str, str]]:
    return demonstrations("toy_sums", 200, seed=0, name="worlds")


def build(warm_start=None, on_progress=lambda step, steps: None) -> Path:
    return tiny_model_path({**SHAPE, "warm_start": warm_start}, rows, on_progress)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path))


def loss_of(folder: Path) -> float:
    """Mean negative log-likelihood, by hand, of one demonstration's completion."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt, completion = tokenizer.encode("3+4="), tokenizer.encode("7")
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0]
    return float(-torch.log_softmax(logits[len(prompt) - 1], dim=-1)[completion[0]])


def test_it_is_built_once_and_found_again(tmp_path: Path) -> None:
    steps: list[int] = []
    folder = build(WARM, lambda step, of: steps.append(step))
    assert steps == list(range(1, 41))
    assert build(WARM, lambda step, of: steps.append(step)) == folder
    assert len(steps) == 40


def test_the_warm_start_lowers_the_loss() -> None:
    assert loss_of(build(WARM)) < loss_of(build(None)) - 1.0


def test_building_leaves_the_random_state_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    build(WARM)
    assert torch.equal(torch.rand(2), expected)


def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(step: int, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(WARM, interrupt)
    assert not list(tmp_path.rglob("config.json"))
    assert (build(WARM) / "config.json").is_file()


@pytest.mark.parametrize("text", ["17+5=", "äöü 数 🙂", "a\n\tb  c", ""])
def test_every_text_survives_the_tokenizer_at_a_token_a_byte(text: str) -> None:
    tokenizer = byte_tokenizer(64)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode())
    assert len(tokenizer) == 258


def test_a_conversation_renders_with_a_generation_prompt() -> None:
    rendered = byte_tokenizer(64).apply_chat_template(
        [{"role": "user", "content": "1+1"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "user: 1+1\nassistant: "
