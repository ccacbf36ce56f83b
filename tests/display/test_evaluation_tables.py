"""The tables of `rlhf eval` as a person reads them."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.display.evaluation_tables import show_evaluation
from rlhf_cli.evaluation.evaluation_files import Evaluation
from rlhf_cli.evaluation.policy_results import ShownAnswer
from tests.support import measured
from tests.support.terminal import printed


def read(evaluation: Evaluation, files: list[Path] | None = None) -> list[str]:
    return printed(lambda console: show_evaluation(console, evaluation, files or []))


def test_a_policy() -> None:
    evaluation = measured.policy(shown=[ShownAnswer("1+1=", "[b]2[/b]", None)])
    assert read(measured.headed(evaluation)) == [
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
        "correct: right in k",
        "pass@1               0.250  one of the k",
        "pass@2               0.375  one of the k",
        "maj@2                0.312  the most frequent answer of the k",
        "",
        "prompt  greedy completion  total",
        "1+1=    [b]2[/b]               -",
        "",
        "in brackets: 95 % intervals; Wilson's for proportions, Student's for means",
    ]
