"""The tables of `rlhf eval` as a person reads them."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.display.evaluation_tables import show_evaluation
from rlhf_cli.measure.evaluation_files import Evaluation
from rlhf_cli.measure.policy_results import ShownAnswer
from tests.support import measured
from tests.support.terminal import printed


def read(evaluation: Evaluation, files: list[Path] | None = None) -> list[str]:
    return printed(lambda console: show_evaluation(console, evaluation, files or []))


def test_a_reward_model(place: Path) -> None:
    evaluation = measured.headed(measured.reward_model(with_eos=True, truncated=2), warnings=["few rows"])
    assert read(evaluation, [place / "eval" / "held_out.json", Path("/elsewhere/a.png")]) == [
        "reward model exp/run on data.jsonl: 4 rows",
        "plain texts end with the end-of-sequence token",
        "warning: few rows",
        "",
        "accuracy                            pairs  mean margin",
        "all       0.750 [0.625, 0.875]  4, 1 ties        1.250",
        "kind=a    1.000 [0.250, 1.000]          2        2.500",
        "",
        "rewards",
        "mean of all        1.500 [1.000, 2.000]  not centred: see offset: auto",
        "deviation                         0.444",
        "chosen - rejected                 1.250",
        "calibration error                 0.111  as sure as it is right: 0",
        "log loss                          0.333  a coin: 0.693",
        "Brier score                       0.222  a coin: 0.250",
        "",
        "confidence     mean              accuracy  pairs",
        "0.75 to 1.00  0.875  0.750 [0.625, 0.875]      4",
        "",
        "length (tokens)              accuracy  pairs  mean margin",
        "chosen longer    1.000 [0.250, 1.000]      2        2.500",
        "chosen shorter   0.500 [0.250, 0.750]      2       -0.500",
        "difference of rewards with difference of lengths: correlation 0.555, of ranks -;",
        "whoever always takes the longer one is right in 0.625",
        "",
        "worst disagreements  chosen     rejected       rewards  sure by",
        r"why?                 be\ncause  no        -1.00 < 2.00     0.95",
        "2 texts were longer than the model takes and lost their beginning",
        "",
        "in brackets: 95 % intervals; Wilson's for proportions, Student's for means",
        "eval/held_out.json",
        "/elsewhere/a.png",
    ]


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
