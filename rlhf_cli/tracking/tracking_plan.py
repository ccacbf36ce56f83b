"""Says in seconds, before anything is loaded, what a tracker will really do: wandb may be logged out or not answer."""

from __future__ import annotations

import importlib.util
import netrc
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from rlhf_cli.errors import ConfigError
from rlhf_cli.tracking.tracker import TrackerName

_CONNECT_TIMEOUT_S = 3.0
Mode = Literal["online", "offline", "none"]

_MODULES: dict[TrackerName, str] = {"tensorboard": "tensorboard", "trackio": "trackio", "mlflow": "mlflow"}
"""Maps a tracker that not everybody has -> its module; the extra of rlhf-cli has its name. wandb is always there."""

_API = "https://api.wandb.ai"


@dataclass(frozen=True)
class TrackingPlan:
    """A plan that says what a tracker will really do.

    `mode` is online, offline or none, and wandb's: the others record or, with none, do not. `notice` is why it is not
    what was asked for, None where it is.
    """

    mode: Mode
    notice: str | None = None
    tracker: TrackerName = "wandb"

    @property
    def in_words(self) -> str:
        """Return `wandb, offline`, `tensorboard` or `none`."""
        if self.mode == "none":
            return "none"
        return f"wandb, {self.mode}" if self.tracker == "wandb" else self.tracker


def plan_tracking(mode: Mode, tracker: TrackerName = "wandb") -> TrackingPlan:
    """Decide what will be done: online only where there is a login and a server that answers."""
    if mode != "online" or tracker != "wandb":
        return TrackingPlan(mode, tracker=tracker)
    offline = "recording offline instead; `rlhf sync RUN` sends it later, track=wandb_offline asks for it"
    try:
        host, port = wandb_address()
    except ValueError as error:
        return TrackingPlan("offline", f"WANDB_BASE_URL is no address ({error}): {offline}")
    if not has_login(host):
        return TrackingPlan("offline", f"no wandb login (`wandb login`, or set WANDB_API_KEY): {offline}")
    if (silence := no_answer(host, port)) is not None:
        return TrackingPlan("offline", f"{silence}: {offline}")
    return TrackingPlan("online")


def no_answer(host: str, port: int) -> str | None:
    """Return `HOST does not answer (why)` where nothing takes a connection in seconds, None where something does."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{host} does not answer ({error})"
    return None


def wandb_address() -> tuple[str, int]:
    """Return host and port of wandb's server. Raises ValueError where WANDB_BASE_URL is no address."""
    url = urlparse(os.environ.get("WANDB_BASE_URL", _API))
    return url.hostname or "api.wandb.ai", url.port or (80 if url.scheme == "http" else 443)


def has_login(host: str) -> bool:
    """Return whether wandb has something to log in with, by the environment or by `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = os.environ.get("NETRC")
    try:
        return netrc.netrc(str(Path(file).expanduser()) if file else None).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def missing_tracker(mode: Mode, tracker: TrackerName, *, where: str) -> ConfigError | None:
    """Return what to say where the tracker is not installed, None where it is or nothing is tracked."""
    module = _MODULES.get(tracker)
    if mode == "none" or module is None or importlib.util.find_spec(module) is not None:
        return None
    return ConfigError(
        f"{tracker} is not installed",
        where=where,
        got=f"track.tracker: {tracker}, and no package {module} in this environment",
        expected="the package that records it",
        hint=f"pip install 'rlhf-cli[{tracker}]', or track=wandb_offline, or track=none",
    )
