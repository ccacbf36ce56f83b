"""Decide where a run is tracked."""

from __future__ import annotations

import netrc
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from rlhf_cli.errors import UserError

TrackerName = Literal["wandb", "tensorboard", "trackio", "mlflow"]
Mode = Literal["online", "offline", "none"]
Ending = Literal["finished", "failed", "preempted"]

_CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class TrackingPlan:
    """How a tracker will record; only wandb has offline. `notice` explains why the mode is not the requested one."""

    mode: Mode
    notice: str | None = None
    tracker: TrackerName = "wandb"

    @property
    def in_words(self) -> str:
        if self.mode == "none":
            return "none"
        return f"wandb, {self.mode}" if self.tracker == "wandb" else self.tracker


def plan_tracking(mode: Mode, tracker: TrackerName = "wandb") -> TrackingPlan:
    """Decide how to record: online only with a login and a server that answers."""
    if mode != "online" or tracker != "wandb":
        return TrackingPlan(mode, tracker=tracker)
    if (problem := why_not_online()) is None:
        return TrackingPlan("online")
    offline = "recording offline instead; `rlhf sync RUN` sends it later, track=wandb_offline avoids this notice"
    return TrackingPlan("offline", f"{problem.what} ({problem.hint or problem.got}): {offline}")


def why_not_online() -> UserError | None:
    """Return why nothing can be sent to wandb: its address, the login, or a server that does not answer in seconds."""
    try:
        host, port = wandb_address()
        is_known = has_login(host)
    except LOGIN_ERRORS as error:
        what, hint = "WANDB_BASE_URL or netrc is wrong", "unset WANDB_BASE_URL, or wandb login"
        return UserError(what, got=type(error).__name__, hint=hint)
    if not is_known:
        what, got = f"there is no wandb login for {host}", "no WANDB_API_KEY, and no login in ~/.netrc"
        return UserError(what, got=got, hint="wandb login, or export WANDB_API_KEY=...")
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        advice = "type the same command again with a network"
        return UserError("wandb cannot be reached", got=f"{host} does not answer ({error})", advice=advice)
    return None


def wandb_address() -> tuple[str, int]:
    """Return host and port of wandb's server. Raises ValueError if WANDB_BASE_URL is not a valid address."""
    url = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    return url.hostname or "api.wandb.ai", url.port or (80 if url.scheme == "http" else 443)


LOGIN_ERRORS = (OSError, ValueError, netrc.NetrcParseError)
"""What `wandb_address` and `has_login` raise; their messages may hold a key."""


def has_login(host: str) -> bool:
    """Return whether there are wandb credentials, from the environment or `wandb login`. Raises LOGIN_ERRORS."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    return file.is_file() and netrc.netrc(str(file)).authenticators(host) is not None
