"""Logins are said to be there and never shown; a server that does not answer costs two seconds at most."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_cli.project.doctor.machine import (
    Condition,
    State,
    hub_condition,
    hub_login_condition,
    trouble_reaching,
    wandb_login_condition,
)

TOKEN = "hf_" + "PlantedTokenOfTheTests" * 2
KEY = "plantedkeyofthetests" * 2


@pytest.fixture
def refusing_server() -> Iterator[str]:
    """A server that refuses whatever it is asked, as the hub does without a token."""

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(401)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refuse) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def hides(condition: Condition, *secrets: str) -> bool:
    return not any(secret in str(condition) for secret in secrets)


def test_the_hubs_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert hub_login_condition().state == State.MISSING
    monkeypatch.setattr("huggingface_hub.get_token", lambda: TOKEN)
    assert hub_login_condition().found == "a token, from hf auth login"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub_login_condition().found == "a token, from HF_TOKEN"
    assert hides(hub_login_condition(), TOKEN)


def test_wandbs_key(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    file = place / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    assert wandb_login_condition().state == State.MISSING
    file.write_text(f"machine api.wandb.ai login user password {KEY}\n")
    file.chmod(0o600)
    assert wandb_login_condition() == Condition(
        "network", "wandb login", State.OK, f"a key for api.wandb.ai, from {file}"
    )
    # The key of one server is none for another.
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.com")
    assert wandb_login_condition().state == State.MISSING
    file.write_text(f"machine without sense {KEY}")
    broken = wandb_login_condition()
    assert (broken.state, hides(broken, KEY)) == (State.UNFIT, True)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert (wandb_login_condition().found, hides(wandb_login_condition(), KEY)) == ("a key, from WANDB_API_KEY", True)


def test_a_refusal_is_an_answer(refusing_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert trouble_reaching(refusing_server, 5.0) is None
    monkeypatch.setenv("HF_ENDPOINT", refusing_server)
    assert hub_condition().state == State.OK


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        assert trouble_reaching(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.3) is not None
        assert time.monotonic() - began < 2
        port = silent.getsockname()[1]
    assert "refused" in str(trouble_reaching(f"http://127.0.0.1:{port}", 5.0))


def test_offline_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(address: str, timeout_s: float) -> str:
        raise AssertionError("it was asked")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub_condition(never).state == State.OK
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert hub_condition(lambda address, timeout_s: f"no way to {address}").state == State.WARN
