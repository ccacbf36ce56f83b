"""The pairs that are shown while a reward model learns: when, which, and what the table says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.runs.tracking.mirror import Mirror, Row
from tests.support.small_reward_runs import from_file, samples, sums
from tests.support.tolerances import MODEL


def test_samples_are_shown_at_every_evaluation_and_are_the_models_own_scores(learn, capsys) -> None:
    evaluation = ["data.eval.fraction=0.3", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2"]
    code, folder = learn(*from_file(sums(20)), *evaluation, "reward_model.show_samples=3")
    assert code == 0
    rows = samples(folder)
    assert [(row["step"], row["row"]) for row in rows] == [(step, row) for step in (2, 3) for row in (1, 2, 3)]
    shown = capsys.readouterr().out
    assert "pairs in the right order" in shown
    assert "well" in shown
    log = folder.log.read_text()
    assert log.count("of 3 pairs in the right order") == 2
    # Row lengths are reported even if no row is dropped or cut.
    assert re.search(r"data: .* all 14 rows .*shortest", log)
    assert re.search(r"data\.eval: .* all 6 rows .*shortest", log)
    model = AutoModelForSequenceClassification.from_pretrained(folder.model)
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    for row in rows[3:]:
        for side in ("chosen", "rejected"):
            text = row["prompt"] + row[side] + tokenizer.eos_token
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            assert model(input_ids=ids).logits.item() == pytest.approx(row[f"score_{side}"], **MODEL)
        right = "right" if row["score_chosen"] > row["score_rejected"] else "wrong"
        assert row["verdict"] == right
        assert row["margin"] is None


@pytest.mark.parametrize(("asked", "shown"), [(0, 0), (5, 5), (-1, 12), (100, 12)])
def test_how_many_samples(learn, asked: int, shown: int) -> None:
    _, folder = learn(*from_file(sums()), f"reward_model.show_samples={asked}")
    assert (len(samples(folder)) if folder.samples.exists() else 0) == shown


def test_showing_samples_changes_no_number(learn) -> None:
    with_, without = (learn(f"reward_model.show_samples={n}", name=f"n{n}")[1] for n in (4, 0))
    one, other = ((folder.model / "model.safetensors").read_bytes() for folder in (with_, without))
    assert one == other


def test_the_mirror_of_a_run_gets_a_table(learn, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, int, Sequence[Row]]] = []
    monkeypatch.setattr(Mirror, "table", lambda _, name, step, rows: logged.append((name, step, rows)))
    learn(*from_file(sums()), "reward_model.show_samples=2")
    ((name, step, rows),) = logged
    assert (name, step) == ("samples", 3)
    assert {"prompt", "chosen", "rejected", "score_chosen", "score_rejected", "margin", "verdict"} <= set(rows[0])
    assert len(rows) == 2


def test_a_resumed_run_writes_its_samples_once(learn) -> None:
    evaluation = ["data.eval.fraction=0.3", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1"]
    _, folder = learn(*from_file(sums(20)), *evaluation, "trainer.args.save_steps=1")
    whole = samples(folder)
    for path in sorted(folder.checkpoints.iterdir())[1:]:
        shutil.rmtree(path)
    folder.status.write_text(json.dumps({**read_json(folder.status), "state": "failed"}))
    assert main(["resume", str(folder.path)]) == 0
    assert samples(folder) == whole
