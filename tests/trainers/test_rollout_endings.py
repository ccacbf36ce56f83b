"""How a rollout ended, read from its messages and ids, and which endings a truncation policy takes for a cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.reward_matrix import add_truncation, truncation_metrics
from rlhf_cli.tools_and_environments import ending_of
from rlhf_cli.truncation import ENDINGS, POLICIES, Bootstrap, Ending, Endings, EosPenalty, Exclude, SoftOverlong
from tests.support.settled_columns import Case, Rule, column


def call(name: str = "calc") -> dict[str, Any]:
    function = {"name": name, "arguments": {"a": 1}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def result(content: str = "4") -> dict[str, Any]:
    return {"role": "tool", "name": "calc", "content": content}


ANSWER = {"role": "assistant", "content": "It is 4."}
ERROR = result("{'error': 'ZeroDivisionError: division by zero'}")
LATE = result("{'error': 'no answer within 2 s'}")


@pytest.mark.parametrize(
    ("completion", "max_calls", "expected"),
    [
        ([call(), result(), ANSWER], 3, Ending.FINISHED),
        ([call(), result()], 3, Ending.LENGTH),  # no room for an answer
        ([call()], 0, Ending.TURNS),
        ([call(), result(), call()], 1, Ending.TURNS),
        ([call(), result(), call()], 2, Ending.LENGTH),  # a second call was allowed, but its result did not fit
        ([call(), result(), ERROR, ANSWER], 3, Ending.TOOL_ERROR),  # two calls in one message
        ([call(), ERROR, call(), result(), ANSWER], 3, Ending.FINISHED),  # it tried again
        ([call(), LATE, ANSWER], 3, Ending.TIMEOUT),
        ([call(), ERROR, call()], 1, Ending.TURNS),
        ([call()], None, Ending.FINISHED),  # a trainer that makes no calls
        ("a text", 3, Ending.FINISHED),
    ],
)
def test_by_messages(completion: Any, max_calls: int | None, expected: Ending) -> None:
    assert ending_of(completion, is_cut=False, max_calls=max_calls) is expected
    assert ending_of(completion, is_cut=True, max_calls=max_calls) is Ending.LENGTH


def test_a_flag_counts_before_messages() -> None:
    for flag, ending in ((True, Ending.LENGTH), ("timeout", Ending.TIMEOUT), ("finished", Ending.FINISHED)):
        assert ending_of([ANSWER], is_cut=flag == "finished", max_calls=3, flag=flag) is ending
    with pytest.raises(RewardError, match="False"):  # a text, and so true
        ending_of("text", is_cut=False, max_calls=None, flag="False")
    for nothing in (False, None, 0, ""):
        assert ending_of([ANSWER], is_cut=False, max_calls=3, flag=nothing) is Ending.FINISHED


@pytest.mark.parametrize(
    ("also", "cut"),
    [
        ((), [False, True, False, False, False]),
        (("turns",), [False, True, True, False, False]),
        (("turns", "tool_error", "timeout"), [False, True, True, True, True]),
    ],
)
def test_every_policy_treats_the_named_endings_as_a_cut(also: tuple[str, ...], cut: list[bool]) -> None:
    """Of five rows, one of each ending."""
    is_cut = torch.tensor([EosPenalty(also=also).truncates(ending) for ending in ENDINGS])
    found = Endings(is_cut, torch.tensor([2, 4, 3, 2, 1]), 4, torch.arange(len(ENDINGS)))
    assert found.is_truncated.tolist() == cut
    rows = Case([column(1, 2, 3, 4, 5)], [Rule("one")], [1.0]).settle()
    for policy in (EosPenalty(0.5, also=also), EosPenalty(0.5, "replace", also=also), SoftOverlong(3.0, also=also)):
        lost = 0.5 if isinstance(policy, EosPenalty) else 3.0
        left = [-lost if policy.replaces else total - lost for total in range(1, 6)]
        expected = [left[row] if cut[row] else row + 1 for row in range(5)]
        assert add_truncation(rows, policy, found).totals.tolist() == expected
    assert Exclude(also=also).leaves_out(found).tolist() == cut  # type: ignore[union-attr]
    assert Bootstrap(also=also).goes_on(found).tolist() == cut
    assert truncation_metrics(rows, found)["rewards/truncation/fraction"] == pytest.approx(sum(cut) / 5)


def test_every_policy_but_none_reads_also() -> None:
    assert {name for name, policy in POLICIES.items() if "also" in policy.keys} == POLICIES.keys() - {"none"}
