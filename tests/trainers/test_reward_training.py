"""Reward models through TRL's RewardTrainer: the loss by hand, and what the data may hold."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.runs.text_endings import trained_with_eos
from tests.support.small_reward_runs import from_file, losses, samples, sums
from tests.support.tolerances import ARITHMETIC, ARITHMETIC_OF_TENSORS

SCORES = "reward_model.margin={chosen: score_chosen, rejected: score_rejected}"


# The loss


def by_hand(chosen: Tensor, rejected: Tensor, margin: Tensor, center: float) -> tuple[float, Tensor, Tensor]:
    """(loss, its derivatives by every chosen and by every rejected score), in plain Python floats.

    -log sigmoid(z) = log(1 + exp(-z)), whose derivative by z is -1 / (1 + exp(z)); z = chosen - rejected - margin.
    """
    size = len(chosen)
    loss, by_chosen, by_rejected = 0.0, [], []
    for c, r, m in zip(chosen.tolist(), rejected.tolist(), margin.tolist(), strict=True):
        z = c - r - m
        loss += math.log1p(math.exp(-z)) / size + center * (c + r) ** 2 / size
        slope = -1 / (1 + math.exp(z)) / size
        pull = 2 * center * (c + r) / size
        by_chosen.append(slope + pull)
        by_rejected.append(-slope + pull)
    return loss, torch.tensor(by_chosen, dtype=torch.float64), torch.tensor(by_rejected, dtype=torch.float64)


def in_float64(trainer: Any, seed: int) -> Any:
    """The trainer's model, in float64 (its norms still count in float32), with a head whose scores are far from 0."""
    model = copy.deepcopy(trainer.model).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.score.weight, std=1.0)
    return model


def random_batch(trainer: Any, seed: int) -> list[dict[str, Any]]:
    """Rows of token ids of uneven lengths, with the margins of the training data where it has any."""
    draw = torch.Generator().manual_seed(seed)

    def ids() -> list[int]:
        length = int(torch.randint(1, 9, (1,), generator=draw))
        return torch.randint(3, 200, (length,), generator=draw).tolist()

    rows = [trainer.train_dataset[row] for row in range(seed, seed + 6)]
    margins = [{"margin": row["margin"]} if "margin" in row else {} for row in rows]
    return [{"chosen_ids": ids(), "rejected_ids": ids(), **margin} for margin in margins]


def scores_of(model: Any, rows: list[dict[str, Any]], side: str) -> Tensor:
    """One row at a time, so that there is no padding to be wrong about."""
    return torch.cat([model(input_ids=torch.tensor([row[side]]), use_cache=False).logits[0] for row in rows])


@pytest.mark.parametrize(
    ("margin", "center"), [(None, 0.0), (None, 0.3), ("identity", 0.3), ("log1p", 0.0), ("rank", 0.3)]
)
def test_the_loss_and_its_gradient_are_those_written_by_hand(
    learn, before_training, margin: str | None, center: float
) -> None:
    checked: list[int] = []

    def check(trainer: Any) -> None:
        for seed in range(3):
            model, rows = in_float64(trainer, seed), random_batch(trainer, seed)
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            batch = trainer.data_collator(rows)
            asked = torch.zeros(len(rows))
            if margin is None:
                assert "margin" not in batch
            else:
                table = trainer.train_dataset
                assert [row["margin"] for row in rows] == table[seed : seed + len(rows)]["margin"]
                asked = batch["margin"]
            loss = trainer.compute_loss(model, batch)
            gradient = torch.autograd.grad(loss, weights, allow_unused=True)
            chosen, rejected = scores_of(model, rows, "chosen_ids"), scores_of(model, rows, "rejected_ids")
            expected, by_chosen, by_rejected = by_hand(chosen, rejected, asked, center)
            outputs, slopes = torch.cat([chosen, rejected]), torch.cat([by_chosen, by_rejected])
            wanted = torch.autograd.grad(outputs, weights, slopes, allow_unused=True)
            assert loss.dtype == torch.float64
            assert loss.item() == pytest.approx(expected, **ARITHMETIC)
            for got, want in zip(gradient, wanted, strict=True):
                assert (got is None) == (want is None)
                assert got is None or torch.allclose(got, want, **ARITHMETIC_OF_TENSORS)
            # Negative controls: the loss without the margin, and without the centring, is another.
            if margin is not None:
                assert abs(loss.item() - by_hand(chosen, rejected, torch.zeros(len(rows)), center)[0]) > 0.05
            if center:
                assert abs(loss.item() - by_hand(chosen, rejected, asked, 0.0)[0]) > 0.05
            checked.append(seed)

    before_training(check)
    words = [SCORES.replace("}", f", transform: {margin}}}")] if margin else []
    code, _ = learn(f"reward_model.center={center}", "trainer.args.max_steps=1", *words)
    assert (code, checked) == (0, [0, 1, 2])


def test_the_margins_in_the_batch_are_those_of_the_scores(learn, before_training) -> None:
    seen: list[tuple[float, float]] = []

    def check(trainer: Any) -> None:
        from rlhf_cli.data.worlds.toy_preferences import generate

        rows = {(row["prompt"], row["chosen"], row["rejected"]): row for row in generate(40, 0)}
        tokenizer = trainer.processing_class
        for row in trainer.train_dataset:
            pair = [tokenizer.decode(row[side], skip_special_tokens=True) for side in ("chosen_ids", "rejected_ids")]
            true = rows[(row["prompt"], *(text.removeprefix(row["prompt"]) for text in pair))]
            seen.append((row["margin"], 2 * (true["score_chosen"] - true["score_rejected"])))

    before_training(check)
    assert learn(SCORES.replace("}", ", scale: 2.0}"))[0] == 0
    assert len(seen) == 40
    assert all(got == pytest.approx(want, abs=1e-12) for got, want in seen)


# What the data may hold


def test_a_margin_column_counts_only_when_it_is_configured(learn) -> None:
    plain = learn(*from_file(sums()), name="plain")[1]
    there = learn(*from_file(sums(margin=2.0)), name="there")[1]
    used = learn(*from_file(sums(margin=2.0)), "reward_model.margin={column: margin}", name="used")[1]
    assert losses(plain) == losses(there)
    assert losses(used)[0] > losses(plain)[0] + 1.0  # log(1 + e^2) is 2.13, log(2) 0.69


def test_text_and_its_token_ids_in_the_former_format_train_the_same(learn, before_training) -> None:
    ids: list[dict[str, Any]] = []

    def take(trainer: Any) -> None:
        if not ids:
            for row in trainer.train_dataset:
                sides = {}
                for side, at_the_end in (("chosen", True), ("rejected", False)):
                    tokens, padding = row[f"{side}_ids"], [0, 0]
                    mask = [1] * len(tokens)
                    sides[f"input_ids_{side}"] = tokens + padding if at_the_end else padding + tokens
                    sides[f"attention_mask_{side}"] = [*mask, 0, 0] if at_the_end else [0, 0, *mask]
                ids.append({**sides, "strength": row["margin"]})

    before_training(take)
    margin = "reward_model.margin={column: strength}"
    _, text = learn(*from_file([{**row, "strength": n / 4} for n, row in enumerate(sums())]), margin, name="text")
    code, tokens = learn(*from_file(ids, "ids.jsonl"), margin, name="ids")
    assert code == 0
    assert losses(tokens) == losses(text)
    for one, other in zip(samples(tokens), samples(text), strict=True):
        assert (one["score_chosen"], one["margin"]) == (other["score_chosen"], other["margin"])
        assert one["prompt"] + one["chosen"] == other["prompt"] + other["chosen"]


def test_conversations(learn) -> None:
    def said(role: str, content: str) -> list[dict[str, str]]:
        return [{"role": role, "content": content}]

    asked = [
        {"prompt": said("user", row["prompt"])}
        | {side: said("assistant", row[side]) for side in ("chosen", "rejected")}
        for row in sums()
    ]
    code, folder = learn(*from_file(asked))
    assert code == 0
    assert samples(folder)[1]["prompt"] == "1+1="
    assert (samples(folder)[1]["chosen"], samples(folder)[1]["rejected"]) == ("2", "well 1")


def test_transcripts(learn) -> None:
    start = "\n\nHuman: Hello\n\nAssistant: Hi!\n\nHuman: {}+1?\n\nAssistant:"
    rows = [
        {"chosen": start.format(n) + f" It is {n + 1}.", "rejected": start.format(n) + f" It is {n}."}
        for n in range(12)
    ]
    code, folder = learn(*from_file(rows), "data.transcripts=true")
    assert code == 0
    assert (samples(folder)[0]["prompt"], samples(folder)[0]["chosen"]) == (start.format(0), " It is 1.")
    assert "0+1?" in folder.log.read_text()


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"rejected": "1"}, "identical answers: row 1"),
        ({"chosen": ""}, "empty answers: row 1"),
    ],
)
def test_pairs_that_teach_nothing(learn, capsys, bad: dict[str, str], told: str) -> None:
    rows = sums(12)
    rows[0] |= bad
    code, folder = learn(*from_file(rows))
    error = capsys.readouterr().err
    assert code == 2
    assert told in error
    assert "data, row 1 (the first row is 1)" in error
    assert not folder.path.exists()
    code, folder = learn("reward_model.on_bad_pair=drop", *from_file(rows), name="drop")
    assert code == 0
    why = told.partition(":")[0].replace(" ", "_")
    assert read_json(folder.provenance)["left_out"] == {"data": {why: 1}}
    assert read_json(folder.provenance)["num_train_rows"] == 11
    assert f"pairs left out of data: 1 {told.partition(':')[0]}" in folder.log.read_text()


def test_a_margin_of_strings_and_one_below_0(learn, capsys) -> None:
    code, _ = learn(*from_file(sums(strength="2")), "reward_model.margin={column: strength}")
    error = capsys.readouterr().err
    assert code == 2
    assert "row 1: '2', text" in error
    assert "numbers are written without quotes" in error
    rows = [*sums(11, strength=1.0), sums(1, strength=-1.0)[0]]
    dropping = "reward_model.margin={column: strength, on_bad: drop}"
    code, folder = learn(*from_file(rows, "below.jsonl"), dropping, name="below")
    assert code == 0
    assert read_json(folder.provenance)["left_out"] == {"data": {"no_sound_margin": 1}}


def test_a_margin_column_that_is_not_there_is_told_before_anything_is_loaded(learn, capsys) -> None:
    code, folder = learn("reward_model.margin={column: strength}")
    assert code == 2
    assert "no column 'strength' in the data" in capsys.readouterr().err
    assert not folder.path.exists()


def test_the_figures_of_training_are_those_of_rlhf_eval(learn, workplace: Path) -> None:
    """One model, one number: TRL's own evaluation, a mean of equal batches, against ours of the same held-out pairs.

    Without the end-of-sequence token, the negative control, the same model has other figures.
    """
    words = [*from_file(sums(16)), "data.eval.fraction=0.5", "trainer.args.per_device_eval_batch_size=8"]
    code, folder = learn(*words, "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=3", "model.lora.r=2")
    assert code == 0
    (trl,) = [event for event in read_metrics(folder.metrics) if "eval_margin" in event]
    for option, is_same in (("--eos", True), ("--no-eos", False)):
        assert main(["eval", str(folder.path), option]) == 0
        name = "held_out" if is_same else "held_out_no_eos"
        found = read_json(folder.path / "eval" / f"{name}.json")
        figures = (found["rewards"]["margin"]["mean"], found["calibration"]["log_loss"])
        assert (figures == pytest.approx((trl["eval_margin"], trl["eval_loss"]), **ARITHMETIC)) is is_same


def test_a_conversation_ends_as_its_template_says(learn, workplace: Path) -> None:
    def said(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    asked = [{"role": "user", "content": "1+1="}]
    rows = [{"prompt": asked, "chosen": said("2"), "rejected": said("3")}] * 8
    code, folder = learn(*from_file(rows))
    assert (code, trained_with_eos(folder.model)) == (0, False)
