"""Prompts as the model sees them; rows that it cannot read are refused before its weights load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trl

from rlhf_cli.cli import main
from rlhf_cli.evaluation.audit.trial import after_truncation
from rlhf_cli.models.tiny import byte_tokenizer
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.trainers.assemble.tried_rows import prompts_seen
from tests.support.small_runs import SMALL, starting_model

pytestmark = pytest.mark.whole

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


TEMPLATE = (
    "{% for message in messages %}<eos>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<eos>assistant:{% if brief %} (brief){% endif %}{% endif %}"
)
CHAT = [{"role": "user", "content": "Grüße"}]
WORDS = ["trainer=grpo", "data=toy_sums", "reward@rewards.right=sums_correct"]


@pytest.fixture
def folder(place: Path) -> Path:
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(place / "policy")
    return place / "policy"


def test_a_conversation_is_rendered_and_its_special_tokens_are_known(folder: Path) -> None:
    """Grüße is seven bytes. The template's two <eos> are one token each, and no text."""
    experiment = prepare([*WORDS, f"model.path={folder}", "model.build=null"]).experiment
    (seen,) = prompts_seen(experiment, [CHAT, CHAT], shown=1).prompts
    assert seen.text == "<eos>user: Grüße\n<eos>assistant:"
    assert seen.tokens == 2 + len("user: \nassistant:") + 7


def test_lengths(place: Path) -> None:
    """Of 1, 2, 3, 4 and 5 bytes: the median 3, a quarter below 2."""
    experiment = prepare([*WORDS, "model=tiny"]).experiment
    seen = prompts_seen(experiment, ["x" * n for n in (1, 2, 3, 4, 5)], shown=0, answers=["12", "3456"])
    prompts, answers = seen.lengths
    assert (prompts.count, *(prompts.quantiles[share] for share in ("0.5", "0.25", "1"))) == (5, 3, 2, 5)
    assert (answers.of, answers.quantiles["0.5"]) == ("right answers", 3)
    assert seen.prompts == []


class TestCutOff:
    def totals(self, *words: str, is_cut: bool = True) -> float | None:
        experiment = prepare([*WORDS, "model=tiny", *words]).experiment
        reward = ScoredReward(raw=2.0, effective=2.0, weighted=2.0, open=True, error=None)
        (row,) = after_truncation(experiment, [ScoredRow(2.0, {"right": reward})], ["x" * 14], [is_cut], 16)
        return row.total

    def test_every_policy_by_hand(self, place: Path) -> None:
        """Of 2: less a penalty of 0.5; replaced by -0.5; no total; nothing taken. The ramp's last 8 of 16 tokens: 14
        are 6 of 8 on their way to -1, and an answer that was cut has all 16.
        """
        penalty = ("truncation=eos_penalty", "truncation.penalty=0.5")
        assert self.totals(*penalty) == 1.5
        assert self.totals(*penalty, is_cut=False) == 2.0
        assert self.totals(*penalty, "truncation.mode=replace") == -0.5
        assert self.totals("truncation=exclude") is None
        assert self.totals("truncation=none") == 2.0
        ramp = ("truncation=soft_overlong", "truncation.penalty=1.0", "truncation.cache=8")
        ramp = (*ramp, "trainer.args.max_completion_length=16")
        assert self.totals(*ramp, is_cut=False) == pytest.approx(2.0 - 6 / 8)
        assert self.totals("truncation=eos_penalty", "truncation.penalty=0.1") == pytest.approx(1.9, rel=1e-12)
        assert self.totals(*ramp) == pytest.approx(1.0)
