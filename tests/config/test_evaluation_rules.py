"""Rules about evaluation while a run trains."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError

pytestmark = pytest.mark.usefixtures("place")
Judged = Callable[..., Experiment]
Refused = Callable[..., ConfigError]

QUICK = ("exp=quickstart", "data.eval.fraction=0.1")  # 8 generations
BEST = "trainer.args.metric_for_best_model"


def test_an_evaluation_needs_rows(judged: Judged, refused: Refused) -> None:
    judged(*QUICK, "trainer.args.eval_strategy=steps")
    judged("exp=quickstart", "trainer.args.eval_strategy=no")
    assert "eval_on_start=true" in str(refused("exp=quickstart", "trainer.args.eval_on_start=true").got)
    error = refused("exp=quickstart", "trainer.args.eval_strategy=steps")
    assert (error.what, error.where) == (
        "there are no rows to evaluate on",
        "trainer.args.eval_strategy (command line)",
    )
    assert str(error.hint).startswith("data.eval.fraction=0.1")


@pytest.mark.parametrize(
    "name",
    [
        *("eval_reward", "reward", "loss", "greedy/total", "eval_greedy/total", "sampled/total/low", "greedy/tokens"),
        *("pass@1/correct", "pass@8/format", "maj@8/correct", "rewards/correct/mean", "greedy/rewards/brevity"),
        *("rewards/truncation/fraction", "completions/mean_length", "my_own_metric"),
    ],
)
def test_names_that_are_logged_or_may_be(judged: Judged, name: str) -> None:
    judged(*QUICK, f"{BEST}={name}")


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("greedy/totl", "greedy/total"),
        ("eval_sampled/truncatd", "eval_sampled/truncated"),
        ("greedy/rewards/corect", "greedy/rewards/correct"),
        ("rewards/formt/mean", "rewards/format/mean"),
        ("pass@8/corect", "pass@8/correct"),
        ("pass@3/correct", "pass@8/correct"),
        ("maj@4/correct", "maj@8/correct"),
        ("rewards/zzz/mean", None),
    ],
)
def test_names_that_nobody_logs(refused: Refused, name: str, better: str | None) -> None:
    error = refused(*QUICK, f"{BEST}={name}")
    assert (error.what, error.where) == (f"no evaluation logs {name}", f"{BEST} (command line)")
    assert error.hint == (f"{BEST}={better}" if better else None)


def test_attempts_are_as_many_as_are_sampled(judged: Judged, refused: Refused) -> None:
    judged(*QUICK, "trainer.args.num_generations_eval=3", f"{BEST}=pass@3/correct")
    assert refused(*QUICK, "trainer.args.num_generations_eval=3", f"{BEST}=pass@8/correct").hint == (
        f"{BEST}=pass@3/correct"
    )


def test_names_of_other_trainers_are_theirs(judged: Judged) -> None:
    judged("exp=toy_reward", f"{BEST}=eval_accuracy")


RELATIVE = "rewards.brevity.normalize"


@pytest.mark.parametrize("name", ["greedy/total", "eval_sampled/total/low", "reward", "eval_reward"])
@pytest.mark.parametrize("how", ["group", "batch", "running"])
def test_a_total_in_units_of_its_own_chooses_no_checkpoint(refused: Refused, name: str, how: str) -> None:
    error = refused(*QUICK, f"{RELATIVE}={how}", f"{BEST}={name}")
    assert error.what == f"{name} cannot tell a better checkpoint from a worse one"
    assert f"{RELATIVE}={how}" in str(error.got)
    prefix = "eval_" if name.startswith("eval_") else ""
    assert error.hint == f"{BEST}={prefix}greedy/rewards/correct"


def test_z_scores_have_no_total_and_what_they_are_made_from_has(judged: Judged, refused: Refused) -> None:
    words = (*QUICK, "aggregate=normalize_then_sum")
    assert "normalize_then_sum" in str(refused(*words, f"{BEST}=greedy/total").got)
    judged(*words, f"{BEST}=eval_reward")  # TRL logs the weighted sum of the scores themselves


def test_what_can_be_chosen_instead(judged: Judged, refused: Refused) -> None:
    words = (*QUICK, f"{RELATIVE}=running")
    for name in ("greedy/rewards/brevity", "sampled/rewards/correct", "pass@8/correct", "greedy/tokens"):
        judged(*words, f"{BEST}={name}")
    gated = ("primary={by: format, at_least: 1}",)
    assert str(refused(*words, *gated, f"{BEST}=greedy/total").hint).endswith("greedy/rewards/format")
