"""Models and datasets that the hub does not have are all reported before the run, each with a suggestion."""

from __future__ import annotations

from collections.abc import Callable

import datasets
import huggingface_hub
import pytest

from rlhf_cli.data.loading import load_split
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ModelError, Problems, UserError
from rlhf_cli.evaluation.score_completions import policy_tokenizer
from rlhf_cli.evaluation.targets import file_source, model_to_sample
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.services import hub_lookup
from rlhf_cli.services.hub_lookup import HubAnswer, HubQuestion
from tests.support.planning import Refused, planned

QUICK = ("exp=quickstart", "launch=cpu")


def hub_says(monkeypatch: pytest.MonkeyPatch, *answers: HubAnswer, **by_name: HubAnswer) -> list[HubQuestion]:
    """Let the hub give one answer to all questions, or one per repository name. Returns the questions."""
    questions: list[HubQuestion] = []

    def answer(question: HubQuestion, _: float) -> HubAnswer:
        questions.append(question)
        return by_name.get(question.name.partition("/")[2], answers[0] if answers else HubAnswer("there"))

    monkeypatch.setattr(hub_lookup, "_asked", answer)
    return questions


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    ("answer", "key", "got", "hint"),
    [
        (HubAnswer("missing"), "path", "looked for /", "model.path=FOLDER"),
        (HubAnswer("gated"), "path", "no token", "hf auth login"),
        (HubAnswer("unreachable", "no route"), "path", "no route", "hf download org/name"),
        (HubAnswer("unreachable", "slow", is_silence=True), "path", "slow", "HF_HUB_ETAG_TIMEOUT=20"),
        (HubAnswer("no_revision"), "revision", "v9", "~model.revision"),
    ],
)
def test_a_model(monkeypatch, refused: Refused, answer: HubAnswer, key: str, got: str, hint: str) -> None:
    hub_says(monkeypatch, answer)
    error = refused(*QUICK, "model=local", "model.path=org/name", "model.revision=v9")
    assert isinstance(error, ModelError)
    assert str(error.where).startswith(f"model.{key}")
    assert got in str(error.got)
    assert hint in f"{error.hint} {error.advice}"


def test_all_missing_repositories_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = hub_says(monkeypatch, HubAnswer("missing"), good=HubAnswer("there"))
    with pytest.raises(Problems) as caught:
        planned(
            *(*QUICK, "model=local", "model.path=org/good", "model.tokenizer=org/words", "+rewards.judge.model=org/j"),
            *("data.eval.path=org/rows", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=60"),
        )
    keys = [str(problem.where).partition(" ")[0] for problem in caught.value.problems]
    assert keys == ["model.tokenizer", "rewards.judge.model", "data.eval.path"]
    assert len(questions) == 4


@pytest.mark.parametrize(
    ("act", "where"),
    [
        (lambda: file_source({}, "nope"), "--data"),
        (lambda: model_to_sample("org/nope", None), "rlhf generate"),
        (lambda: load_split([DataSource(path="nope")], seed=0), "data.path"),
        (
            lambda: policy_tokenizer(
                prepare(["+exp=quickstart", "model=local", "model.path=org/nope"]).experiment, wanted_by="a reward"
            ),
            "model.path",
        ),
    ],
    ids=["eval", "generate", "rows", "tokenizer"],
)
def test_no_library_retries_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], where: str
) -> None:
    """Without a network `datasets` and transformers ask six times, with pauses of up to 8 s."""
    hub_says(monkeypatch, HubAnswer("unreachable", "no route"))

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a library asks the hub")

    monkeypatch.setattr(datasets, "load_dataset", asked)
    monkeypatch.setattr(huggingface_hub.file_download, "hf_hub_download", asked)
    with pytest.raises(UserError) as caught:
        act()
    assert (caught.value.where, "no route" in str(caught.value.got)) == (where, True)
