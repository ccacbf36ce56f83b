"""Which groups a round keeps, from which draws, and which metrics it logs, without a run."""

from __future__ import annotations

from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.rewards.stack.reward_metrics import differing_groups
from rlhf_cli.trainers.extensions import KeepGroups
from rlhf_cli.trainers.reward_mixin import RewardMixin
from rlhf_cli.trainers.rollout_mixin import Draw, SamplingMixin, chosen_groups, joined


def test_places_are_filled_in_the_order_of_the_draws() -> None:
    first, second = torch.tensor([True, False, False, False]), torch.tensor([False, True, False, True])
    assert chosen_groups([first, second]) == [(0, 0), (1, 1), (1, 3), (0, 3)]
    assert chosen_groups([~first, second]) == [(1, 1), (0, 1), (0, 2), (0, 3)]
    assert chosen_groups([first]) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_groups_are_joined_with_the_padding_of_their_kind() -> None:
    def batch(start: int, prompt: int, width: int) -> dict[str, Any]:
        ids = {"prompt_ids": torch.full((4, prompt), start), "completion_ids": torch.full((4, width), start + 1)}
        masks = {"prompt_mask": torch.ones(4, prompt), "completion_mask": torch.ones(4, width)}
        more = {"tool_mask": torch.zeros(4, width), "advantages": torch.arange(4.0) + start}
        return {**ids, **masks, **more, "num_items_in_batch": torch.tensor(4 * width)}

    found = joined([batch(10, 1, 3), batch(20, 2, 2)], [(1, 1), (0, 1)], 2, 99)
    for name, one, other in (
        *(("prompt_ids", [20, 20], [99, 10]), ("prompt_mask", [1, 1], [0, 1])),
        *(("completion_ids", [21, 21, 99], [11, 11, 11]), ("completion_mask", [1, 1, 0], [1, 1, 1])),
        ("tool_mask", [0, 0, 1], [0, 0, 0]),
    ):
        assert found[name].tolist() == [one] * 2 + [other] * 2, name
    assert found["advantages"].tolist() == [22, 23, 12, 13]


def test_a_group_differs_by_more_than_rounding_and_scores_that_are_missing_do_not_count() -> None:
    nan = torch.nan
    values = torch.tensor([0.0, 1.0, 1.0, 1.0, nan, 1.0, nan, nan, 1.68572, 1.6857201])
    assert differing_groups(values, 2).tolist() == [True, False, False, False, False]


def further_rows(num_rows: int = 40, rank: int = 0, step: int = 0, draw: int = 1, **more: Any) -> list[int]:
    """The rows that a rank of two draws for four groups of three; a round is four steps."""
    trainer: Any = SimpleNamespace(train_dataset=[{"place": place} for place in range(num_rows)])
    vars(trainer).update(_step=step, _num_generations=3, num_iterations=2, shuffle_dataset=more.get("shuffle", True))
    trainer.accelerator = SimpleNamespace(process_index=rank, num_processes=2)
    trainer.args = SimpleNamespace(seed=more.get("seed", 7), steps_per_generation=2)
    further = [row["place"] for row in SamplingMixin._further_rows(trainer, draw, 4)]
    assert further[::3] == further[1::3] == further[2::3]
    return further[::3]


def test_further_prompts_follow_from_seed_round_and_draw_and_ranks_share_none() -> None:
    first = further_rows()
    assert further_rows() == first == further_rows(step=3)
    assert len({*first, *further_rows(rank=1)}) == 8
    assert first not in (further_rows(step=4), further_rows(draw=2), further_rows(seed=8))  # negative control


def test_rows_in_order_go_on_where_the_rounds_before_and_the_other_ranks_end() -> None:
    """In the third round and its first further draw, 3 rounds of 8 rows are before them; then of later draws. Of five
    rows in all, 8 are 3 of the next pass, and rank 0 has 4 more.
    """
    assert further_rows(40, 0, 8, 1, shuffle=False) == [24, 25, 26, 27]
    assert further_rows(40, 1, 11, 1, shuffle=False) == [28, 29, 30, 31]
    assert further_rows(40, 1, 4, 3, shuffle=False) == [36, 37, 38, 39]
    assert further_rows(40, 0, 4, 4, shuffle=False) == [0, 1, 2, 3]
    assert further_rows(5, 1, 0, 1, shuffle=False) == [2, 3, 4, 0]


def drawing(others: list[int], draws: list[list[bool]], dead: list[float], **more: Any) -> tuple[Any, list[Any]]:
    """A rank of two that draws four rows in two groups, and its notes; `others`: what is gathered of the other rank.

    Each draw is its groups that differ, and the share of groups with equal totals.
    """
    totals = {1.0: [1.0, 1.0, 2.0, 2.0], 0.5: [1.0, 1.0, 2.0, 3.0], 0.0: [1.0, 2.0, 3.0, 4.0]}
    notes: list[Any] = []
    theirs = iter(others)

    def drawn(rows: Any) -> Draw:
        notes.append(rows)
        number = len(notes) - 1
        vars(trainer).update(dict.fromkeys(("_settled", "_given", "_endings", "_counts"), number))
        ids = torch.arange(4.0).unsqueeze(1) + 10 * number
        batch = {"completion_ids": ids, "completion_mask": torch.ones(4, 1), "num_items_in_batch": torch.zeros(())}
        return Draw(batch | more, torch.tensor(draws[number]), torch.ones(4))

    def gather(values: Any) -> Any:
        return torch.cat([values.reshape(-1), torch.tensor([next(theirs)])])

    trainer: Any = SimpleNamespace(model=SimpleNamespace(training=True), keep_groups=KeepGroups("odd", 3))
    vars(trainer).update(_num_generations=2, _tokenizer=SimpleNamespace(pad_token_id=0), _drawn=drawn)
    trainer.accelerator = SimpleNamespace(device="cpu", gather=gather)
    trainer.algorithm = SimpleNamespace(compared=lambda _: torch.tensor(totals[dead[len(notes) - 1]]))
    trainer._logs, trainer._further_rows = {"prompt": deque(["of the round before"])}, lambda *given: given
    trainer._log_draws = lambda found, chosen: notes.append((len(found), chosen))
    trainer.gathered = lambda: next(theirs, None) is None
    return trainer, notes


@pytest.mark.parametrize(
    ("others", "draws", "dead", "chosen", "liveliest"),
    [
        ([2], [[True, True]], [0.5], [(0, 0), (0, 1)], 0),
        ([0, 2, 5], [[True, True], [False, False]], [1.0, 0.0], [(0, 0), (0, 1)], 1),
        ([0, 2, 5], [[True, False], [True, False]], [0.5, 0.5], [(0, 0), (1, 0)], 0),
        ([2, 2, 2, 5], [[False, True], [False, False], [False, False]], [1.0, 0.0, 0.5], [(0, 0), (0, 1)], 1),
    ],
    ids=["at once", "another rank lacks some", "this one does", "there are no more tries"],
)
@pytest.mark.parametrize("more", [{}, {"tool_mask": torch.tensor([[1.0], [0.0], [1.0], [1.0]])}], ids=["", "tools"])
def test_a_round_is_drawn_until_each_rank_has_its_groups(
    others: list[int], draws: Any, dead: list[float], chosen: Any, liveliest: int, more: dict[str, Any]
) -> None:
    """All ranks gather equally often: else a gather meets another one of the others. The draw with the fewest dead
    groups is what the guards look at.
    """
    trainer, notes = drawing(others, draws, dead, **more)
    output = SamplingMixin._generate_and_score_completions(trainer, inputs := [{}] * 4)
    assert trainer.gathered()
    assert notes == [inputs, *((draw, 2) for draw in range(1, len(draws))), (len(draws), chosen)]
    assert {getattr(trainer, name) for name in ("_settled", "_given", "_endings", "_counts")} == {liveliest}
    assert not trainer._logs["prompt"]
    rows = [10 * draw + 2 * group + row for draw, group in chosen for row in range(2)]
    assert output["completion_ids"].flatten().tolist() == rows
    in_loss = [more["tool_mask"][row % 10].item() for row in rows] if more else [1.0] * 4
    assert output["num_items_in_batch"] == (0 if len(draws) == 1 else sum(in_loss) + 5)  # TRL's own at once
    trainer.model.training = False
    notes.clear()
    assert SamplingMixin._generate_and_score_completions(trainer, inputs)["completion_ids"][3] == 3
    assert notes == [inputs]


def test_what_draws_cost_is_logged_of_all_ranks(caplog: pytest.LogCaptureFixture) -> None:
    """Of two draws of two groups of two. Their tokens are 3 and 12, then 48 and 192; the first and the last are taken.
    The other rank has one group that differs and is taken, and took 40 of 100 tokens.
    """
    theirs = torch.tensor([1.0, 1.0, 40.0, 100.0])
    other_rows = torch.tensor([[[True] * 4, [False] * 4]])
    trainer: Any = SimpleNamespace(args=SimpleNamespace(log_completions=True), state=SimpleNamespace(global_step=6))
    trainer.accelerator = SimpleNamespace(device="cpu", num_processes=2, is_main_process=True)
    trainer.accelerator.reduce = lambda own, reduction: own + theirs if reduction == "sum" else None
    trainer.accelerator.gather = lambda rows: torch.cat([rows, other_rows])
    vars(trainer).update(keep_groups=KeepGroups("odd", 3), _num_generations=2, _has_warned=SamplingMixin._has_warned)
    trainer._metrics = {"train": defaultdict(list)}
    trainer._logs = {"extra": {"sampling.kept": deque([None, *[True] * 16])}}
    lengths = torch.tensor([[1, 2, 4, 8], [16, 32, 64, 128]])
    draws = [Draw({}, torch.tensor(one), of) for one, of in zip([[True, False], [True, True]], lengths, strict=True)]
    SamplingMixin._log_draws(trainer, draws, [(0, 0), (1, 1)])
    assert dict(trainer._metrics["train"]) == {
        "sampling/draws": [2.0],
        "sampling/differing_share": [4 / (4 * 2)],
        "sampling/filled_share": [3 / 4],
        "sampling/tokens": [355.0],
        "sampling/unused_token_share": [pytest.approx(1 - (3 + 192 + 40) / 355)],
    }
    taken = [True] * 2 + [False] * 2 + [True] * 4 + [False] * 2 + [True] * 2 + [False] * 4  # by draw, then by rank
    assert list(trainer._logs["extra"]["sampling.kept"]) == [None, *taken]
    trainer.args.log_completions = False
    none = [Draw({}, torch.tensor([False, False]), torch.zeros(4)) for _ in range(3)]
    theirs.zero_()
    for is_main in (False, True, True):
        trainer.accelerator.is_main_process = is_main
        SamplingMixin._log_draws(trainer, none, [(0, 0), (0, 1)])
    assert trainer._metrics["train"]["sampling/unused_token_share"][-1] == 1.0
    SamplingMixin._log_draws(trainer, [Draw({}, torch.tensor([True]), torch.tensor([1, 0]))], [(0, 0)])
    assert trainer._metrics["train"]["sampling/unused_token_share"][-1] == 0.0  # one row has ended at once
    assert [record.args for record in caplog.records] == [(7, "odd", 3)]  # once


@pytest.mark.parametrize(("by", "differs"), [("same", [True, False]), ("total", [False, True])])
def test_a_draw_compares_this_rank_s_rows_by_the_reward_that_is_named(
    monkeypatch, by: str, differs: list[bool]
) -> None:
    """The last four of eight rows are this rank's; a row without a total tells nothing."""
    trainer: Any = object.__new__(SamplingMixin)
    nan, kept = torch.nan, list[Any]()
    rewards = SimpleNamespace(keep_groups=KeepGroups(by, 3))
    vars(trainer).update(
        args=SimpleNamespace(log_completions=True, generation_batch_size=8),
        accelerator=SimpleNamespace(num_processes=2, process_index=1),
        **{"model": SimpleNamespace(training=True), "num_generations": 2, "_given": None},
        extensions=SimpleNamespace(rewards=rewards),
        _settled=SimpleNamespace(names=["odd", "same"], totals=torch.tensor([nan] * 4 + [1.0] * 4)),
        _endings=SimpleNamespace(lengths=torch.arange(8)),
        algorithm=SimpleNamespace(compared=lambda _: torch.tensor([9.0] * 4 + [5.0, 5.0, 6.0, 7.0])),
        _log_completion_extra=lambda *given: kept.append(given),
        _logs={"prompt": deque(maxlen=8), "rewards": defaultdict(lambda: deque(maxlen=8))},
    )
    trainer._settled.raw = torch.tensor([[0.0] * 8, [9.0, 9.0, 9.0, 9.0, 1.0, 2.0, 3.0, 3.0]]).T
    monkeypatch.setattr(RewardMixin, "__init__", lambda self, *given: kept.append(given))
    monkeypatch.setattr(RewardMixin, "_generate_and_score_completions", lambda self, inputs: {"of": inputs})
    SamplingMixin.__init__(trainer, "a model")
    assert [trainer._logs["prompt"].maxlen, trainer._logs["rewards"]["odd"].maxlen] == [24, 24]  # of all draws
    draw = trainer._drawn([{}] * 4)
    assert (draw.output, draw.differs.tolist(), draw.lengths.tolist()) == ({"of": [{}] * 4}, differs, [4, 5, 6, 7])
    assert kept == [("a model",), ("sampling.kept", [True] * 4)]
    trainer._settled.totals[4] = trainer._settled.totals[7] = nan
    trainer.args.log_completions = False
    assert trainer._drawn([{}] * 4).differs.tolist() == [False, False]
    assert len(kept) == 2
