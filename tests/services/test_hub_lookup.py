"""Looking up repositories: a hub of the test's own answers like the real one, or does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from rlhf_cli.services import hub_lookup
from rlhf_cli.services.hub_lookup import HubAnswer, HubQuestion, look_up
from tests.support.fake_server import Answer, FakeServer, serving

ASKED = hub_lookup._asked.__wrapped__
"""The function that asks, as it is without the hub that the other tests have."""
_ERRORS = {
    "gone": (404, "RepoNotFound"),
    "shut": (403, "GatedRepo"),
    "busy": (503, ""),
    "revision": (404, "RevisionNotFound"),
}


@pytest.fixture(autouse=True)
def real_questions(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(hub_lookup, "_asked", ASKED)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """Answers as huggingface.co: the status, and in a header which of several reasons a status has."""

    def answer(_: object) -> Answer:
        path = server.asked[-1].path
        name = "revision" if "revision" in path else path.split("/")[4]
        if name == "shut" and not path.endswith("auth-check"):
            return Answer({"id": "org/shut", "gated": "auto"})
        status, code = _ERRORS.get(name, (200, ""))
        return Answer({"id": f"org/{name}", "gated": False}, status, {"X-Error-Code": code} if code else {})

    with serving(answer) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url.removesuffix("/score"))
        yield server


def asked(name: str, kind: hub_lookup.Kind = "model", revision: str | None = None) -> HubAnswer:
    (answer,) = look_up([HubQuestion(kind, f"org/{name}", revision)])
    return answer


@pytest.mark.parametrize(
    ("name", "revision", "state"),
    [
        ("here", None, "there"),
        ("gone", None, "missing"),
        ("shut", None, "gated"),
        ("here", "v9", "no_revision"),
        ("busy", None, "there"),  # the repository exists; a later request waits longer
    ],
)
def test_what_the_hub_says(name: str, revision: str | None, state: str, hub: FakeServer) -> None:
    kinds: tuple[hub_lookup.Kind, ...] = ("model", "dataset")
    for kind in kinds:
        hub.asked.clear()
        answer = asked(name, kind, revision)
        assert (answer.state, answer.is_silence) == (state, False)
        assert {request.path.split("/")[2] for request in hub.asked} == {f"{kind}s"}


def test_a_silent_hub_costs_one_timeout_for_all_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five questions take no longer than one: half a second of waiting, and half a second of grace."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.5")
        begun = time.monotonic()
        answers = look_up([HubQuestion("model", f"org/model{number}") for number in range(5)])
        took = time.monotonic() - begun
    assert {(answer.state, answer.is_silence) for answer in answers} == {("unreachable", True)}
    assert all("timeout" in answer.detail.lower() for answer in answers)  # each question has ended by itself
    assert took < 2.4, took  # one after another would be 2.5 and more


@pytest.mark.parametrize("typed", [None, "soon"])
def test_a_question_that_does_not_end_delays_nothing(typed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up a name cannot be interrupted: the question is given up, and does not keep the process."""
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    if typed is not None:
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", typed)
    asking, now = list[tuple[float, bool]](), [100.0]

    def wait(_: threading.Thread, timeout_s: float) -> None:
        now[0] += timeout_s

    monkeypatch.setattr(hub_lookup.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threading.Thread, "join", wait)
    begun, ended = threading.Barrier(3), threading.Event()

    def hang(question: HubQuestion, deadline_s: float) -> HubAnswer:
        asking.append((deadline_s, threading.current_thread().daemon))
        begun.wait()
        ended.wait()
        return HubAnswer("there")

    monkeypatch.setattr(hub_lookup, "_asked", hang)
    answers = look_up([HubQuestion("model", f"org/model{number}") for number in range(2)])
    begun.wait()
    ended.set()
    assert {(answer.state, answer.is_silence) for answer in answers} == {("unreachable", True)}
    assert (asking, now) == ([(2.0, True)] * 2, [102.5])  # together half a second more than the hub has


class TestTheCache:
    def cached(self, folder: Path, *files: str) -> Path:
        repository = folder / "models--org--model"
        snapshot = repository / "snapshots" / "0123456789abcdef"
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0123456789abcdef")
        for name in files:
            (snapshot / name).write_text("{}")
        return snapshot

    @pytest.fixture(autouse=True)
    def offline(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(constants, "HF_HOME", str(place / "home"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place / "home" / "hub"))
        monkeypatch.setattr(hub_lookup, "_asked", lambda *_: pytest.fail("a request reached the hub"))

    def test_a_model_that_is_there(self, place: Path) -> None:
        folder = self.cached(place / "home" / "hub", "config.json", "model.safetensors")
        assert asked("model") == HubAnswer("cached", folder=folder)
        assert asked("model", revision="v9").state == "unreachable"
        (answer,) = look_up([HubQuestion("model", "no/such/name")])
        assert (answer.state, "no/such/name" in answer.detail) == ("impossible", True)

    def test_one_whose_weights_were_never_loaded(self, place: Path) -> None:
        self.cached(place / "home" / "hub", "config.json", "tokenizer_config.json")
        answer = asked("model")
        assert answer.state == "unreachable"
        assert answer.detail.startswith("only its configuration is in the cache")
        (tokenizer,) = look_up([HubQuestion("model", "org/model", needs_weights=False)])
        assert tokenizer.state == "cached"

    def test_dataset_folders_are_named_like_those_of_datasets(self, place: Path) -> None:
        from datasets.naming import camelcase_to_snakecase

        name = "HelpSteer2-DPO"
        folder = place / "home" / "datasets" / f"org___{camelcase_to_snakecase(name)}"
        assert asked(name, "dataset").state == "unreachable"
        (folder / "default" / "0.0.0" / "abcdef").mkdir(parents=True)
        assert asked(name, "dataset").state == "cached"
