"""Reward models through TRL's RewardTrainer: the loss by hand, and what the data may hold."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.trainers import evaluation_mixin
from tests.support.float64 import in_float64, no_float32
from tests.support.small_reward_runs import from_file, samples, sums
from tests.support.tolerances import ARITHMETIC, EXACT, MODEL, assert_equal

pytestmark = pytest.mark.whole

SCORES = "reward_model.margin={chosen: score_chosen, rejected: score_rejected}"


# The loss


def by_hand(chosen: Tensor, rejected: Tensor, margin: Tensor, center: float) -> tuple[float, Tensor, Tensor]:
    """(loss, its derivatives by every chosen and by every rejected score).

    -log sigmoid(z) = log(1 + exp(-z)), whose derivative by z is -1 / (1 + exp(z)); z = chosen - rejected - margin.
    """
    c, r = chosen.detach(), rejected.detach()
    z, size = c - r - margin, len(c)
    loss = ((-z).exp().log1p() + center * (c + r) ** 2).mean()
    slope, pull = -1 / (1 + z.exp()) / size, 2 * center * (c + r) / size
    return loss.item(), slope + pull, pull - slope


def exact_model(trainer: Any, seed: int) -> Any:
    """The trainer's model in float64, with a head whose scores are far from 0."""
    model = in_float64(copy.deepcopy(trainer.model))
    generator = torch.Generator().manual_seed(seed)
    torch.nn.init.normal_(model.score.weight, std=1.0, generator=generator)
    return model


def random_batch(trainer: Any, seed: int) -> list[dict[str, Any]]:
    """Rows of token ids of uneven lengths, with the margins of the training data where it has any."""
    draw = random.Random(seed)
    rows = [trainer.train_dataset[row] for row in range(seed, seed + 6)]
    return [
        {name: draw.choices(range(3, 200), k=draw.randrange(1, 9)) for name in ("chosen_ids", "rejected_ids")}
        | ({"margin": row["margin"]} if "margin" in row else {})
        for row in rows
    ]


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
            model, rows = exact_model(trainer, seed), random_batch(trainer, seed)
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            batch = trainer.data_collator(rows)
            assert ("margin" in batch) is (margin is not None)
            asked = torch.tensor([row.get("margin", 0.0) for row in rows])
            with no_float32():
                loss = trainer.compute_loss(model, batch)
                gradient = torch.autograd.grad(loss, weights, allow_unused=True)
                chosen, rejected = scores_of(model, rows, "chosen_ids"), scores_of(model, rows, "rejected_ids")
            expected, by_chosen, by_rejected = by_hand(chosen, rejected, asked, center)
            outputs, slopes = torch.cat([chosen, rejected]), torch.cat([by_chosen, by_rejected])
            wanted = torch.autograd.grad(outputs, weights, slopes, allow_unused=True)
            assert loss.dtype == torch.float64
            assert loss.item() == pytest.approx(expected, rel=EXACT)
            for got, want in zip(gradient, wanted, strict=True):
                assert (got is None) == (want is None)
                if got is not None:
                    assert_equal(got, want)
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


# What the data may hold


@pytest.mark.parametrize(("bad", "told"), [({"rejected": "1"}, "identical answers"), ({"chosen": ""}, "empty answers")])
def test_pairs_that_teach_nothing(learn, capsys, bad: dict[str, str], told: str) -> None:
    rows = sums(12)
    rows[0] |= bad
    code, folder = learn(*from_file(rows))
    assert (code, folder.path.exists()) == (2, False)
    assert f"row 1, {told}: " in capsys.readouterr().err
    code, folder = learn("reward_model.on_bad_pair=drop", *from_file(rows), name="drop")
    assert code == 0
    provenance = read_json(folder.provenance)
    assert provenance["left_out"] == {"data": {told.replace(" ", "_"): 1}}
    assert provenance["num_train_rows"] == 11
    assert f"pairs left out of data: 1 {told}" in folder.log.read_text()


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


def test_samples_are_shown_at_every_evaluation_and_are_the_models_own_scores(learn, capsys) -> None:
    evaluation = ["data.eval.fraction=0.3", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2"]
    code, folder = learn(*from_file(sums(20)), *evaluation, "reward_model.show_samples=3")
    assert code == 0
    rows = samples(folder)
    assert [(row["step"], row["row"]) for row in rows] == [(step, row) for step in (2, 3) for row in (1, 2, 3)]
    assert "pairs in the right order" in capsys.readouterr().out
    log = folder.log.read_text()
    assert log.count("of 3 pairs in the right order") == 2
    assert re.search(r"data\.eval: .* all 6 rows .*shortest", log)  # also if no row is dropped or cut
    model = AutoModelForSequenceClassification.from_pretrained(folder.model)
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    for row in rows[3:]:
        for side in ("chosen", "rejected"):
            text = row["prompt"] + row[side] + tokenizer.eos_token
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            assert model(input_ids=ids).logits.item() == pytest.approx(row[f"score_{side}"], **MODEL)
        is_right = row["score_chosen"] > row["score_rejected"]
        assert (row["verdict"], row["margin"]) == ("right" if is_right else "wrong", None)


@pytest.mark.parametrize(
    ("there", "asked", "count"), [(0, -1, 0), (1, -1, 1), (3, -1, 3), (3, 1, 1), (3, 9, 3), (3, 0, 0)]
)
def test_the_first_pairs_are_shown_once_a_step_and_again_if_the_model_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int, asked: int, count: int
) -> None:
    """Of the first of several sets. A resumed run writes the rows of later steps again; one rank writes at all."""
    monkeypatch.setattr(evaluation_mixin, "score_pairs", lambda _, rows: [(1.0, 0.0)] * len(rows))
    rows = Dataset.from_list([{"chosen_ids": [1, 2], "rejected_ids": [1, 3], "margin": 0.5}] * 3).select(range(there))
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: f"{ids[-1]} ß http://user:word@host")
    trainer: Any = SimpleNamespace(train_dataset=None, eval_dataset={"a": rows, "b": None}, processing_class=tokenizer)
    shown: list[int] = []
    file = tmp_path / "samples.jsonl"
    of = evaluation_mixin.RewardSamples(trainer, asked, file=file, on_pairs=lambda pairs: shown.append(len(pairs)))
    args, best = (SimpleNamespace(load_best_model_at_end=loads) for loads in (False, True))
    for step, call, given, rank in (
        *((4, of.on_evaluate, args, 0), (4, of.on_evaluate, args, 0), (4, of.on_train_end, args, 0)),
        *((5, of.on_train_end, args, 0), (5, of.on_train_end, best, 0), (6, of.on_train_end, args, 1)),
    ):
        call(given, SimpleNamespace(global_step=step, is_world_process_zero=rank == 0), None)
    assert shown == [count] * 3 * bool(count)
    assert file.exists() is bool(count)
    if count:
        assert "2 ß http://user:word@host" in file.read_text(encoding="utf-8")  # of a data set, and no secret
        written = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert [(row["step"], row["row"]) for row in written] == [
            (step, row + 1) for step in (4, 5, 5) for row in range(count)
        ]
        assert {row["margin"] for row in written} == {0.5}
        of.on_train_begin(args, SimpleNamespace(global_step=4, is_world_process_zero=True), None)
        assert len(file.read_text().splitlines()) == count
