"""Which column has the right answers, how they are written, which words rewards look for, and what a trial changes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from rlhf_cli.errors import DataError
from rlhf_cli.evaluation.audit.trial import (
    Gold,
    answer_of,
    final_part,
    find_gold,
    open_trial,
    reward_words,
    ways_to_write,
)
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.isolated import Isolated
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from tests.support.planted_holes import SUMS

ROW: dict[str, object] = {"prompt": "p", "answer": "a", "target": "t", "city": "Riga", "n": 1, "completion": None}
ROW |= {"tests": "assert f()"}


def test_the_column_of_the_right_answers() -> None:
    """A known name, those that rewards read first; if rewards read a single column of texts, that one."""
    for required, source in (
        *(("", "answer"), ("target n", "target"), ("target answer", "answer"), ("city n", "answer")),
        ("n", "answer"),  # the only column that is read holds no text
        *(("city prompt entry", "city"), ("tests entry", "answer")),  # tests are code
    ):
        texts = [ROW[source], None if source == "answer" else ROW[source]]
        found = find_gold([ROW, {**ROW, "answer": None}], required.split(), named=None)
        assert found == Gold(texts, f"column {source}"), required
    nameless = {name: value for name, value in ROW.items() if name not in ("answer", "target")}
    assert find_gold([nameless], [], named=None) is None


def test_a_named_column_and_a_template() -> None:
    rows: list[dict[str, object]] = [{"alpha": 1, "b": 2}, {"alpha": None, "b": 3}]
    assert find_gold(rows, [], named="b") == Gold(["2", "3"], "column b")
    assert find_gold(rows, [], named="{alpha} of {b}") == Gold(["1 of 2", None], "--gold '{alpha} of {b}'")
    for named in ("alpa", "{b} of {alpa}"):
        with pytest.raises(DataError) as caught:
            find_gold(rows, [], named=named)
        assert (caught.value.where, caught.value.expected, caught.value.hint) == ("--gold", "one of alpha, b", "alpha")


def test_what_a_right_answer_may_be() -> None:
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "good"}]
    values = (7, " yes ", ["first", "second"], (2.5, "second"), chat)
    assert [answer_of(value) for value in values] == ["7", "yes", "first", "2.5", "good"]
    assert [answer_of(value) for value in (None, True, "", [], {"a": 1})] == [None] * 5


def test_the_final_part_of_an_answer() -> None:
    parts = ("a #### 3 #### 4 ", r"\boxed{1} so \boxed{ 2 }", "as it is", "#### 18\nDone.", "a #### Riga\nDone.")
    assert [final_part(text) for text in parts] == ["4", "2", "as it is", "18", "Riga"]
    assert final_part(r"so \boxed{\frac{1}{2}}") == r"\frac{1}{2}"


def tagged(completions: Sequence[str], *, tags: Sequence[str], **kwargs: object) -> list[float | None]:
    """Pay texts that end with the last of the tags, and nothing for a text that begins with a number."""
    return [None if text[:1].isdigit() else float(text.endswith(f"</{tags[-1]}>")) for text in completions]


def test_right_answers_are_written_in_the_format_that_is_paid_best(place: object) -> None:
    """Formats hold the final part of an answer; a column that was named, and the plain format, the whole of it."""
    rewards = [
        f"rewards.{name}={{fn: '{__name__}:tagged', args: {{tags: {tags}}}}}"
        for name, tags in (("other", "[1]"), ("form", "[plan, out]"))
    ]
    asked = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", rewards[1]]).experiment
    rows: list[dict[str, object]] = [{"prompt": "p", "answer": text} for text in ("so #### 22", None, "7")]
    with open_trial(asked, rows, left_out={}, gold=None) as trial:
        found = trial.gold_answers(is_costly=False)
        assert found.way == ways_to_write(["plan", "out"])[1]
        assert (trial.tags, trial.is_gold_named) == (["plan", "out"], False)
        assert found.texts == {0: found.way.write("22"), 2: found.way.write("7")}
        assert {row: scored.total for row, scored in found.scores.items()} == {0: 1.0, 2: 1.0}
        assert trial.num_texts == 2 * 10 + 2
        assert list(trial.gold_answers(is_costly=True, first=1).texts) == [0]
        assert trial.num_texts == 2 * 10 + 2 + 1 * 10 + 1
        assert trial.scored([]) == []
    with open_trial(asked, rows, left_out={}, gold="answer") as trial:
        named = trial.gold_answers(is_costly=False)
        assert (named.way.name, named.texts) == ("as it is", {0: "so #### 22", 2: "7"})
        assert trial.num_texts == 2  # with a single format the audit tries no other
    with open_trial(asked, [{"prompt": "p"}], left_out={}, gold=None) as trial:
        nothing = trial.gold_answers(is_costly=False)
        assert (nothing.texts, nothing.scores, nothing.way.name) == ({}, {}, "as it is")
    untagged = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", f"rewards.a.fn={__name__}:polite"]).experiment
    with open_trial(untagged, rows, left_out={}, gold=None) as trial:
        assert trial.tags == ["think", "answer"]


POLITE = ("please", "thank you")


def polite(completions: Sequence[str], **kwargs: object) -> list[float]:
    """This docstring is no word that it looks for."""
    return [float(_has(text) or "kindly" in text) for text in completions]


def _has(text: str) -> bool:
    return any(word in text for word in POLITE)


def matching(completions: Sequence[str], *, phrases: Sequence[str], pattern: str = r"\\d+") -> list[float]:
    return [float(all(phrase in text for phrase in phrases)) for text in completions]


def calls_itself(completions: Sequence[str], depth: int = 1, **kwargs: object) -> list[float]:
    return calls_itself(completions, 0) if depth else [float("as before" in text) for text in completions]


class Polite:
    """A reward with a state."""

    def __init__(self) -> None:
        self.more = ["if you would"]

    def __call__(self, completions: Sequence[str], **columns: object) -> list[float]:
        return [float(any(word in text for word in ("please", *self.more))) for text in completions]


def test_constants_globals_and_arguments() -> None:
    """Each word once, up to 40 of them, of 2 to 31 characters."""
    assert set(reward_words([polite])) == {"please", "thank you", "kindly"}
    phrases = ["as asked", r"\\d{3}", "<tag>", "as asked", "x", "ab", 31 * "y", 32 * "z"]
    assert reward_words([functools.partial(matching, phrases=phrases)]) == ["as asked", "ab", 31 * "y"]
    many = [f"word {number}" for number in range(45)]
    assert reward_words([functools.partial(matching, phrases=phrases) for phrases in (many[:20], many)]) == many[:40]
    assert reward_words([len]) == []
    assert reward_words([calls_itself]) == ["as before"]
    assert set(reward_words([Polite(), Isolated(f"{__name__}:polite", {}, timeout_s=None)])) >= {"please", "kindly"}
    assert "if you would" in reward_words([Polite()])


def test_rewards_that_are_skipped_and_what_others_lose_by_it(place: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gates go; deviations and z-scores need a training, so they go too, and a weight is that of its start."""
    fn = f"fn: '{__name__}:polite'"
    gates = "gate: [{by: first, at_least: 1}, {by: third, at_least: 1}]"
    rewards = [f"rewards.first={{{fn}}}", f"rewards.second={{{fn}, normalize: batch, {gates}}}"]
    rewards += [f"rewards.third={{{fn}, on_error: 0.5}}", f"rewards.last={{{fn}, gate: {{by: first, at_least: 1}}}}"]
    rewards += ["rewards.last.weight={start: 0.5, end: 1.0, steps: 9}"]
    asked = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", *rewards]).experiment
    closed = list[RewardStack]()
    monkeypatch.setattr(RewardStack, "close", lambda stack: closed.append(stack))
    with open_trial(asked, SUMS, left_out={"first": "no server"}, gold=None) as trial:
        second_tried, third, last = trial.experiment.rewards.values()
        assert (second_tried.on_error, second_tried.normalize) == ("exclude", "none")
        assert ([gate.by for gate in second_tried.gates], last.gates, third) == (["third"], [], asked.rewards["third"])
        notes = [note.partition(":")[0] for note in trial.notes]
        assert not closed
    assert len(closed) == 1
    assert notes == [
        *("rewards.second.normalize is ignored", "a gate of rewards.second stays open"),
        *("a gate of rewards.last stays open", "rewards.last.weight is that of the first step, 0.5"),
    ]
    for aggregate, left_out in (("normalize_then_sum", {}), ("./mine.py:reads_first", {"first": "no server"})):
        other = asked.model_copy(update={"aggregate": aggregate})
        with open_trial(other, SUMS, left_out=left_out, gold=None) as trial:
            assert trial.experiment.aggregate == "sum"
            assert trial.notes[-1].startswith("aggregate is sum here: ")
