"""The printed tables of `rlhf eval` and `rlhf score`, of scored pairs, and of a comparison at any width."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.comparison import ComparisonOptions, compare
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.display.audit_table import answers_table
from rlhf_cli.display.comparison_tables import number_texts, show_comparison
from rlhf_cli.display.evaluation_tables import pair_table, show_evaluation, show_made, show_parts, show_scores
from rlhf_cli.evaluation.evaluation_results import MadeRows, ShownAnswer
from rlhf_cli.evaluation.scored_pairs import ScoredPair
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, ScoredReward, ScoredRow
from rlhf_cli.rewards.stack.token_offsets import ScoredPart
from rlhf_cli.text.json_values import section
from rlhf_cli.trainers.assemble.tried_rows import TriedAnswer
from tests.support import measured
from tests.support.logged_runs import configured, write_run, write_sweep
from tests.support.terminal import drawn, printed


def reward(raw: float | None, *, is_open: bool = True, error: str | None = None) -> ScoredReward:
    return ScoredReward(raw=raw, effective=raw, weighted=raw, open=is_open, error=error)


def test_every_reward_that_raises_on_a_tried_answer_is_told() -> None:
    errors = {"a": "no gold", "b": "no tool"}
    table = answers_table([TriedAnswer(kind, "2", None, dict.fromkeys(errors), errors) for kind in ("gold", "empty")])
    said = "\n".join(drawn(table))
    assert all(f"rewards.{name} on {kind}: {errors[name]}" in said for name in errors for kind in ("gold", "empty"))


@pytest.mark.parametrize(("number", "ends"), [(1, ""), (2, "s")])
def test_what_generate_made_is_counted(number: int, ends: str) -> None:
    made = {"best.jsonl": MadeRows([{}] * number, Counter({"no answer": number}))}
    said = printed(lambda console: show_made(console, made, {"best.jsonl": "rlhf train"}))
    assert f"{number} row{ends} in best.jsonl" in said
    assert f"  {number} prompt{ends} gave no row: no answer" in said


def test_rows_and_summary() -> None:
    long: Any = [{"role": "assistant", "content": "z" * 60}]
    rows = [{"completion": "yes\n"}, {"completion": long}, {"completion": "[x]"}]
    scores = CompletionScores(
        [
            ScoredRow(1.5, {"right": reward(1.0), "short": reward(0.25)}),
            ScoredRow(0.0, {"right": reward(0.0), "short": reward(None, is_open=False)}),
            ScoredRow(None, {"right": reward(None, error="boom"), "short": reward(None)}),
        ],
        {
            "right": RewardSummary(0.5, 0.5, 1.0, 1.0, excluded=0, errors=1, calls=3),
            "short": RewardSummary(None, None, None, 2 / 3, excluded=1, errors=0, calls=2),
        },
    )
    *lines, legend = printed(lambda console: show_scores(console, rows, scores), 100)
    assert legend.startswith("rows and mean: ")
    assert lines == [
        "row  completion                                right  short  total",
        r"  0  yes\n                                     1.000  0.250  1.500",
        f"  1  {'z' * 39}…  0.000   gate  0.000",
        "  2  [x]                                       error      -      -",
        "",
        "all 3 rows   mean  effective  weighted  open  excluded  errors  calls",
        "right       0.500      0.500     1.000  100%         0       1      3",
        "short           -          -         -   67%         1       0      2",
    ]


def test_each_part_has_its_reward_behind_it() -> None:
    """Of 23, 2 got +1 and 3 got -1: `2 +13 -1` would say something else."""
    parts = [ScoredPart(0, 4, "A: 5", -1.0), ScoredPart(5, 6, "2", 1.0), ScoredPart(6, 7, "3", -1.0)]
    dense = ScoredReward(0.0, 0.0, 0.0, open=True, error=None, parts=parts)
    rows = [{"completion": "A: 5\n23!"}, {"completion": [{"role": "assistant", "content": "[bold]no markup"}]}]
    scores = CompletionScores([ScoredRow(0.0, {"larger": dense}), ScoredRow(0.5, {"larger": reward(0.5)})], {})
    assert printed(lambda console: show_parts(console, rows, scores), 60) == [
        *("row 0  total 0.000  (larger 0.000)", "larger", "A: 5[-1]", "2[+1]3[-1]!", ""),
        *("row 1  total 0.500  (larger 0.500)", "[bold]no markup", ""),
    ]


def test_pairs_have_the_prompts_end_and_a_margin_where_there_is_one() -> None:
    given: dict[str, Any] = {"step": 1, "row": 1, "prompt": "p", "chosen": "c", "rejected": "r", "margin": None}
    tie = ScoredPair(**given, score_chosen=0.0, score_rejected=0.0)
    long_prompt = "\n\nHuman: " + "x" * 50 + " why?\n\nAssistant:"
    long = replace(tie, prompt=long_prompt, chosen="a\nb" * 40, margin=0.25, score_chosen=1.0)
    shown = "\n".join(drawn(pair_table([long, tie]), 100))
    assert all(text in shown for text in ("step 1: 1 of 2 pairs in the right order", "x why?", "0.250", "tie"))
    assert "Human" not in shown
    assert "margin" not in "\n".join(drawn(pair_table([tie])))
    narrow = drawn(pair_table([long]))
    assert (len(narrow), narrow[2].split()[-2:]) == (3, ["0.250", "right"])


def test_a_policy() -> None:
    evaluation = measured.headed(measured.policy(shown=[ShownAnswer("1+1=", "[b]2[/b]", None)]))
    assert printed(lambda console: show_evaluation(console, evaluation, []))[:-2] == [
        "policy exp/run on data.jsonl: 4 rows",
        "",
        "greedy                      raw              weighted",
        "correct                   0.500                 0.500",
        "total                            0.750 [0.500, 1.000]",
        "truncated                 0.125",
        "tokens     5.500 [4.500, 6.500]             at most 9",
        "",
        "sampled                     raw              weighted",
        "correct                   0.250                 0.250",
        "total                            0.500 [0.250, 0.750]",
        "truncated                 0.125",
        "tokens     5.500 [4.500, 6.500]             at most 9",
        "",
        "correct: right in k answers",
        "pass@1                       0.250  one of the k",
        "pass@2                       0.375  one of the k",
        "maj@2                        0.312  the most frequent answer of the k",
        "",
        "prompt  greedy completion  total",
        "1+1=    [b]2[/b]               -",
    ]
    narrow = printed(lambda console: show_evaluation(console, evaluation, []), 40)
    assert narrow[2:5] == ["greedy                      raw", "correct                   0.500", "total"]


LONG = {f"rewards/a_reward_of_a_long_name_{number}/mean": [0.5] for number in range(6)}


def shown(folders, width: int = 80, *, each_run: bool = False, **asked: object) -> list[str]:
    comparison = compare(read_runs(folders)[0], ComparisonOptions(**asked))  # type: ignore[arg-type]
    return printed(lambda console: show_comparison(console, comparison, each_run=each_run), width)


def test_a_sweep(place: Path) -> None:
    """t(2) is 4.3027: times 0.1, 0.09539 and, of the differences, 0.01 over sqrt(3). What is equal does not count."""
    folders = write_sweep(place / "sweep", {0.0: [0.50, 0.60, 0.70], 0.5: [0.54, 0.65, 0.73]})
    lines = shown(folders)
    assert lines[:8] == [
        "sweep: 6 runs, 2 settings",
        "rewards.brevity.weight  0, 0.5",
        "seed                    0, 1, 2",
        "",
        "   weight  seeds        correct",
        "○       0      3  0.600 ± 0.248",
        "●     0.5      3  0.640 ± 0.237",
        "equal in all runs: brevity 0.500",
    ]
    assert lines[9] == "verdict on weight"
    assert lines[10] == "- 0.5 beats 0 on correct by 0.040 [0.015, 0.065] (3 seeds)."


@pytest.mark.parametrize("width", [50, 140])
def test_at_any_width_nothing_is_cut(place: Path, width: int) -> None:
    """`printed` asserts that no line is longer; every name and number has to be there, in blocks of columns."""
    ends = {name: [0.123, 0.456] for name in LONG}
    of_runs = ((0.0, LONG), (0.5, LONG), (0.1, ends))
    folders = [write_run(place / f"{weight}", configured(weight, 0), curves) for weight, curves in of_runs]
    text = "\n".join(shown(folders, width, each_run=True))
    assert all(text.count(name.split("/")[1]) >= 2 for name in LONG)
    assert (text.count("0.456") >= 12, "…" in text) == (True, False)


def test_other_weights_under_the_same_name_are_noted(place: Path) -> None:
    """A warm start on another machine, a branch that moved on the hub: nothing in the configurations shows it."""
    runs = []
    for seed, name in enumerate("ab"):
        weights: dict[str, Any] = {"starting_model": {"weights_sha256": name * 64}}
        runs.append(write_run(place / name, configured(0.0, seed), {"reward": [0.5]}, provenance=weights))
    said = " ".join(" ".join(shown(runs)).split())
    assert "(aaaaaaaaaaaa in seed=0; bbbbbbbbbbbb in seed=1)" in said


def test_as_many_decimals_as_the_column_needs() -> None:
    columns = ([0.5, 0.25], [12.3456, 1.0], [1234.5, float("nan")], [0.00123], [0.0])
    texts = [["0.500", "0.250"], ["12.35", "1.00"], ["1234", "-"], ["0.00123"], ["0.000"]]
    assert [number_texts(numbers) for numbers in columns] == texts


def test_a_reward_of_one_run_is_one_line_and_unlogged_measures_have_no_column(place: Path) -> None:
    """Its keys were rows of the table of differences, and its column held dashes."""
    judge = {"fn": "./judge.py:Judge", "weight": 0.5, "args": {"model": "m"}, "clip": None, "gate": None}
    folders = []
    for name, more in {"plain": {}, "judged": {"judge": judge}}.items():
        config = configured()
        config["rewards"] = {**section(config, "rewards"), **more}
        curves = {"rewards/correct/mean": [0.25 + len(more)], "rewards/judge/mean": [None]}
        folders.append(write_run(place / name, config, curves))
    lines = shown(folders, 100, each_run=True)
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("rewards.judge")] == ["only in judge=yes"]
    assert not any("judge.py" in line for line in lines)
    heads = [line.split() for line in lines if "correct" in line.split() and "verdict" not in line]
    assert heads
    assert not any({"brevity", "length"} & set(head) for head in heads)
