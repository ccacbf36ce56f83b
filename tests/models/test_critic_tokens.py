"""A critic that is on the hub reads its policy's tokens, or is refused once it is here; the cache is the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForTokenClassification, PreTrainedTokenizerFast

from rlhf_cli.errors import ModelError
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.models.critic_model import check_tokens
from rlhf_cli.trainers.assemble.ppo_setup import separate_critic

WRITTEN = {"<pad>": 0, "<eos>": 1, "one": 2, "two": 3}
PPO = ["exp=quickstart", "trainer=ppo", "trainer.args.num_generations=1", "launch=cpu"]
Upload = Callable[..., str]


@pytest.fixture
def upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upload:
    """`upload("critic", num_rows=4, tokens={...})`: the hub id of a model in the cache; `tokens=None`: no tokenizer."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def call(name: str, *, num_rows: int, tokens: dict[str, int] | None) -> str:
        repository = tmp_path / "hub" / f"models--org--{name}"
        snapshot = repository / "snapshots" / "0123456789abcdef"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("0123456789abcdef")
        critic_of(num_rows).save_pretrained(snapshot)
        if tokens is not None:
            words = Tokenizer(models.WordLevel(tokens, unk_token="<pad>"))
            PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>").save_pretrained(snapshot)
        return f"org/{name}"

    return call


def critic_of(num_rows: int) -> LlamaForTokenClassification:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForTokenClassification(LlamaConfig(vocab_size=num_rows, num_labels=1, **sizes))


def judge(upload: Upload, *, num_rows: int, tokens: dict[str, int] | None) -> None:
    critic, policy = upload("critic", num_rows=num_rows, tokens=tokens), upload("policy", num_rows=4, tokens=WRITTEN)
    check_tokens(LlamaForTokenClassification.from_pretrained(critic), critic, policy)


@pytest.mark.parametrize(
    "tokens",
    [WRITTEN, WRITTEN | {"three": 4}, None],
    ids=["the same", "more of them", "saved without a tokenizer"],
)
def test_the_same_tokens(upload: Upload, tokens: dict[str, int] | None) -> None:
    """Four or five of them; a critic's rows may be padded, and four are enough for tokens 0 to 3."""
    judge(upload, num_rows=max((tokens or WRITTEN).values()) + 1, tokens=tokens)


@pytest.mark.parametrize(
    ("num_rows", "tokens", "got"),
    [
        (4, WRITTEN | {"one": 3, "two": 2}, "token 'one' is 2 to the policy and 3 to the critic"),
        (8, {"<pad>": 0, "<eos>": 1, "one": 2, "four": 3}, "token 'two' is 3 to the policy and unknown to the critic"),
        (3, WRITTEN, "vocab_size 3, the policy writes 4 tokens"),
        (3, None, "vocab_size 3, the policy writes 4 tokens"),
    ],
    ids=["exchanged", "unknown", "too few rows", "too few rows, no tokenizer"],
)
def test_other_tokens(upload: Upload, num_rows: int, tokens: dict[str, int] | None, got: str) -> None:
    with pytest.raises(ModelError, match="the critic reads other tokens than the policy writes") as caught:
        judge(upload, num_rows=num_rows, tokens=tokens)
    assert (caught.value.where, caught.value.got, caught.value.hint) == ("critic.init", got, "critic.init=policy")


def test_folders_were_compared_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    critic_of(2).save_pretrained(tmp_path)
    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", lambda *_, **__: pytest.fail("one was loaded"))
    check_tokens(critic_of(2), str(tmp_path), str(tmp_path))


def test_before_a_training_begins(upload: Upload, place: Path) -> None:
    """With the policy's own tokenizer it is built; with one in which two words are exchanged it is not."""
    policy = upload("policy", num_rows=4, tokens=WRITTEN)
    good = upload("good", num_rows=4, tokens=WRITTEN)
    bad = upload("bad", num_rows=4, tokens=WRITTEN | {"one": 3, "two": 2})
    experiments = [prepare([*PPO, f"critic.init={critic}"], keep_run_names=True).experiment for critic in (good, bad)]
    assert separate_critic(experiments[0], policy) is not None
    with pytest.raises(ModelError, match="other tokens"):
        separate_critic(experiments[1], policy)
