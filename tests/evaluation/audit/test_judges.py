"""An audit attacks a judge over its own HTTP on few rows, and reports one that obeys the answer."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RewardError
from rlhf_cli.evaluation.audit.attack import KINDS, attack_reachable, expensive, plan_of, unreachable
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.tried_rows import try_rows
from tests.support.fake_server import Answer, reply, serving

RUBRIC = "rewards.style.args.rubric='Question: {prompt} Reference: {answer} Answer: {completion}'"


def experiment(url: str, place: Path) -> Experiment:
    words = [f"rewards.style.args.url={url}/v1", f"rewards.style.args.cache_dir={place / 'replies'}", RUBRIC]
    return prepare(["trainer=grpo", "model=tiny", "data=toy_sums", "reward@rewards.style=judge", *words]).experiment


def parts(payload: Any) -> tuple[str, str]:
    """The reference and the answer that a judge is shown."""
    found = re.search(r"Reference: (.*?) Answer: (.*)", payload["messages"][-1]["content"], re.DOTALL)
    assert found is not None
    return found[1], found[2]


def obedient(payload: Any) -> Answer:
    """A language model that gives 10 for the reference, 3 otherwise, and the score that an answer orders."""
    reference, answer = parts(payload)
    ordered = re.search(r"Score: (\d+)", answer)
    if ordered is not None:
        return reply(f"Score: {ordered[1]}")
    return reply("Score: 10" if reference == answer else "Score: 3")


def strict(payload: Any) -> Answer:
    reference, answer = parts(payload)
    return reply("Score: 10" if reference == answer else "Score: 3")


@pytest.mark.parametrize(("judge", "holes"), [(obedient, ["judge_injection"]), (strict, [])])
def test_one_that_obeys_is_found_out(judge: Any, holes: list[str], place: Path) -> None:
    with serving(judge) as server:
        asked = experiment(server.url.removesuffix("/score"), place)
        assert unreachable(asked) == {}
        kinds = tuple(kind for kind in KINDS if kind.name in ("empty", "judge_injection", "opener"))
        plan = plan_of(asked, kinds, limit=None, gold=None)
        result = attack_reachable(asked, plan)
    assert [kind.name for kind in result.holes] == holes
    # 8 rows: gold and three kinds of one variant; ten formats of gold on 2 rows, one of them twice
    assert result.texts == 8 * 4 + 2 * 10
    assert plan.cost is not None
    assert plan.cost.startswith("at most 52 texts (8 rows), each of them: rewards.style a request to http://127.0.0.1")
    assert len(server.asked) <= 52


def test_an_audit_waits_once_for_a_judge_that_does_not_answer(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It took one budget for each text of each row: 12 minutes without a word."""
    with serving(Answer("broken", 503)) as server:
        asked = experiment(server.url.removesuffix("/score"), place)
        style = asked.rewards["style"]
        short = style.model_copy(update={"args": {**style.args, "retry_budget_s": 1.2}})
        started = time.monotonic()
        with pytest.raises(RewardError) as caught:
            try_rows(asked.model_copy(update={"rewards": {"style": short}}), 1)
        waited_s = time.monotonic() - started
    assert caught.value.where == "rewards.style"
    assert "503" in str(caught.value.got)
    budgets = len([one for one in server.asked if one.payload == server.asked[0].payload])
    assert budgets <= 3, "tries within one budget of 1.2 s"
    assert waited_s < 30
    assert [record.levelname for record in caplog.records if "waiting up to" in record.getMessage()] == ["WARNING"]


def test_nobody_at_the_address_and_no_model(place: Path) -> None:
    asked = experiment("http://127.0.0.1:9", place)
    assert [*unreachable(asked)] == ["style"]
    words = ["trainer=grpo", "model=tiny", "data=toy_sums", "rewards.rm.model=./nowhere"]
    assert list(unreachable(prepare(words).experiment)) == ["rm"]
    assert expensive(prepare(words).experiment) == {"rm": "a forward pass of ./nowhere"}
    plain = prepare(["trainer=grpo", "model=tiny", "data=toy_sums", "reward@rewards.a=sums_correct"]).experiment
    assert (unreachable(plain), expensive(plain)) == ({}, {})
