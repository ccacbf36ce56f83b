"""Scoring completions without a training: whose tokenizer counts their tokens, and what is said of missing columns."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import NOT_GIVEN
from rlhf_cli.errors import DataError, ModelError
from rlhf_cli.evaluation import score_completions
from rlhf_cli.evaluation.score_completions import policy_tokenizer, reads_tokens, score, score_with
from rlhf_cli.models.tiny import byte_tokenizer
from rlhf_cli.plan.stack_building import reward_stack

TEMPLATE = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


def counted(completion_ids: Any, **columns: object) -> list[float]:
    return [float(len(ids)) for ids in completion_ids]


def letters(completions: Any, **columns: object) -> list[float]:
    return [float(len(text)) for text in completions]


COUNTED, LETTERS = {"fn": f"{__name__}:counted", "weight": 1.0}, {"fn": f"{__name__}:letters", "weight": 1.0}
MATCH = {"fn": "rlhf_cli.rewards.match:exact_match", "weight": 1.0}
ROWS: list[dict[str, Any]] = [{"prompt": "p", "completion": "abc"}, {"prompt": "q", "completion": "de"}]


def experiment(model: dict[str, object], **rewards: object) -> Experiment:
    sections = {name: {} for name in ("launch", "track", "run")}
    return Experiment.model_validate(
        {
            **{"seed": 0, "trainer": {"name": "grpo", "trl": "GRPOTrainer"}, "data": {"world": "toy_sums"}},
            **{"model": model, "rewards": rewards, **sections},
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer(64).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("key", ["path", "tokenizer"])
def test_the_policys_tokenizer_is_loaded_with_its_template(folder: Path, key: str) -> None:
    """`model.tokenizer` goes before `model.path`, which has none here."""
    model: dict[str, object] = {"path": "no/such/folder", key: str(folder), "chat_template": TEMPLATE}
    found = policy_tokenizer(experiment(model), wanted_by="test")
    assert found("1+1=")["input_ids"] == byte_tokenizer(64)("1+1=")["input_ids"]
    chat = [{"role": "user", "content": "hi"}]
    assert found.apply_chat_template(chat, tokenize=False) == "<hi>"


def test_without_a_policy_or_without_its_tokenizer_the_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for model in ({"path": NOT_GIVEN}, {"path": str(tmp_path / "empty")}):
        with pytest.raises(ModelError) as caught:
            policy_tokenizer(experiment(dict(model)), wanted_by="test")
        assert caught.value.where == "model.path"


def test_which_rewards_count_tokens() -> None:
    def by_unit(completions: Any, completion_ids: Any, unit: str = "tokens") -> list[float]:
        return []

    assert reads_tokens(counted)
    assert reads_tokens(by_unit)
    assert not reads_tokens(functools.partial(by_unit, unit="characters"))
    assert not reads_tokens(letters)


def test_without_a_policy_rewards_that_count_tokens_are_left_out_and_no_row_has_a_total() -> None:
    found = score(experiment({"path": NOT_GIVEN}, letters=LETTERS, counted=COUNTED), ROWS)
    assert [row.total for row in found.rows] == [None, None]
    assert [row.rewards["letters"].raw for row in found.rows] == [3.0, 2.0]
    assert list(found.summary) == ["letters"]
    assert "rewards.counted" in str(found.no_total)
    # Negative control: token ids in the rows need no tokenizer.
    whole = score(
        experiment({"path": NOT_GIVEN}, letters=LETTERS, counted=COUNTED),
        [{**row, "completion_ids": [1, 2, 3, 4]} for row in ROWS],
    )
    assert ([row.total for row in whole.rows], whole.no_total) == ([7.0, 6.0], None)


def test_an_answers_tokens_are_those_of_its_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the special tokens that a tokenizer puts around a text by default, here one at its start."""

    def tokenizer(texts: list[str], *, add_special_tokens: bool = True, **others: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * add_special_tokens + list(text.encode()) for text in texts]}

    monkeypatch.setattr(score_completions, "policy_tokenizer", lambda experiment, wanted_by: tokenizer)
    found = score(experiment({"path": "given"}, counted=COUNTED), ROWS)
    assert [row.rewards["counted"].raw for row in found.rows] == [3.0, 2.0]


@pytest.mark.parametrize(
    ("where", "hint"), [("--completions", "answr"), ("data", "data.rename.answer=EXISTING_COLUMN")]
)
def test_a_column_that_a_reward_reads_and_the_rows_lack(where: str, hint: str) -> None:
    asked = experiment({"path": NOT_GIVEN}, match=MATCH)
    stack = reward_stack(asked, device="cpu")
    try:
        with pytest.raises(DataError) as caught:
            score_with(stack, asked, [{**row, "answr": "x"} for row in ROWS], where=where)
    finally:
        stack.close()
    assert (caught.value.where, caught.value.hint) == (where, hint)
