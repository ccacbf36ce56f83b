"""Rows that the policy cannot read are refused before its weights load: no EOS, no chat template, no room."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trl

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from tests.support.small_runs import SMALL, starting_model

LOCAL = [word for word in SMALL if not word.startswith(("model.build", "data.args"))]
FILE = ["model=local", "model.path=./model", "data=file", "data.path=rows.jsonl", "~rewards.correct", "~rewards.format"]


@pytest.fixture
def local(train, workplace: Path, monkeypatch: pytest.MonkeyPatch):
    """`local(prompts, *words)` trains on these prompts from a copy of the embedded model in ./model."""
    _, folder = train("trainer.args.max_steps=1")
    shutil.copytree(starting_model(folder), workplace / "model")

    def run(prompts: list[object], *words: str) -> int:
        rows = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
        (workplace / "rows.jsonl").write_text(rows)
        return main(["train", *LOCAL, *FILE, "trainer.args.max_steps=1", "run.name=local", *words])

    return run


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl.GRPOTrainer, "__init__", lambda *_, **__: pytest.fail("the model was loaded"))


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.fault(44)
def test_no_end(local, no_weights, workplace: Path, capsys) -> None:
    edit(workplace / "model" / "tokenizer_config.json", eos_token=None)
    assert local(["hello"] * 8) == 2
    assert "eos_token is not set" in capsys.readouterr().err


@pytest.mark.fault(44)
def test_conversations_without_a_chat_template(local, no_weights, workplace: Path, capsys) -> None:
    for file in workplace.glob("model/chat_template*"):
        file.unlink()
    edit(workplace / "model" / "tokenizer_config.json", chat_template=None)
    assert local([[{"role": "user", "content": "hello"}]] * 8) == 2
    assert "the model has no chat template, and the rows are conversations" in capsys.readouterr().err


@pytest.mark.fault(43)
def test_a_prompt_that_leaves_no_room(local, no_weights, capsys) -> None:
    """512 tokens are read and 4 written: 508 are a prompt's."""
    assert local(["a" * 508] * 7 + ["a" * 509]) == 2
    told = capsys.readouterr().err
    assert "prompts of more than 508 tokens" in told
    assert "row 8" in told
    assert "1 of 8 prompts are longer, the longest has 509 tokens" in told


@pytest.mark.fault(43)
def test_it_is_left_out_and_said(local, capsys) -> None:
    assert local(["a" * 508] * 7 + ["a" * 509], "data.overlong_prompts=drop") == 0
    assert "warning: data: 1 of 8 prompts have more than 508 tokens (the longest 509) and are left out" in (
        " ".join(capsys.readouterr().out.split())
    )


@pytest.mark.fault(43)
def test_what_stays_of_it_is_its_end(local, workplace: Path) -> None:
    assert local(["a" * 600 + "b" * 508] * 8, "data.overlong_prompts=truncate") == 0
    import pyarrow.parquet

    (table,) = workplace.glob("runs/quickstart/local/completions/*.parquet")
    assert set(pyarrow.parquet.read_table(table).to_pydict()["prompt"]) == {"b" * 508}
    assert read_metrics(workplace / "runs" / "quickstart" / "local" / "metrics.jsonl")


FROZEN = """
from trl import GRPOTrainer

class Frozen(GRPOTrainer):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.model.requires_grad_({})
"""


@pytest.mark.fault(46)
@pytest.mark.parametrize(("trains", "code"), [(False, 2), (True, 0)])
def test_nothing_to_train(train, workplace: Path, capsys, trains: bool, code: int) -> None:
    (workplace / "mine.py").write_text(FROZEN.format(trains))
    ended, folder = train("trainer.class=./mine.py:Frozen", "trainer.args.max_steps=1")
    assert ended == code
    assert ("there is nothing to train" in capsys.readouterr().err) is not trains
    assert folder.model.is_dir() is trains
