"""A round that is drawn again until its groups differ in a named raw reward."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.cli import main
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.reward_metrics import differing_groups
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.tables.metrics import OF_SAMPLING
from rlhf_cli.trainers.extensions import KeepGroups
from rlhf_cli.trainers.sampling_mixin import Draw, SamplingMixin, chosen_groups, joined
from tests.support.cut_runs import goes_on_as, is_same, table
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.whole

SOURCE = """
def odd(completions, **columns):
    return [float(len(text) % 2) for text in completions]

def same(completions, **columns):
    return [1.0 for _ in completions]
"""
KEEP = ("rewards.odd.fn=./mine.py:odd", "rewards.odd.weight=0.0", "rewards.odd.eager=true")
FOUR = "trainer.args.per_device_train_batch_size=16"
SAME = ("rewards.same.fn=./mine.py:same", "sampling.keep_groups.by=same")


@pytest.fixture
def mine(workplace: Path) -> Path:
    (workplace / "mine.py").write_text(SOURCE)
    return workplace / "mine.py"


def test_places_are_filled_in_the_order_of_the_draws() -> None:
    first, second = torch.tensor([True, False, False, False]), torch.tensor([False, True, False, True])
    assert chosen_groups([first, second]) == [(0, 0), (1, 1), (1, 3), (0, 3)]
    assert chosen_groups([~first, second]) == [(1, 1), (0, 1), (0, 2), (0, 3)]
    assert chosen_groups([first]) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_groups_are_joined_with_the_padding_of_their_kind() -> None:
    def batch(start: int, prompt: int, width: int) -> dict[str, Any]:
        return {
            "prompt_ids": torch.full((4, prompt), start),
            "prompt_mask": torch.ones(4, prompt),
            "completion_ids": torch.full((4, width), start + 1),
            "completion_mask": torch.ones(4, width),
            "tool_mask": torch.zeros(4, width),
            "advantages": torch.arange(4.0) + start,
            "num_items_in_batch": torch.tensor(4 * width),
        }

    found = joined([batch(10, 1, 3), batch(20, 2, 2)], [(1, 1), (0, 1)], 2, 99)
    assert found["prompt_ids"].tolist() == [[20, 20]] * 2 + [[99, 10]] * 2
    assert found["prompt_mask"].tolist() == [[1, 1]] * 2 + [[0, 1]] * 2
    assert found["completion_ids"].tolist() == [[21, 21, 99]] * 2 + [[11, 11, 11]] * 2
    assert found["completion_mask"].tolist() == [[1, 1, 0]] * 2 + [[1, 1, 1]] * 2
    assert found["tool_mask"].tolist() == [[0, 0, 1]] * 2 + [[0, 0, 0]] * 2
    assert found["advantages"].tolist() == [22, 23, 12, 13]


def test_a_group_differs_by_more_than_rounding_and_scores_that_are_missing_do_not_count() -> None:
    nan = torch.nan
    values = torch.tensor([0.0, 1.0, 1.0, 1.0, nan, 1.0, nan, nan, 1.68572, 1.6857201])
    assert differing_groups(values, 2).tolist() == [True, False, False, False, False]


def test_the_log_and_the_table_have_all_draws(train, mine: Path) -> None:
    code, run = train(*KEEP, "sampling.keep_groups={by: odd, tries: 4}", FOUR)
    assert code == 0
    for event in read_metrics(run.metrics)[:3]:
        stored = table(run, event["step"])
        rows, kept = len(stored["odd"]), stored["sampling.kept"]
        groups = torch.tensor(stored["odd"]).view(-1, 4)
        differ = groups.min(dim=1).values != groups.max(dim=1).values
        assert rows == 16 * event["sampling/draws"]
        assert event["rewards/odd/mean"] == pytest.approx(fmean(stored["odd"]))
        assert event["reward"] == pytest.approx(fmean(stored["total"]), abs=1e-6)
        assert event["sampling/differing_share"] == pytest.approx(differ.double().mean().item())
        assert sum(kept) == 16
        taken = torch.tensor(kept).view(-1, 4)
        assert bool((taken.all(dim=1) == taken.any(dim=1)).all())
        assert event["sampling/filled_share"] == (taken[:, 0] & differ).sum() / 4
        assert event["sampling/tokens"] == sum(stored["rollout.tokens"])
        used = sum(length for length, one in zip(stored["rollout.tokens"], kept, strict=True) if one)
        assert event["sampling/unused_token_share"] == pytest.approx(1 - used / event["sampling/tokens"])
        # Without a draw too many: all before the last one did not fill the round.
        assert event["sampling/draws"] == 4 or event["sampling/filled_share"] == 1
        assert differ[: 4 * (int(event["sampling/draws"]) - 1)].sum() < 4
    assert any(event["sampling/draws"] > 1 for event in read_metrics(run.metrics)[:3])


@pytest.mark.parametrize("words", [(), ("trainer=rloo",)], ids=["grpo", "rloo"])
def test_a_single_draw_and_a_filter_that_keeps_nothing_train_as_none_does(train, mine: Path, words) -> None:
    """The last is the control: a filter that keeps something trains another model."""
    one_step = (*words, *KEEP, *SAME[:1], "trainer.args.max_steps=1", "trainer.args.learning_rate=0.01")
    runs = {
        name: train(*one_step, *more, name=name)
        for name, more in {
            "none": (),
            "one": ("sampling.keep_groups={by: odd, tries: 1}",),
            "nothing": SAME[1:],
            "odd": ("sampling.keep_groups={by: odd, tries: 4}",),
        }.items()
    }
    assert [code for code, _ in runs.values()] == [0] * 4
    folders = {name: folder for name, (_, folder) in runs.items()}
    assert is_same(folders["one"], folders["none"])
    without, filtered = table(folders["none"], 1), table(folders["nothing"], 1)
    for column in ("completion", "advantage"):  # the weights differ by rounding: TRL shuffles later random numbers
        assert filtered[column][: len(without[column])] == without[column]
    assert filtered["sampling.kept"] == [True] * 8 + [False] * 16
    assert not is_same(folders["odd"], folders["none"])
    assert "no group differs in same after 3 draws" in folders["nothing"].log.read_text()


def test_the_loss_divides_by_the_tokens_that_are_trained_on(train, mine: Path, before_training) -> None:
    seen: list[tuple[int, int]] = []

    def watch(trainer: Any) -> None:
        scored = trainer._generate_and_score_completions

        def look(inputs: Any) -> Any:
            output = scored(inputs)
            seen.append((int(output["num_items_in_batch"]), int(output["completion_mask"].sum())))
            return output

        trainer._generate_and_score_completions = look

    before_training(watch)
    code, _ = train(*KEEP, "sampling.keep_groups={by: odd, tries: 4}")
    assert code == 0
    assert len(seen) == 3
    assert all(divisor == tokens for divisor, tokens in seen)


@pytest.mark.parametrize("step", [2, 5])
def test_a_stopped_run_goes_on_bit_for_bit(whole, workplace: Path, step: int) -> None:
    words = ("rewards.format.weight=1", "sampling.keep_groups={by: brevity, tries: 3}", "data.args.num_rows=40")
    run = whole(*words)
    assert any(event["sampling/draws"] > 1 for event in read_metrics(run.metrics)[:-1])
    goes_on_as(run, step, workplace / "cut")


def test_rows_in_order_are_followed_by_the_next_ones(train, mine: Path) -> None:
    code, run = train(*SAME, "trainer.args.shuffle_dataset=false", FOUR)
    assert code == 0
    prompts = list(dict.fromkeys(table(run, 1)["prompt"]))
    assert prompts[4:8] == list(dict.fromkeys(table(run, 2)["prompt"]))[:4]  # the second round's own
    assert len(prompts) == 12


def test_further_prompts_follow_from_seed_round_and_draw_and_ranks_share_none() -> None:
    def rows(rank: int = 0, step: int = 0, draw: int = 1, seed: int = 7) -> list[int]:
        trainer: Any = SimpleNamespace(
            accelerator=SimpleNamespace(process_index=rank, num_processes=2),
            args=SimpleNamespace(seed=seed, steps_per_generation=2),
            **{"_step": step, "_num_generations": 3, "num_iterations": 2, "shuffle_dataset": True},
            train_dataset=[{"place": place} for place in range(40)],
        )
        further = [row["place"] for row in SamplingMixin._further_rows(trainer, draw, 4)]
        assert further[::3] == further[1::3] == further[2::3]
        return further[::3]

    first = rows()
    assert rows() == first == rows(step=3)  # a round is four steps
    assert len({*first, *rows(rank=1)}) == 8
    assert first not in (rows(step=4), rows(draw=2), rows(seed=8))  # negative control


@pytest.mark.parametrize("own", [[[True, True], [False, False]], [[True, False], [True, False]]], ids=["full", "not"])
def test_a_rank_that_needs_no_further_draw_gathers_as_often_as_the_others(own: list[list[bool]]) -> None:
    """Else its next gather meets another one of the others: the run hangs, or divides by the wrong tokens."""
    others = iter([0, 2, 5])  # of the other rank: groups that differ after each draw, and tokens
    batch = {
        "completion_ids": torch.zeros(2, 1),
        "completion_mask": torch.ones(2, 1),
        "num_items_in_batch": torch.ones(()),
    }
    draws = iter([Draw({**batch}, torch.tensor(differs), torch.ones(2)) for differs in own])
    trainer: Any = SimpleNamespace(
        accelerator=SimpleNamespace(
            device="cpu", gather=lambda values: torch.cat([values.reshape(-1), torch.tensor([next(others)])])
        ),
        model=SimpleNamespace(training=True),
        keep_groups=KeepGroups("odd", 3),
        _num_generations=1,
        _logs={},
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _drawn=lambda _: next(draws),
        _further_rows=lambda *_: [],
        _log_draws=lambda *_: None,
        _compared_totals=lambda: torch.ones(2),
        **dict.fromkeys(("_settled", "_given", "_endings", "_counts")),
    )
    output = SamplingMixin._generate_and_score_completions(trainer, [{}, {}])
    assert next(others, None) is None
    assert output["num_items_in_batch"] == 2 + 5


def test_an_evaluation_draws_once(train, mine: Path) -> None:
    words = ("data.eval.fraction=0.1", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2")
    code, run = train(*SAME, *words)
    assert code == 0
    evaluated = next(event for event in read_metrics(run.metrics) if "eval_reward" in event)
    assert not any(name.startswith("eval_sampling/") for name in evaluated)
    assert len(table(run, 2)["prompt"]) == 3 * 8  # of the training


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (PPO_SMALL, "sampling.keep_groups"),
        (["trainer.args.scale_rewards=batch"], "trainer.args.scale_rewards"),
        (["trainer=rloo", "trainer.args.normalize_advantages=true"], "trainer.args.normalize_advantages"),
        (["aggregate=normalize_then_sum"], "aggregate"),
        (["sampling.keep_groups.by=corect"], "sampling.keep_groups.by"),
        (["launch.processes=2", "trainer.args.per_device_train_batch_size=2"], "per_device_train_batch_size"),
        (["sampling.keep_groups.tries=0"], "sampling.keep_groups.tries"),
    ],
)
def test_what_compares_several_groups_is_refused(workplace: Path, capsys, words: list[str], key: str) -> None:
    assert main(["check", *SMALL, "sampling.keep_groups.by=correct", *words]) == 2
    error = capsys.readouterr().err
    assert key in error
    assert "try:" in error or "tries" in key


def test_the_nearest_reward_is_named_and_rows_have_no_groups(workplace: Path, capsys) -> None:
    assert main(["check", *SMALL, "sampling.keep_groups.by=corect"]) == 2
    assert "sampling.keep_groups.by=correct" in capsys.readouterr().err
    assert main(["check", "+exp=toy_sft", "sampling.keep_groups.by=correct"]) == 2
    assert "sampling.keep_groups=null" in capsys.readouterr().err


def test_a_filter_by_the_total_is_warned_of() -> None:
    notices: dict[str, list[str]] = {}
    for by in ("total", "correct"):
        prepared = prepare([*SMALL, f"sampling.keep_groups.by={by}"], keep_run_names=True)
        assert isinstance(prepared.experiment, Experiment)
        plan = preflight(prepared.experiment, prepared.composed)
        notices[by] = [notice.text for notice in plan.notices if notice.subject == "sampling"]
    assert len(notices["total"]) == 1
    assert notices["correct"] == []


def test_its_metrics_can_be_expected(train, mine: Path) -> None:
    code, run = train(*SAME, "expect={metric: sampling/draws, at_most: 3}", "trainer.args.max_steps=1")
    assert code == 0
    assert set(OF_SAMPLING) <= set(read_metrics(run.metrics)[0])
