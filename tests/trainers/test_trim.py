"""Trimming and sorting only move and remove padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rlhf_cli.models.packing.row_attention import has_relative_positions
from rlhf_cli.trainers import pass_mixin
from rlhf_cli.trainers.forward_pass import by_length, reordered_in_windows, trimmed, used_columns
from rlhf_cli.trainers.trl_protocol import TrlBatch

PROMPT, COMPLETION = 5, 7


def longest_first(rows: TrlBatch) -> Tensor:
    return by_length(rows["completion_mask"])


def ragged(rows: int, seed: int, *, may_be_empty: bool = True) -> dict[str, Tensor]:
    """A batch in TRL's layout in which every token, advantage and value is unlike every other."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, PROMPT + 1, (rows,), generator=generator)
    completions = torch.randint(0 if may_be_empty else 1, COMPLETION + 1, (rows,), generator=generator)
    prompt_mask = (torch.arange(PROMPT) >= PROMPT - prompts.unsqueeze(1)).long()
    completion_mask = (torch.arange(COMPLETION) < completions.unsqueeze(1)).long()
    numbers = 1 + torch.arange(rows * (PROMPT + COMPLETION)).view(rows, -1)
    batch = {
        "prompt_ids": numbers[:, :PROMPT] * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": numbers[:, PROMPT:] * completion_mask,
        "completion_mask": completion_mask,
        "num_items_in_batch": completion_mask.sum(),
    }
    for index, name in enumerate(("advantages", "returns", "rollout_values", "old_per_token_logps")):
        batch[name] = (numbers[:, PROMPT:] + 0.1 * (index + 1)) * completion_mask
    return batch


def facts(batches: list[dict[str, Any]]) -> list[list[Any]]:
    """Per row of any of these batches: its prompt, its completion, and what stands at each of its tokens."""
    found = []
    for batch in batches:
        names = [name for name in batch if not name.startswith("prompt") and batch[name].dim() == 2]
        for row in range(len(batch["prompt_ids"])):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
            kept = batch["completion_mask"][row].bool()
            found.append([prompt, *(batch[name][row][kept].tolist() for name in sorted(names))])
    return found


def split(batch: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    rows = range(0, len(batch["prompt_ids"]), size)
    return [{n: v[start : start + size] if v.dim() else v for n, v in batch.items()} for start in rows]


@pytest.mark.parametrize("seed", range(6))
class TestNothingIsLost:
    def test_trimmed(self, seed: int) -> None:
        batch = ragged(1 + seed % 5, seed)
        found = trimmed(batch, may_move=True)
        assert facts([found]) == facts([batch])
        assert found["num_items_in_batch"] == batch["num_items_in_batch"]
        widths = {found[name].shape[1] for name in found if name.startswith("completion") or name in ppo_names(found)}
        assert widths == {max(1, int(batch["completion_mask"].sum(dim=1).max()))}
        assert found["prompt_ids"].shape[1] == int(batch["prompt_mask"].sum(dim=1).max())
        not_moved = trimmed(batch, may_move=False)
        assert facts([not_moved]) == facts([batch])
        assert not_moved["prompt_ids"].shape[1] == PROMPT

    @pytest.mark.parametrize("window", [1, 2, 3, 6])
    def test_reordered_in_windows(self, seed: int, window: int) -> None:
        batches = split(ragged(12, seed), 2)
        found = reordered_in_windows(batches, window, longest_first)
        assert [len(batch["prompt_ids"]) for batch in found] == [2] * 6
        for start in range(0, 6, window):
            inside = slice(start, start + window)
            assert sorted(facts(found[inside])) == sorted(facts(batches[inside]))
            lengths = torch.cat([batch["completion_mask"].sum(dim=1) for batch in found[inside]])
            assert window == 1 or bool((lengths.diff() <= 0).all())

    @pytest.mark.parametrize("may_move", [True, False])
    def test_used_columns(self, seed: int, may_move: bool) -> None:
        """No token is outside, the first and the last column hold one, and of either part a column stays."""
        batch = ragged(1 + seed % 3, seed)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        columns = used_columns(mask, COMPLETION, may_move=may_move)
        assert mask[:, columns].sum() == mask.sum()
        assert columns.start < PROMPT < columns.stop
        assert columns.stop == PROMPT + 1 or bool(mask[:, columns.stop - 1].any())
        assert bool(mask[:, columns.start].any()) if may_move else columns.start == 0


def test_rows_without_a_token_keep_a_column_of_either_part() -> None:
    assert used_columns(torch.zeros(2, 5), 3, may_move=True) == slice(1, 3)
    assert used_columns(torch.zeros(2, 5), 3, may_move=False) == slice(0, 3)


def ppo_names(batch: dict[str, Tensor]) -> set[str]:
    return {"advantages", "returns", "rollout_values", "old_per_token_logps"} & set(batch)


def test_a_ragged_batch_loses_columns() -> None:
    """Control: that it does nothing at all would pass most of what is above."""
    batch = ragged(4, seed=0)
    batch["completion_mask"][:, 3:] = 0
    batch["prompt_mask"][:, :2] = 0
    found = trimmed(batch, may_move=True)
    assert found["completion_ids"].shape[1] <= 3
    assert found["prompt_ids"].shape[1] <= 3
    assert found["advantages"].shape == found["completion_ids"].shape


def test_what_is_not_known_is_left_as_it_is() -> None:
    batch = {**ragged(4, seed=0), "pixel_values": torch.zeros(4, 3)}
    assert trimmed(batch, may_move=True) is batch
    assert reordered_in_windows([batch, batch], 2, longest_first)[0] is batch


class TestPositions:
    """Rows may be moved where only distances between tokens count."""

    def test_of_a_model_with_rotary_embeddings(self) -> None:
        config = LlamaConfig(**TINY, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1)
        assert has_relative_positions(config)
        assert self.moved(LlamaForCausalLM(config)) < 1e-5

    def test_of_a_model_with_learned_ones(self) -> None:
        config = GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=32)
        assert not has_relative_positions(config)
        model = GPT2LMHeadModel(config)
        torch.nn.init.normal_(model.transformer.wpe.weight)
        assert self.moved(model) > 1e-2

    @staticmethod
    def moved(model: Any) -> float:
        """By how much its logits change when three columns of padding are taken off the left."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(1, 64, (2, 8), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, :3] = mask[1, :4] = 0
        with torch.no_grad():
            whole = model.eval()(input_ids=ids, attention_mask=mask).logits[:, 4:]
            less = model(input_ids=ids[:, 3:], attention_mask=mask[:, 3:]).logits[:, 1:]
        return float((whole - less).abs().max())


TINY: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "max_position_embeddings": 32}


class TestInARun:
    """A run without any of it ends with the same weights: to a hundredth of a step, which Adam makes 1e-3 long."""

    @pytest.fixture
    def run(self, train_ppo, before_training, workplace: Path):
        (workplace / "mine.py").write_text(
            "def score(completion_ids, **kwargs):\n    return [len(ids) + ids[0] % 5 for ids in completion_ids]\n"
        )
        made: list[Any] = []

        def prepare(trainer: Any) -> None:
            made.append(trainer)
            trainer.eos_token_ids = trainer.generation_config.eos_token_id = [1, *range(2, 60)]
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                head = trainer.critic.model.score.weight
                head.copy_(torch.randn(head.shape, generator=generator))

        before_training(prepare)

        def train(*overrides: str, name: str) -> Tensor:
            code, _ = train_ppo(
                "~rewards.correct",
                "~rewards.format",
                "~rewards.brevity",
                "++rewards.score={fn: './mine.py:score'}",
                "trainer.args.per_device_train_batch_size=4",
                "trainer.args.max_completion_length=8",
                "trainer.args.num_iterations=2",
                "trainer.args.max_steps=4",
                *overrides,
                name=name,
            )
            assert code == 0
            models = (made[-1].model, made[-1].critic.model)
            return torch.cat([one.detach().flatten() for model in models for one in model.parameters()])

        return train

    @pytest.mark.parametrize(
        ("setting", "passes"),
        [
            ("trainer.args.loss_type=dapo", "packed"),
            ("trainer.args.loss_type=bnpo", "trimmed"),
            ("kl.where=loss", "packed"),
            ("trainer.args.top_entropy_quantile=0.5", "trimmed"),
        ],
    )
    def test_ends_with_the_same_weights(self, run, monkeypatch: pytest.MonkeyPatch, setting: str, passes: str) -> None:
        accumulated = ("trainer.args.gradient_accumulation_steps=2", "trainer.args.steps_per_generation=4")
        widths: list[tuple[int, int]] = []
        trim_real = pass_mixin.trimmed

        def spied(batch: Any, *, may_move: bool) -> Any:
            found = trim_real(batch, may_move=may_move)
            before, after = (one["prompt_ids"].shape[1] + one["completion_ids"].shape[1] for one in (batch, found))
            widths.append((before, after))
            return found

        with monkeypatch.context() as patch:
            patch.setattr(pass_mixin, "trimmed", spied)
            with_it = run(*accumulated, setting, f"trainer.passes={passes}", name="with")
        assert any(after < before for before, after in widths)
        without = run(*accumulated, setting, "trainer.passes=plain", name="without")
        torch.testing.assert_close(with_it, without, atol=1e-5, rtol=0)

    def test_rows_stay_in_their_optimizer_step(self, run) -> None:
        """Three micro-batches a step and two a round: a round's rows belong to two steps, so none may be moved."""
        odd = ("trainer.args.gradient_accumulation_steps=3", "trainer.args.steps_per_generation=2")
        odd += ("trainer.args.num_iterations=1",)
        with_it = run(*odd, name="with")
        without = run(*odd, "trainer.passes=plain", name="without")
        torch.testing.assert_close(with_it, without, atol=1e-5, rtol=0)
