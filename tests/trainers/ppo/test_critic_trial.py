"""A critic that computes other values from packed rows is detected, and its values are correct afterwards.

Nemotron's layers do not hand arguments down to their attention, and nothing in its config.json says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification, NemotronConfig, NemotronForCausalLM

from rlhf_cli.models.model_folders import TINY_VOCABULARY
from rlhf_cli.models.tiny import byte_tokenizer
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from tests.support.ppo_by_hand import plain, stir, unpadded, values_of
from tests.support.watched_critic import Watched

OF_THE_CRITIC = "trimmed: packed, the critic's states were "


def nemotron(folder: Path) -> Path:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": TINY_VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    NemotronForCausalLM(NemotronConfig(**shape, **tokens, num_key_value_heads=2)).save_pretrained(folder)
    return folder


def farthest(seen: Watched) -> float:
    """How far the run's values are from transformers' own of every row alone, over their deviation."""
    critic, batch = plain(seen.critic.model, AutoModelForTokenClassification), seen.inputs[-1]
    is_packed = seen.trainer._packs_values(batch)
    with torch.no_grad():
        found = seen.critic.values(batch, seen.trainer.accelerator.autocast, is_packed=is_packed)
        pairs = [
            (found[row, : len(completion)].double(), values_of(critic, prompt, completion)[:-1])
            for row, (prompt, completion) in enumerate(unpadded(batch))
        ]
    ours, expected = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return float((ours - expected).abs().max() / expected.std())


def stirred(seen: Watched) -> None:
    """Its attention matters then; its head stays at 0, so that at first all values are alike, packed and not."""
    stir(seen.critic.body(), 0.3, seed=2)


def test_a_critic_of_another_architecture_is_tried(watch: Callable[..., Watched], workplace: Path) -> None:
    critic = nemotron(workplace / "nemotron")
    seen = watch(f"critic.init={critic}", "critic.learning_rate=0.01", on=stirred)
    assert seen.trainer.passes.describe().startswith(OF_THE_CRITIC)
    assert read_json(seen.folder.provenance)["passes"] == seen.trainer.passes.describe()
    assert farthest(seen) < 1e-4


def test_without_the_trial_its_values_are_wrong(
    watch: Callable[..., Watched], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control, and what a run had for values before critics were tried."""
    monkeypatch.setattr(PpoMixin, "_has_tried_critic", True)
    seen = watch(f"critic.init={nemotron(workplace / 'nemotron')}", "critic.learning_rate=0.01", on=stirred)
    assert seen.trainer.passes.describe() == "packed"
    assert farthest(seen) > 0.1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kl.where=none", "trainer.args.steps_per_generation=1"], OF_THE_CRITIC),
        (["kl.coef=0.1"], "trimmed: packed, its log-probabilities were "),
    ],
    ids=["critic first", "policy first"],
)
def test_both_fall_back_where_one_does(
    watch: Callable[..., Watched], workplace: Path, words: list[str], said: str
) -> None:
    """If packing fails for policy or critic, both use trimmed rows, whichever is tried first."""
    byte_tokenizer(context_tokens=64).save_pretrained(str(policy := nemotron(workplace / "policy")))
    seen = watch("model.build=null", f"model.path={policy}", "critic.learning_rate=0.01", *words, on=stirred)
    assert seen.trainer.passes.describe().startswith(said)
    assert read_json(seen.folder.provenance)["passes"] == seen.trainer.passes.describe()
    assert farthest(seen) < 1e-4


def test_what_is_right_packed_stays_packed(watch: Callable[..., Watched]) -> None:
    seen = watch("critic.learning_rate=0.01", on=stirred)
    assert read_json(seen.folder.provenance)["passes"] == seen.trainer.passes.describe() == "packed"
    assert farthest(seen) < 1e-4
