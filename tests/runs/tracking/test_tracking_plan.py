"""wandb may be absent, logged out or dead: that is known in seconds, without importing it."""

from __future__ import annotations

import importlib.util
import socket
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.tracking.tracked_run import TrackingPlan, plan_tracking


@pytest.fixture(autouse=True)
def wandb_is_not_imported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of wandb from here on raises ImportError."""
    monkeypatch.setitem(sys.modules, "wandb", None)


@pytest.mark.fault(47)
def test_no_login_and_a_dead_server(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("a connection was tried"))
        plans = [plan_tracking("online")]
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    plans.append(plan_tracking("online"))
    assert time.monotonic() - started < 5
    assert [plan.mode for plan in plans] == ["offline"] * 2
    notices = [str(plan.notice) for plan in plans]
    assert notices[0].startswith("there is no wandb login for api.wandb.ai (wandb login, or export WANDB_API_KEY=...):")
    assert notices[1].startswith("wandb cannot be reached (127.0.0.1 does not answer (")
    assert "0" * 40 not in notices[1]


@pytest.mark.parametrize(
    ("url", "port"), [("http://box", 80), ("https://box", 443), ("https://box:8080", 8080), ("http://box:x", None)]
)
def test_a_server_is_asked_at_the_port_of_its_address(
    monkeypatch: pytest.MonkeyPatch, url: str, port: int | None
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(socket, "create_connection", lambda place, **rules: asked.append((place, *rules)) or Mock())
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", url)
    assert plan_tracking("online").mode == ("offline" if port is None else "online")
    assert asked == ([] if port is None else [(("box", port), "timeout")])
    assert plan_tracking("offline") == TrackingPlan("offline"), "offline asks no server"
    assert len(asked) == (port is not None)


def test_a_login_in_netrc(monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = Path.home() / ".netrc"
    login = "machine 127.0.0.1 login user password abc\n"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        for content, mode in (
            (login.encode(), "online"),
            (login.replace("127.0.0.1", "elsewhere.org").encode(), "offline"),
            (b"this is not a netrc file\n", "offline"),
            (login.encode("utf-16"), "offline"),
        ):
            netrc.write_bytes(content)
            netrc.chmod(0o600)
            assert plan_tracking("online").mode == mode


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "mlflow"])
def test_a_tracker_that_is_not_installed_is_told_by_check(
    tracker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == tracker else there(name, *a))
    words = ["check", "+exp=quickstart", "launch=cpu", f"track={tracker}"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"where:    track.tracker (track/{tracker}.yaml" in said
    assert f"pip install 'rlhf-cli[{tracker}]'" in said
    assert main([*words, "track.mode=none"]) == 0  # negative control: it is not used
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: object() if name == tracker else there(name, *a))
    capsys.readouterr()
    assert main(words) == 0
    assert any(line.split()[1:3] == ["track", tracker] for line in capsys.readouterr().out.splitlines())
