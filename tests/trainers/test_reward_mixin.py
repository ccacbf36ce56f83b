"""What a trainer makes of its stack's scores on one of two ranks, where TRL's methods are stand-ins."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from rlhf_cli.algorithms.base import RoundAdvantages, advantage_metrics
from rlhf_cli.algorithms.grpo import Grpo, ProcessRewards
from rlhf_cli.algorithms.own_advantages import OwnAdvantages
from rlhf_cli.algorithms.ppo import Ppo
from rlhf_cli.algorithms.user_function import Answer
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.trainers.reward_mixin import RewardMixin, overwrite_last
from rlhf_cli.truncation import COMPONENT, ENDINGS, Bootstrap, Ending, Endings, EosPenalty, Exclude, TruncationPolicy
from tests.support.settled_columns import Case, Rule, column
from tests.support.tolerances import ARITHMETIC

CUT, DONE = ENDINGS.index(Ending.LENGTH), ENDINGS.index(Ending.FINISHED)
ENDED = Endings(torch.tensor([True, False, False, False]), torch.tensor([8, 2, 5, 3]), 8)


def ranked(*theirs: torch.Tensor, **given: Any) -> Any:
    """A trainer on the second of two ranks, which gathers `theirs` in turn before its own."""
    trainer: Any = object.__new__(RewardMixin)
    others = iter(theirs)
    accelerator = SimpleNamespace(num_processes=2, process_index=1, device="cpu", is_main_process=True)
    accelerator.gather = lambda own: torch.cat([next(others), own])
    accelerator.reduce = lambda own, reduction: own + next(others) if reduction == "sum" else None
    vars(trainer).update(accelerator=accelerator, state=SimpleNamespace(global_step=6, max_steps=9))
    vars(trainer).update(model=SimpleNamespace(training=True), num_generations=2, aggregate="sum")
    vars(trainer).update({"_given": None, "_endings": ENDED, "_logs": {"advantages": deque([9.0] * 4)}} | given)
    return trainer


def test_an_evaluation_and_the_training_after_it_settle_in_groups_of_their_own(tmp_path: Path) -> None:
    """With `eval_on_start` and `num_generations_eval` 2, scores are divided by the deviation of their own group. Only
    training moves a running deviation. An environment's column follows the one that holds the truncation's place.
    """
    scores, nan = [1.0, 3.0, 5.0, 9.0], torch.nan
    stack = RewardStack(
        [Component(name, lambda **_: scores, normalize=kind) for name, kind in (("a", "group"), ("b", "running"))]
    )

    class Trl:
        def _calculate_rewards(self, inputs: Any, *others: Any) -> torch.Tensor:
            stack.evaluate(prompts=inputs, completions=inputs)
            return torch.tensor([[score, score, nan, 7.0] for score in scores])

    class Trainer(RewardMixin, Trl):
        reward_stack, aggregate, truncation, algorithm = stack, "sum", EosPenalty(0.5, "replace"), Grpo()
        reward_func_names, state = ["a", "b", COMPONENT, "env"], SimpleNamespace(global_step=0, max_steps=1)
        num_generations, num_generations_eval = 4, 2
        accelerator = SimpleNamespace(gather=lambda own: own, num_processes=1, process_index=0)
        args = SimpleNamespace(should_save=True)
        _running, _parts = dict[str, object](), SimpleNamespace(names=())

        def _find_endings(self, *_: Any) -> Endings:
            return self._endings_of(torch.tensor([CUT, DONE, DONE, DONE]), torch.arange(4), 8)

        _count_tools = _log_table = lambda *_: {}

    trainer: Any = object.__new__(Trainer)
    for is_training, deviation in ((False, [2**0.5, 2**0.5, 8**0.5, 8**0.5]), (True, [(35 / 3) ** 0.5] * 4)):
        trainer.model = SimpleNamespace(training=is_training)
        matrix = trainer._calculate_rewards(["p"] * 4, ["p"] * 4, ["c"] * 4, [[1]] * 4)
        expected = [score / divisor for score, divisor in zip(scores, deviation, strict=True)]
        assert matrix[:, 0].tolist() == pytest.approx(expected, **ARITHMETIC)
        assert [*trainer._running] == (["b"] if is_training else [])
    settled = trainer._settled
    assert settled.names == ("a", "b", "env", COMPONENT)
    assert (settled.raw[:, 2].tolist(), settled.is_replaced.tolist()) == ([7.0] * 4, [True, False, False, False])
    assert settled.totals[0] == pytest.approx(-0.5, **ARITHMETIC)
    resumed: Any = object.__new__(Trainer)
    trainer._total_train_tokens, resumed._total_train_tokens = 12, 0
    trainer.save_state(tmp_path)
    resumed.load_state(tmp_path)
    assert (resumed._running, resumed._total_train_tokens) == (trainer._running, 12)
    trainer.args.should_save = False
    (other := tmp_path / "other").mkdir()
    trainer.save_state(other)
    assert not any(other.iterdir())


NOTHING = [0.0] * 4
ROUNDING = [0.0, -1e-9, 0.0, 0.0]
ALIKE, UNLIKE = [1.0, 1.0, 5.0, 5.0], [1.0, 1.0, 5.0, 6.0]
WHOLE, TOKENS = [None, None], [None, [0.5]]
GRPO, PPO = Grpo(), Ppo(1.0, 0.95, whiten_advantages=True, keeps_prompts=True)
OWN = OwnAdvantages(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("advantages", "theirs", "totals", "is_dense", "tokens", "algorithm", "is_dead"),
    [
        (NOTHING, [0.0, 0.0], UNLIKE, False, WHOLE, GRPO, True),
        ([], [0.0, 0.0], UNLIKE, False, WHOLE, GRPO, True),
        ([0.0, -0.5, 0.0, 0.0], [0.0, 0.0], UNLIKE, False, WHOLE, GRPO, False),
        (NOTHING, [0.5, 0.0], UNLIKE, False, WHOLE, GRPO, False),
        (ROUNDING, [0.0, 0.0], ALIKE, False, WHOLE, GRPO, True),
        (ROUNDING, [0.0, 0.0], ALIKE, False, WHOLE, OWN, False),  # any number of a function counts
        (ROUNDING, [0.0, 0.0], ALIKE, False, WHOLE, PPO, False),  # the rows of the whole round are compared
        ([0.5, -0.5, 0.1, 0.0], [0.5, 0.0], [1.0] * 4, False, WHOLE, PPO, True),  # of a critic's errors alone
        (ROUNDING, [0.0, 1.0], ALIKE, False, WHOLE, GRPO, False),  # totals do not tell of tokens
        (ROUNDING, [0.0, 0.0], ALIKE, True, TOKENS, GRPO, False),
        (ROUNDING, [0.0, 0.0], ALIKE, True, WHOLE, GRPO, True),
        (ROUNDING, [0.0, 0.0], ALIKE, False, TOKENS, GRPO, True),
        (NOTHING, [0.0, 1.0], ALIKE, True, TOKENS, GRPO, True),
    ],
)
def test_a_round_is_dead_if_no_rank_has_an_advantage_but_by_rounding(
    advantages: Any, theirs: Any, totals: Any, is_dense: Any, tokens: Any, algorithm: Any, is_dead: Any
) -> None:
    settled = Case([column(*totals), column(*totals)], [Rule("a"), Rule("b")], [1.0, 0.0]).settle()
    outcomes = {"a": SimpleNamespace(tokens=tokens), "b": SimpleNamespace(tokens=TOKENS)}
    given = {"_settled": settled, "_given": algorithm.given(settled, "sum", 2), "_counts": torch.zeros(0, 7)}
    stack = SimpleNamespace(outcomes=outcomes, components=[])
    more = {"reward_stack": stack, "truncation": TruncationPolicy(), **given}
    trainer = ranked(torch.tensor([theirs]), is_dense=is_dense, algorithm=algorithm, **more)
    assert (trainer.dead_round(torch.tensor(advantages)) is not None) is is_dead


@pytest.mark.parametrize(
    ("policy", "is_cut", "cause"),
    [
        (Bootstrap(mode="replace"), True, "every completion was truncated, and the critic"),
        (Bootstrap(mode="add"), True, "no reward differed"),
        (Exclude(), True, "every completion was truncated, and the policy"),
        (Exclude(), False, "no reward differed"),
    ],
)
def test_what_is_kept_of_a_dead_round(policy: TruncationPolicy, is_cut: bool, cause: str) -> None:
    """The count of failures is the third of a component, and the first the rows that no gate closed."""
    settled = Case([column(1, 1, 5, 5)], [Rule("a")], [2.0]).settle()
    stack = SimpleNamespace(outcomes={}, components=[Component("a", len)])
    trainer = ranked(torch.zeros(1, 2), is_dense=False, algorithm=Grpo(), reward_stack=stack, truncation=policy)
    vars(trainer).update(_settled=settled, _given=settled, _counts=torch.tensor([[3.0, 9, 1, 9, 9, 9, 9]]))
    trainer._endings = replace(ENDED, is_truncated=torch.tensor([True, True, True, is_cut]))
    dead = trainer.dead_round(torch.zeros(4))
    assert (dead.step, dead.cause[: len(cause)]) == (7, cause)
    assert dead.lines == ["a: from 1 to 5, weight 2"]


def test_token_advantages_of_groups_that_extend_over_ranks() -> None:
    """The other rank's completions are a token longer, and its rows are the first of both groups."""
    theirs = torch.tensor([[[1.0, 0.0, 0.0, 4.0], [0.0, 0.0, 0.0, 1.0]], [[0.0, 2.0, 0.0, 0.0], [0.0] * 4]])
    is_rewarded, is_token = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    own = {"a": [[3.0, None, 1.0], [5.0, None, None]], "b": [[None, None, 2.0], [None, None, None]]}
    settled = Case([column(*[1.0] * 4), column(*[1.0] * 4)], [Rule("a"), Rule("b")], [1.0, 1.0]).settle()
    algorithm = ProcessRewards()
    gathered = torch.tensor([4]), theirs, torch.stack([is_rewarded, is_token], dim=1).bool()
    stack = SimpleNamespace(token_values=lambda name, row, divisor: own[name][row])
    trainer = ranked(*gathered, algorithm=algorithm, reward_stack=stack, _settled=settled)
    output = {
        "completion_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]]),
    }
    output["advantages"] = torch.zeros(2)
    found = trainer._set_advantages(output)
    values = torch.cat([theirs, torch.tensor([[[3.0, 0, 1, 0], [0, 0, 2, 0]], [[5.0, 0, 0, 0], [0] * 4]])])
    rewarded = torch.cat([is_rewarded, torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0]])]).bool()
    parts = algorithm.parts(values.transpose(0, 1), rewarded, 2)
    everyones = parts.sum(dim=0)
    assert torch.equal(output["advantages"], everyones[2:, :3] * output["completion_mask"])
    assert list(trainer._logs["advantages"]) == everyones[:, 0].tolist()
    in_loss = torch.cat([is_token, torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0]])])  # a tool wrote one of our tokens
    along = (parts * everyones * in_loss).double().sum(dim=(1, 2))
    energy = ((everyones * in_loss).double() ** 2).sum()
    expected = dict(zip("ab", (along / energy).tolist(), strict=True))
    assert found == pytest.approx(advantage_metrics(expected), **ARITHMETIC)
    trainer.accelerator.num_processes = 4
    assert trainer._own_rows == slice(1, 2)


@pytest.mark.parametrize("width", [3, 5])
def test_shares_of_own_token_advantages_count_the_tokens_in_the_loss(width: int) -> None:
    """By hand: the other rank's row has parts (1, 1) and (3, 0), ours (2, 0) and (0, 4) around a tool's token."""
    parts = {"a": numpy.array([[1.0, 3, 0, 0], [2, 9, 0, 0]]), "b": numpy.array([[1.0, 0, 0, 0], [0, 1, 4, 0]])}
    answer = Answer(parts["a"] + parts["b"], numpy.array([2, 3]), parts, gave_parts=True)

    class Stub(OwnAdvantages):
        def answer(self, *_: Any) -> Answer:
            return answer

    function: Any = None
    settled, stack = SimpleNamespace(raw=torch.zeros(2, 2)), SimpleNamespace(token_values=None)
    theirs = torch.tensor([[True, True, False, False]])
    trainer = ranked(theirs, algorithm=Stub(function), reward_stack=stack, _settled=settled)
    output = {"completion_mask": torch.ones(1, width).long(), "tool_mask": torch.tensor([[1, 0, 1, 1, 1][:width]])}
    output["advantages"] = torch.zeros(1)
    found = trainer._set_advantages(output)
    assert output["advantages"].tolist() == [[2.0, 10.0, 4.0, 0.0, 0.0][:width]]
    energy = 2 * 2 + 3 * 3 + 2 * 2 + 4 * 4
    expected = advantage_metrics({"a": (2 + 9 + 4) / energy, "b": (2 + 16) / energy})
    assert found == pytest.approx(expected, **ARITHMETIC)


@pytest.mark.parametrize(
    ("kinds", "expected"), [([CUT, DONE, DONE, CUT], [0.5, 3.5, 2.0, 5.0]), ([CUT] * 4, [1.0, 0.0, 0.0, 0.0])]
)
def test_lengths_of_rows_that_ended_are_corrected_in_the_last_entry(kinds: list[int], expected: list[float]) -> None:
    trainer: Any = SimpleNamespace(_endings=Endings(torch.zeros(4), torch.tensor([8, 2, 5, 8]), 8, torch.tensor(kinds)))
    names = ["clipped_ratio", *(f"{kind}_terminated_length" for kind in ("mean", "min", "max"))]
    metrics = {f"completions/{name}": [9.0, 9.0] for name in names}
    RewardMixin._log_endings(trainer, metrics)
    assert metrics == {f"completions/{name}": [9.0, value] for name, value in zip(names, expected, strict=True)}


def test_a_row_ends_by_its_last_token_or_a_text_or_as_its_data_environment_or_calls_say() -> None:
    trainer = ranked(eos_token_ids={2}, max_completion_length=3, max_tool_calling_iterations=1, stops=None)
    vars(trainer).update(truncation=TruncationPolicy(also=("turns",)), _tokenizer=SimpleNamespace(pad_token_id=0))
    ids = [[5, 5, 2], [5, 5, 0], [5, 5, 9], [5, 5, 5], [5], [5]]
    inputs: list[dict[str, Any]] = [*[{}] * 4, {"is_truncated": True}, {}]
    completions = ["text"] * 5 + [[{"role": "assistant", "tool_calls": ["add"]}] * 2]

    def found() -> list[str]:
        ended = trainer._find_endings(inputs, completions, ids)
        kinds = [str(ENDINGS[kind]) for kind in ended.kinds]
        assert ended.is_truncated.tolist() == [kind in ("length", "turns") for kind in kinds]
        assert (ended.lengths.tolist(), ended.limit) == ([3, 3, 3, 3, 1, 1], 3)
        return kinds

    assert found() == ["finished", "finished", "length", "length", "length", "finished"]
    trainer.stops, trainer.tools = SimpleNamespace(ends=lambda ids: ids[-1] == 9), ["add"]
    assert found() == ["finished", "finished", "finished", "length", "length", "turns"]
    trainer.environments = [SimpleNamespace(is_truncated="timeout"), *[None] * 5]
    assert found() == ["timeout", "finished", "finished", "length", "length", "turns"]


def test_calls_of_tools_are_counted_on_all_ranks() -> None:
    counted: list[dict[str, list[int]]] = [{"calc": [3, 1, 0], "search": [2, 0, 1]}, {}]
    interactions = SimpleNamespace(metrics=lambda completions: counted.pop(0))
    trainer = ranked(torch.ones(2, 3), extensions=SimpleNamespace(rewards=SimpleNamespace(interactions=interactions)))
    names = [f"tools/{name}/{kind}" for name in ("calc", "search") for kind in ("calls", "errors", "timeouts")]
    assert trainer._count_tools(["c"]) == dict(zip(names, [4, 2, 1, 3, 1, 2], strict=True))
    assert trainer._count_tools(["c"]) == {}
    trainer.extensions.rewards.interactions = None
    assert trainer._count_tools(["c"]) == {}


def test_what_was_logged_last_is_overwritten() -> None:
    logged = deque([1, 2, 3])
    overwrite_last(logged, [8, 9])
    assert list(logged) == [1, 8, 9]
    overwrite_last(logged, [4, 5, 6, 7])
    assert list(logged) == [5, 6, 7]


def test_that_there_are_no_shares_is_said_once_by_one_rank(caplog: pytest.LogCaptureFixture) -> None:
    output = {"completion_mask": torch.ones(1, 1), "advantages": (own := torch.zeros(1))}
    for is_main in (False, True):
        algorithm = SimpleNamespace(of_round=lambda scored: RoundAdvantages(None))
        settled, stack = SimpleNamespace(raw=torch.zeros(2, 1)), SimpleNamespace(token_values=None)
        trainer = ranked(algorithm=algorithm, reward_stack=stack, _settled=settled)
        trainer.accelerator.is_main_process = is_main
        assert [trainer._set_advantages(output) for _ in range(3)] == [{}] * 3
        assert (output["advantages"] is own, list(trainer._logs["advantages"])) == (True, [9.0] * 4)
    assert [record.args[1:] for record in caplog.records] == [("RewardMixin",)]
