"""The embedded model: built once, the same everywhere, better at its task for the warm start."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoConfig

from rlhf_cli.data.worlds import demonstrations
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.models.tiny import EMBEDDED, tiny_model_path
from rlhf_cli.plan.prepare import prepare

SHAPE = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "context_tokens": 64, "seed": 0}
WARM = {"worlds": ["toy_sums"], "steps": 40, "batch_size": 32, "learning_rate": 1e-2}


def rows() -> list[dict[str, str]]:
    return demonstrations("toy_sums", 200, seed=0, name="worlds")


def build(warm_start=None, on_progress=lambda step, steps: None) -> Path:
    return tiny_model_path({**SHAPE, "warm_start": warm_start}, rows, on_progress)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_built_once_and_found_again() -> None:
    """It trains on one thread: the rounding of sums depends on the number of threads."""
    seen, rates, before = list[tuple[int, int]](), list[float](), torch.get_num_threads()
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    torch.set_num_threads(2)
    try:
        folder = build(WARM, lambda step, of: seen.append((step, torch.get_num_threads())))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        hook.remove()
    assert re.fullmatch("tiny-[0-9a-f]{12}", folder.name)
    config, tokenizer = AutoConfig.from_pretrained(folder), byte_tokenizer(64)
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert config.bos_token_id is None  # the tokenizer has none
    assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (16, 64, 2)
    assert seen == [(step, 1) for step in range(1, 41)]
    assert rates == pytest.approx([0.5e-2, *(1e-2 * (1 - step / 40) for step in range(1, 40))])  # a 16th of them rises
    assert build(WARM, lambda step, of: seen.append((step, 0))) == folder
    assert len(seen) == 40


def test_it_is_whole_whichever_rank_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process group transformers saves on rank 0 alone, and the others may be first, or on another machine."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import mixin

    monkeypatch.setattr(mixin, "_is_torch_distributed_initialized", lambda: True)
    monkeypatch.setattr(mixin, "_get_torch_distributed_rank", lambda: 1)
    folder = build()
    assert {"config.json", "generation_config.json", "model.safetensors"} <= {file.name for file in folder.iterdir()}
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "control")
    assert not (tmp_path / "control/model.safetensors").exists(), "the control: transformers' own"


def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(step: int, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(WARM, interrupt)
    assert not list(tmp_path.rglob("config.json"))
    assert (build(WARM) / "config.json").is_file()


def test_every_text_survives_the_tokenizer_at_a_token_a_byte() -> None:
    tokenizer, text = byte_tokenizer(64), "17+5= äöü 数 🙂 a\n\tb  c"
    assert tokenizer.decode(ids := tokenizer.encode(text)) == text
    assert (len(ids), len(tokenizer)) == (len(text.encode()), 258)


SHA256 = {
    "tiny": "a8440fe8db03316735dadd6ff1ccf9b47c470aeaab93c4c6f8152190f85d828d",
    "tiny_calls": "2d027ed629877d066b4bc28c7f8617f7750cfc46ed1386493259b8eb5b7f1e54",
    "tiny_speakers": "32c1293e2ea21844c08e6bc23211d3404ff0391668fdc6e971ffce74737e8561",
    "tiny_untrained": "f77460b053c68cc66171b259f45a6e175c0aa1c24b498c47b35f0bc350247fe7",
}
"""What scripts/embedded_models.py printed."""


@pytest.mark.parametrize("choice", SHA256)
def test_it_is_used_with_the_weights_of_the_numbers_in_docs_and_nothing_is_made(choice: str, own_cache: Path) -> None:
    """A warm start would fail for want of demonstrations."""
    build = prepare(["+exp=quickstart", f"model={choice}"]).experiment.model.build
    assert build is not None
    assert tiny_model_path(build.model_dump(), list, lambda step, steps: None) == EMBEDDED / choice
    assert not own_cache.exists()
    assert hashlib.sha256((EMBEDDED / choice / "model.safetensors").read_bytes()).hexdigest() == SHA256[choice]


def test_its_tokenizer_is_made_without_torch() -> None:
    """`rlhf check --rows` needs the tokenizer alone, and took four seconds instead of one and a half."""
    made = "from rlhf_cli.models.byte_tokenizer import byte_tokenizer; import sys; byte_tokenizer(64)"
    ended = subprocess.run([sys.executable, "-c", f"{made}; sys.exit('torch' in sys.modules)"], check=False)
    assert ended.returncode == 0
