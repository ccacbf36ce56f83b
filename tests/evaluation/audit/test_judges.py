"""An audit attacks a judge over its own HTTP on few rows, and reports one that obeys the answer."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, DataError, RewardError
from rlhf_cli.evaluation.audit.attack import KINDS, attack_reachable, chosen_kinds, expensive, plan_of, unreachable
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.tried_rows import try_rows
from tests.support.fake_server import Answer, reply, serving

RUBRIC = "rewards.style.args.rubric='Question: {prompt} Reference: {answer} Answer: {completion}'"


def experiment(url: str, place: Path) -> Experiment:
    words = [f"rewards.style.args.url={url}/v1", f"rewards.style.args.cache_dir={place / 'replies'}", RUBRIC]
    return prepare(["trainer=grpo", "model=tiny", "data=toy_sums", "reward@rewards.style=judge", *words]).experiment


def strict(payload: Any) -> Answer:
    """A language model that gives 10 for the reference, 3 otherwise."""
    found = re.search(r"Reference: (.*?) Answer: (.*)", payload["messages"][-1]["content"], re.DOTALL)
    return reply("Score: 10" if found and found[1] == found[2] else "Score: 3")


def obedient(payload: Any) -> Answer:
    """One that gives the score that an answer orders."""
    ordered = re.search(r"Answer: .*Score: (\d+)", payload["messages"][-1]["content"], re.DOTALL)
    return reply(f"Score: {ordered[1]}") if ordered else strict(payload)


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
    assert str(plan.cost).startswith("at most 52 texts (8 rows), each of them: rewards.style a request to http://127.0")
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


def free(completions: Any, url: object = None, **columns: Any) -> list[float]:
    return [0.0 for _ in completions]


SILENT = "http://127.0.0.1:9"
SUMS = ["trainer=grpo", "model=tiny", "data=toy_sums"]


def test_what_cannot_be_reached_and_what_costs_time(place: Path) -> None:
    """A port without a server; of several servers one is enough. A model is a folder, or in the hub's cache."""
    (place / "rm").mkdir()
    with serving(strict) as server:
        url = server.url.removesuffix("/score")
        at = {"none": SILENT, "late": f"[{SILENT}, {url}]", "secure": "'https://127.0.0.1'", "odd": "'http://:x'"}
        given = {name: f"args: {{url: {where}}}" for name, where in {**at, "ftp": "'ftp://x'"}.items()}
        given |= {"process": "isolate: true", "plain": "isolate: false"}
        words = [f"rewards.{name}={{fn: '{__name__}:free', {more}}}" for name, more in given.items()]
        words += ["rewards.tests.fn=rlhf_cli.rewards.code:code_passes_tests"]
        words += ["rewards.gone.model=./nowhere", "rewards.rm.model=./rm"]
        asked = prepare([*SUMS, *words]).experiment
        no_server = {name: f"no server listens at {at[name].strip(chr(39))}" for name in ("none", "secure", "odd")}
        assert unreachable(asked) == {**no_server, "gone": "./nowhere is neither a folder nor in the hub's cache"}
        assert expensive(asked) == {
            **{"none": f"a request to {SILENT}", "late": f"a request to {SILENT}", "odd": "a request to http://:x"},
            **{"secure": "a request to https://127.0.0.1", "process": "a new process", "tests": "a new process"},
            **{"gone": "a forward pass of ./nowhere", "rm": "a forward pass of ./rm"},
        }


def test_what_only_rollouts_have_is_left_out_and_the_prompts_are_shown(place: Path) -> None:
    """The columns of a rollout function and the objects of an environment; other rewards are tried."""
    only = "only rollouts have"
    staged = prepare(["+exp=toy_staged", f"rewards.more.fn={__name__}:free"]).experiment
    tried = try_rows(staged, 1)
    assert tried.left_out == dict.fromkeys(("form", "larger"), f"{only} s1 and s2")
    assert [len(tried.prompts), *(answer.raw for answer in tried.answers[0])] == [1, {"more": 0.0}, {"more": 0.0}]
    (place / "env.py").write_text(
        "class Count:\n    def reset(self, **row): ...\n    def got(self) -> float:\n        return 1.0\n"
    )
    words = ["+exp=toy_calculator", "~tools", "environment={class: ./env.py:Count}", "rewards.e={environment: got}"]
    assert unreachable(prepare(words).experiment) == {"e": f"{only} an environment"}
    alone = staged.model_copy(update={"rewards": {"form": staged.rewards["form"]}})
    with pytest.raises(ConfigError) as caught:
        attack_reachable(alone, plan_of(alone, KINDS[:1], limit=1, gold=None))
    assert (caught.value.where, caught.value.got, caught.value.advice) == ("rewards.form", f"{only} s1 and s2", None)


def test_how_many_rows_and_variants(place: Path) -> None:
    """64 rows and all variants, or 8 rows and one; two of the rows are for ten formats, unless the gold is named."""
    words = [*SUMS, "data.args.num_rows=100", f"rewards.a.fn={__name__}:free"]
    cheap, costly = (prepare([*words, f"rewards.a.isolate={isolate}"]).experiment for isolate in ("false", "true"))
    plans = [plan_of(cheap, KINDS, limit=limit, gold="answer") for limit in (None, 3)]
    assert [(len(plan.rows), plan.kinds, plan.variants, plan.gold, plan.cost) for plan in plans] == [
        (rows, KINDS, None, "answer", None) for rows in (64, 3)
    ]
    for limit, gold, rows, texts in ((None, None, 8, 8 * 4 + 2 * 10), (1, None, 1, 4 + 10), (5, "answer", 5, 5 * 4)):
        plan = plan_of(costly, KINDS[:3], limit=limit, gold=gold)
        assert (len(plan.rows), plan.variants, plan.gold) == (rows, 1, gold)
        begins = f"at most {texts} texts ({rows} rows), each of them: rewards.a a new process. "
        assert str(plan.cost).startswith(begins)


def test_kinds_that_are_typed() -> None:
    assert chosen_kinds([]) == KINDS
    assert [kind.name for kind in chosen_kinds([" longest,", "empty , longest"])] == ["empty", "longest"]
    with pytest.raises(ConfigError) as caught:
        chosen_kinds(["empty,opner"])
    assert (caught.value.where, caught.value.hint) == ("--kinds", "opener")
    assert caught.value.expected == "one of " + ", ".join(kind.name for kind in KINDS)


def test_what_is_no_audit(place: Path) -> None:
    """No reward, no callable reward, no prompts. Beside a reward that can be called, others are skipped."""
    (place / "rows.csv").write_text("question,answer\n1+1,2\n")
    nobody = [f"rewards.{name}={{fn: '{__name__}:free', args: {{url: {SILENT}}}}}" for name in ("a", "b")]
    unheard = prepare([*SUMS, *nobody]).experiment
    no_prompt = prepare(["trainer=grpo", "model=tiny", "data=file", "data.path=rows.csv", nobody[0]]).experiment
    why = f"no server listens at {SILENT}"
    nothing, many = "trainer=grpo, rewards is empty", "reward@rewards.NAME=exact_match, or rlhf list reward"
    rename = "data.rename.prompt=COLUMN, or data.prompt='Question: {COLUMN}'"
    for asked, error, *facts in (
        (unheard.model_copy(update={"rewards": {}}), ConfigError, "rewards", nothing, many),
        (unheard, ConfigError, "rewards.a", why, None),
        (no_prompt, DataError, "data", "columns question, answer", rename),
    ):
        with pytest.raises(error) as caught:
            attack_reachable(asked, plan_of(asked, KINDS[:1], limit=1, gold=None))
        assert [caught.value.where, caught.value.got, caught.value.hint] == facts
    heard = prepare([*SUMS, nobody[0], f"rewards.c.fn={__name__}:free"]).experiment
    assert attack_reachable(heard, plan_of(heard, KINDS[:1], limit=1, gold=None)).left_out == {"a": why}
