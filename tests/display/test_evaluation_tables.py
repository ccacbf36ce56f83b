"""The printed tables of `rlhf eval` and `rlhf score`, and those of scored pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlhf_cli.display.audit_table import answers_table
from rlhf_cli.display.evaluation_tables import pair_table, show_evaluation, show_parts, show_scores
from rlhf_cli.evaluation.evaluation_results import ShownAnswer
from rlhf_cli.evaluation.scored_pairs import ScoredPair
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, ScoredReward, ScoredRow
from rlhf_cli.rewards.stack.token_offsets import ScoredPart
from rlhf_cli.trainers.assemble.tried_rows import TriedAnswer
from tests.support import measured
from tests.support.terminal import drawn, printed


def reward(raw: float | None, *, is_open: bool = True, error: str | None = None) -> ScoredReward:
    return ScoredReward(raw=raw, effective=raw, weighted=raw, open=is_open, error=error)


def test_every_reward_that_raises_on_a_tried_answer_is_told() -> None:
    errors = {"a": "no gold", "b": "no tool"}
    table = answers_table([TriedAnswer(kind, "2", None, dict.fromkeys(errors), errors) for kind in ("gold", "empty")])
    said = "\n".join(drawn(table))
    assert all(f"rewards.{name} on {kind}: {errors[name]}" in said for name in errors for kind in ("gold", "empty"))


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
