"""Answers summed up by prompt, as rows of a file, and as the JSON of evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.data.rows import prompt_key
from rlhf_cli.evaluation.evaluation_results import (
    AnsweredPrompt,
    Attempts,
    PartAnswers,
    PolicyEvaluation,
    completions_of,
    evaluation_json,
    read_evaluation,
    sum_up_answers,
)
from rlhf_cli.numerics.intervals import wilson
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from rlhf_cli.runs.run_folder import write_rows
from tests.support import measured


def answered(prompt: str, text: str, ids: int, *, is_truncated: bool = False) -> AnsweredPrompt:
    return AnsweredPrompt({"prompt": prompt, "answer": "2"}, text, list(range(ids)), is_truncated)


def settled(raw: float | None) -> ScoredRow:
    """What is scored `raw` is worth four times as much by its rules, and twice as much with its weight."""
    both = [None if raw is None else factor * raw for factor in (4, 2)]
    return ScoredRow(both[1], {"right": ScoredReward(raw, both[0], both[1])})


ANSWERS = [answered("a", "2", 1), answered("a", "it is 2", 7, is_truncated=True), answered("b", "3", 1)]
PART = PartAnswers(2, [*ANSWERS, answered("b", "4", 3)], [settled(raw) for raw in (1.0, 1.0, 0.0, None)])


def test_by_hand() -> None:
    evaluation = sum_up_answers({"sampled": PART}, ["right"])
    part = evaluation.parts["sampled"]
    assert (evaluation.rows, part.tokens.mean, part.tokens.max) == (2, (4 + 2) / 2, 7)
    assert part.truncated.mean == (0.5 + 0) / 2
    # Where nothing was scored the answer does not count, and the prompt has another one.
    assert (part.rewards["right"].raw, part.rewards["right"].effective.mean) == (wilson(1, 2), 2.0)
    assert part.rewards["right"].weighted.mean == part.total.mean == 1.0
    assert (part.tokens.low, part.tokens.count) == (pytest.approx(3 - 12.7062), 2)  # t(1), s = sqrt(2)
    assert evaluation.no_total is None
    # No score is not right: pass@2 is 1 and 0. The majority of the first prompt says 2 twice.
    attempts = evaluation.attempts["right"]
    assert ({k: one.mean for k, one in attempts.pass_at.items()}, attempts.maj_at[2].mean) == ({1: 0.5, 2: 0.5}, 0.5)
    shown = [(one.prompt, one.completion, one.total) for one in evaluation.shown]
    assert shown[:2] == [("a", "2", 2.0), ("a", "it is 2", 2.0)]


def test_prompts_that_were_trained_on_and_the_others_by_hand() -> None:
    """Of the first prompt both answers are right, of the second the one that was scored is wrong."""

    def apart(*known: str) -> Mapping[str, PolicyEvaluation] | None:
        trained_on = {key for prompt in known if (key := prompt_key({"prompt": prompt})) is not None}
        return sum_up_answers({"sampled": PART}, ["right"], trained_on=trained_on).by_prompts

    by_prompts = apart("a")
    assert {which: one.rows for which, one in by_prompts.items()} == {"seen": 1, "unseen": 1}
    assert [one.parts["sampled"].rewards["right"].raw.mean for one in by_prompts.values()] == [1.0, 0.0]
    assert by_prompts["seen"].attempts["right"].pass_at[1].mean == 1.0
    assert by_prompts["unseen"].parts["sampled"].tokens.max == 3
    assert apart() is apart("c") is apart("a", "b") is None, "without both kinds there is one result"


def test_rows_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One object per line; a date is text; a known secret's value is hidden, but not a text under a secret's name."""
    rows = list(completions_of({"sampled": PART}))
    assert rows[1] == {
        **{"prompt": "a", "answer": "2", "completion": "it is 2", "completion_ids": [0, 1, 2, 3, 4, 5, 6]},
        **{"is_truncated": True, "part": "sampled", "sample": 1, "total": 2.0, "rewards": {"right": 1.0}},
    }
    assert (rows[3]["total"], rows[3]["rewards"]) == (None, {"right": None})
    monkeypatch.setenv("SOME_TOKEN", "s3cret-value")
    write_rows(tmp_path / "x", [{"a": "é s3cret-value", "api_key": date(2024, 1, 2)}, {"password": "what is it?"}])
    assert (tmp_path / "x").read_text(encoding="utf-8").splitlines() == [
        '{"a": "é ***", "api_key": "2024-01-02"}',
        '{"password": "what is it?"}',
    ]


def test_the_first_five_answers_of_the_first_part_are_shown() -> None:
    rows = range(8)
    part = PartAnswers(1, [answered(f"q{row}", f"a{row}", 1) for row in rows], [settled(row / 2) for row in rows])
    evaluation = sum_up_answers({"greedy": part, "sampled": PART}, ["right"], no_total="because")
    assert [(one.prompt, one.completion, one.total) for one in evaluation.shown] == [
        (f"q{row}", f"a{row}", float(row)) for row in range(5)
    ]
    assert (evaluation.rows, evaluation.no_total, list(evaluation.parts)) == (8, "because", ["greedy", "sampled"])


def attempts_of(*raws: float | None) -> Mapping[str, Attempts]:
    scored = [settled(raw) for raw in raws]
    return sum_up_answers({"sampled": PartAnswers(2, PART.answers, scored)}, ["right"]).attempts


def test_a_completion_behind_a_closed_gate_is_an_attempt_that_failed() -> None:
    """One right of two, the other not scored: pass@1 is 1/2, where leaving it out would give 1. No score: no pass@k."""
    attempts = attempts_of(1.0, None, None, None)["right"]
    assert {k: one.mean for k, one in attempts.pass_at.items()} == {1: (1 / 2 + 0) / 2, 2: (1 + 0) / 2}
    assert (attempts.maj_at[2].mean, {one.count for one in attempts.pass_at.values()}) == ((1 / 2 + 0) / 2, {2})
    # Only rewards that are 0 or 1 have attempts.
    assert attempts_of(None, None, None, None) == attempts_of(1.0, 0.5, 0.0, 0.0) == {}


def test_what_counts_as_the_same_answer() -> None:
    """The first of three is right alone, but for those that say the same."""
    for texts, maj in (
        (["yes", " yes\n", "no"], 1.0),  # a text without a number counts whole, blanks around it aside
        (["Yes", "yes", "no"], 1 / 3),  # three answers: by lot
        (["so it is 0", "0.0", "12"], 1.0),
        (["2", "I count 4/2", "3"], 1.0),
        (["2 or 3", "2", "3"], 0.5 * (1.0 + 0.0)),  # the last number counts: 3, 2, 3
        ([r"\boxed{18} in 2 ways", "#### 18\nin 3 ways", r"\boxed{7} in 2 ways"], 1.0),
    ):
        right = [1.0, float(maj == 1.0), 0.0]
        part = PartAnswers(3, [answered("a", one, 1) for one in texts], [settled(one) for one in right])
        attempts = sum_up_answers({"sampled": part}, ["right"]).attempts["right"]
        assert attempts.maj_at[3].mean == pytest.approx(maj), texts


EVALUATIONS = {
    "reward model": measured.headed(measured.reward_model(), path="/runs/model", warnings=["small"]),
    "subsets": measured.headed(measured.with_subsets(), path="/runs/model"),
    "policy": measured.headed(measured.policy(settings={"temperature": 0.5, "seed": 1}), path="/runs/model"),
    "policy in training": measured.headed(measured.policy(), name="step-3", step=3),
}


def written(folder: Path, content: object) -> Path:
    (file := folder / "held_out.json").write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("evaluation", EVALUATIONS.values(), ids=EVALUATIONS)
def test_there_and_back(evaluation: Any, tmp_path: Path) -> None:
    assert read_evaluation(written(tmp_path, evaluation_json(evaluation))) == evaluation


def test_the_figures_that_runs_are_compared_by() -> None:
    """Of the numbers of samples the largest, in the order of the table."""
    policy = {name: figure.mean for name, figure in EVALUATIONS["policy"].figures()}
    assert list(policy.items()) == [
        *(("greedy/total", 0.75), ("greedy/correct", 0.5), ("greedy/truncated", 0.125), ("greedy/tokens", 5.5)),
        *(("sampled/total", 0.5), ("sampled/correct", 0.25), ("sampled/truncated", 0.125), ("sampled/tokens", 5.5)),
        *(("pass@2/correct", 0.375), ("maj@2/correct", 0.3125)),
    ]
    assert [name for name, _ in EVALUATIONS["reward model"].figures()] == ["accuracy"]
    like_lengths = measured.policy(parts={"greedy": measured.part(0.5, tokens=0.25, truncated=0.75)}, attempts={})
    assert [figure.mean for _, figure in measured.headed(like_lengths).figures()] == [0.5, 0.25, 0.75]


def test_the_heading_comes_first_without_empty_keys() -> None:
    by_hand = evaluation_json(EVALUATIONS["policy"])
    assert list(by_hand)[:8] == ["kind", "name", "model", "path", "data", "time", "warnings", "rows"]
    in_training = evaluation_json(EVALUATIONS["policy in training"])
    assert list(in_training)[:8] == ["name", "step", "model", "data", "time", "warnings", "kind", "rows"]
    assert "settings" not in in_training
    named = [measured.headed(measured.policy(), trained_on=count).rows_in_words for count in (None, 0, 3)]
    assert named == ["held_out", "held_out", "held_out (3 of 4 prompts trained on)"]


def test_a_pair_has_a_subset_only_if_the_data_has_the_column() -> None:
    (without,), (with_it,) = (evaluation_json(EVALUATIONS[name])["worst"] for name in ("reward model", "subsets"))
    assert (without.get("subset", "-"), with_it["subset"]) == ("-", "mt-bench-easy")


def test_keys_of_other_versions(tmp_path: Path) -> None:
    """More than is known here is left out; what was added since then has a default."""
    content = evaluation_json(EVALUATIONS["reward model"])
    del content["with_eos"], content["warnings"]
    content["novelty"] = content["length"]["novelty"] = {"a": 1}
    evaluation = read_evaluation(written(tmp_path, content))
    assert evaluation.measured == EVALUATIONS["reward model"].measured
    assert (evaluation.heading.warnings, vars(evaluation.measured)["with_eos"]) == ([], False)
    content = evaluation_json(EVALUATIONS["policy"])
    content["attempts"]["correct"]["best"] = "of all"
    assert read_evaluation(written(tmp_path, content)).measured == EVALUATIONS["policy"].measured


WRITTEN = evaluation_json(EVALUATIONS["policy"])


@pytest.mark.parametrize(
    "content",
    [
        *({**WRITTEN, "kind": kind} for kind in (None, "weather", ["policy"])),
        *({**WRITTEN, "attempts": {"correct": {"pass": {}}}}, {"kind": "policy", "rows": 3}),
    ],
)
def test_invalid_evaluation(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kind is|Field required"):
        read_evaluation(written(tmp_path, content))
