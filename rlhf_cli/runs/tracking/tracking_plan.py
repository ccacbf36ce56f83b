"""Decide where a run is tracked."""

from __future__ import annotations

import netrc
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

TrackerName = Literal["wandb", "tensorboard", "trackio", "mlflow"]
Mode = Literal["online", "offline", "none"]
Ending = Literal["finished", "failed", "preempted"]

_CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class TrackingPlan:
    """How a tracker will record; only wandb has offline. `notice` explains another mode than was asked for."""

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
    offline = "recording offline instead; `rlhf sync RUN` sends it later, track=wandb_offline avoids this notice"
    try:
        host, port = wandb_address()
    except ValueError as error:
        return TrackingPlan("offline", f"WANDB_BASE_URL is not an address ({error}): {offline}")
    if not has_login(host):
        return TrackingPlan("offline", f"no wandb login (`wandb login`, or set WANDB_API_KEY): {offline}")
    if (silence := no_answer(host, port)) is not None:
        return TrackingPlan("offline", f"{silence}: {offline}")
    return TrackingPlan("online")


def no_answer(host: str, port: int) -> str | None:
    """Return `HOST does not answer (why)` if no connection is made within seconds, else None."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{host} does not answer ({error})"
    return None


def wandb_address() -> tuple[str, int]:
    """Return host and port of wandb's server. Raises ValueError if WANDB_BASE_URL is not a valid address."""
    url = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    return url.hostname or "api.wandb.ai", url.port or (80 if url.scheme == "http" else 443)


def has_login(host: str) -> bool:
    """Return whether there are wandb credentials, from the environment or `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        return netrc_knows(host)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False


def netrc_knows(host: str) -> bool:
    """Return whether `wandb login` left a key. Raises OSError, NetrcParseError or UnicodeDecodeError."""
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    return file.is_file() and netrc.netrc(str(file)).authenticators(host) is not None
