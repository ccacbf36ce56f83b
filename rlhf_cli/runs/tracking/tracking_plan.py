"""Decide what a tracker will do and under which name."""

from __future__ import annotations

import hashlib
import importlib.util
import netrc
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from rlhf_cli.errors import ConfigError
from rlhf_cli.runs.provenance import add_to_provenance
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.tracking.tracker import TrackedRun, TrackerName
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.redaction import redacted, redacted_tree

_CONNECT_TIMEOUT_S = 3.0
Mode = Literal["online", "offline", "none"]

_MODULES: dict[TrackerName, str] = {"tensorboard": "tensorboard", "trackio": "trackio", "mlflow": "mlflow"}
"""Maps an optional tracker -> its module; rlhf-cli's extra has the tracker's name. wandb is always installed."""

_API = "https://api.wandb.ai"


@dataclass(frozen=True)
class TrackingPlan:
    """How a tracker will record.

    `mode` online and offline differ for wandb only; none disables any tracker. `notice` explains why the plan differs
    from the request, else None.
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
    """Decide how to record: online only with a login and a server that answers."""
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
    """Return `HOST does not answer (why)` if no connection is made within seconds, else None."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{host} does not answer ({error})"
    return None


def wandb_address() -> tuple[str, int]:
    """Return host and port of wandb's server. Raises ValueError if WANDB_BASE_URL is not a valid address."""
    url = urlparse(os.environ.get("WANDB_BASE_URL", _API))
    return url.hostname or "api.wandb.ai", url.port or (80 if url.scheme == "http" else 443)


def has_login(host: str) -> bool:
    """Return whether there are wandb credentials, from the environment or `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = os.environ.get("NETRC")
    try:
        return netrc.netrc(str(Path(file).expanduser()) if file else None).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def missing_tracker(mode: Mode, tracker: TrackerName, *, where: str) -> ConfigError | None:
    """Return the error if the tracker is not installed, None if it is or tracking is off."""
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


_OF_PROVENANCE = ("command", "git", "versions", "starting_model", "world_size", "num_parameters")
"""Keys of provenance.json to show beside the configuration; the rest is in the run folder."""
_PACKAGES = ("rlhf", "trl", "transformers", "torch")
_TAGGED = ("exp", "model", "data")


def tracked_run(folder: RunFolder, *, goes_on_from: int = 0, recorded_to: int = 0) -> TrackedRun:
    """Return the description of the run in `folder` for a tracker; see TrackedRun for the steps."""
    config = folder.read_config()
    track = section(config, "track")
    provenance = read_json(folder.provenance)
    run_id = _run_id(folder, provenance)
    choices = section(provenance, "choices")
    own = track.get("tags")
    tags = [*(choices.get(group) for group in _TAGGED), *(own if isinstance(own, list) else [])]
    shown = {name: provenance[name] for name in _OF_PROVENANCE if provenance.get(name) is not None}
    versions = section(provenance, "versions")
    shown["versions"] = {name: versions[name] for name in _PACKAGES if name in versions}
    entity, notes = track.get("entity"), track.get("notes")
    return TrackedRun(
        path=folder.path,
        run_id=run_id,
        name=redacted(run_name(folder)),
        label=redacted(folder.label),
        group=redacted(folder.sweep_group) if folder.sweep_group else None,
        job_type=str(section(config, "trainer").get("name")),
        project=redacted(str(track.get("project") or "rlhf")),
        entity=redacted(str(entity)) if entity else None,
        tags=tuple(dict.fromkeys(redacted(str(tag)) for tag in tags if tag)),
        notes=redacted(str(notes)) if notes else None,
        config=redacted_tree({**config, "provenance": shown}),
        goes_on_from=goes_on_from,
        recorded_to=max(recorded_to, goes_on_from),
    )


def run_name(folder: RunFolder) -> str:
    """Return the folder's name for a sweep job, which lists its overrides (`weight=0.5,seed=2`); else the label.

    A sweep job with only a number is named by its label too.
    """
    name = folder.path.name
    return folder.label if folder.sweep_group is None or name.isdigit() else name


def _run_id(folder: RunFolder, provenance: JsonTree) -> str:
    """Return the id of this run, which stays the same if its folder moves.

    A run from before ids were stored uses the hash of its path.
    """
    known = provenance.get("wandb_id")
    if isinstance(known, str):
        return known
    of_path = hashlib.sha256(str(folder.path).encode()).hexdigest()[:10]
    add_to_provenance(folder, wandb_id=of_path)  # store it, so that the folder can move from now on
    return of_path
