"""Connect the machines of a run and define their messages.

The first machine makes an offer once; from then on each says over and over how it is doing. What proves that two see
the same run folder is a secret in it, which nobody says.

Every machine writes under a key of its own and reads what the first has written; the first reads them all. The thread
is there because a network that is gone lets a call to the store wait for ever, in which no signal would be heard.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import importlib.metadata
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

import rlhf_cli
from rlhf_cli.errors import RunError
from rlhf_cli.launch.ranks import Ended, RankFailure
from rlhf_cli.plan.network import MeetingPlace
from rlhf_cli.runs.run_folder import RunFolder, read_json

if TYPE_CHECKING:
    from torch.distributed import TCPStore

Ending = Literal["", "leaving", "failing"]
"""Nothing ends yet; some rank was stopped, and the others are about to be; something failed."""

_ENDINGS: tuple[Ending, ...] = ("", "leaving", "failing")
_MATTER = ("torch", "trl", "transformers", "accelerate", "peft")
_SECRET_FILE = ".meeting.json"
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Offer:
    """What the first machine has to offer to the others: a run folder, and what its ranks are.

    `mark` shows that whoever offers it can read the folder's secret. `processes` are those of one machine.
    """

    run: str
    mark: str
    host: str
    nodes: int
    processes: int
    on_gpus: bool
    resume: bool
    versions: dict[str, str]


@dataclass(frozen=True)
class Verdict:
    """What became of the run: the exit code of the first machine's command and what it says."""

    exit_code: int
    message: str


@dataclass(frozen=True)
class Said:
    """How a machine is doing. `name` is made up by it anew for every start, and `proof` shows that it can read the
    folder's secret; `beat` counts how often it has said something, `clock` is its time in seconds since the epoch.

    `asked` is how often somebody asked for an end, anywhere, as far as it has heard. `ended` and `failures` are of its
    own ranks; `is_done` once none of them runs any more, `has_left` once it will say nothing more. Only the first says
    `is_begun` and the `verdict`.
    """

    name: str
    host: str
    proof: str = ""
    beat: int = 0
    clock: float = 0.0
    is_begun: bool = False
    asked: int = 0
    asked_by: str | None = None
    ending: Ending = ""
    ended: list[Ended] = field(default_factory=list)
    failures: list[RankFailure] = field(default_factory=list)
    is_done: bool = False
    has_left: bool = False
    verdict: Verdict | None = None


def encode(words: Offer | Said) -> str:
    """Return the JSON of what is said."""
    return json.dumps(asdict(words))


def decode_offer(text: bytes) -> Offer:
    """Return what is offered. Raises ValueError where it is anything else."""
    return TypeAdapter(Offer).validate_json(text)


def decode_said(text: bytes) -> Said:
    """Return what was said. Raises ValueError where it is anything else."""
    return _said().validate_json(text)


@cache
def _said() -> TypeAdapter[Said]:
    return TypeAdapter(Said)


def worst(*endings: Ending) -> Ending:
    """Return the ending that outweighs the others."""
    return max(endings, key=_ENDINGS.index)


def versions() -> dict[str, str]:
    """Return the versions of what trains, on this machine."""
    found = {"rlhf": rlhf_cli.__version__, "python": platform.python_version()}
    for package in _MATTER:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def make_secret(folder: RunFolder) -> str:
    """Write a new secret into the run folder, for this user's eyes, and return it."""
    secret, file = secrets.token_hex(_SECRET_BYTES), folder.path / _SECRET_FILE
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump({"secret": secret}, stream)
    return secret


def read_secret(folder: RunFolder) -> str | None:
    """Return the secret in the run folder, None where this machine sees none."""
    try:
        secret = read_json(folder.path / _SECRET_FILE).get("secret")
    except RunError:
        return None
    return secret if isinstance(secret, str) else None


def forget_secret(folder: RunFolder) -> None:
    """Remove the secret: nobody can join any more."""
    (folder.path / _SECRET_FILE).unlink(missing_ok=True)


def proof(secret: str, name: str) -> str:
    """Return what shows that the machine of that name knows the secret."""
    return hmac.new(secret.encode(), name.encode(), hashlib.sha256).hexdigest()


def is_proof(text: str, secret: str, name: str) -> bool:
    """Return whether that is what `proof` returns."""
    return hmac.compare_digest(text.encode(), proof(secret, name).encode())


EVERY_S = 0.2
LOST_S = 15.0
"""A machine that has said nothing for so long is gone."""
LOST_WHEN_FAILING_S = 3.0
"""The same where something has failed: most likely that is why."""
_OFFER, _PLACE, _SAID = "rlhf/offer", "rlhf/place/", "rlhf/said/"
_ANSWER_S = 10.0
_FAREWELL_S = 2.0


class Meeting:
    """The store that the machines of a run meet in; every call may raise RuntimeError once it is gone."""

    def __init__(self, store: TCPStore) -> None:
        self._store = store

    def offer(self, text: str) -> None:
        """Say what is offered here."""
        self._store.set(_OFFER, text)

    def offered(self) -> bytes | None:
        """Return what is offered here, None where nothing is (yet)."""
        return self._get(_OFFER)

    def take_place(self, name: str, num_nodes: int) -> int | None:
        """Return the place that the machine of this name has from now on, None where all are taken."""
        for place in range(1, num_nodes):
            if self._store.compare_set(f"{_PLACE}{place}", "", name).decode() == name:
                return place
        return None

    def free_place(self, place: int, name: str) -> None:
        """Give the place of the machine of this name to whoever comes."""
        self._store.compare_set(f"{_PLACE}{place}", name, "")

    def say(self, place: int, said: Said) -> None:
        """Write what the machine at a place says."""
        self._store.set(f"{_SAID}{place}", encode(said))

    def hear(self, place: int) -> Said | None:
        """Return what the machine at a place said last, None where it has said nothing, or nothing that is known."""
        text = self._get(f"{_SAID}{place}")
        try:
            return decode_said(text) if text is not None else None
        except ValueError:
            return None

    def _get(self, key: str) -> bytes | None:
        return bytes(self._store.get(key)) if self._store.check([key]) else None


def opened(place: MeetingPlace) -> Meeting:
    """Open the store of the first machine at its address, and at no other. Raises OSError where that cannot be had."""
    with _quiet_torch():
        from rlhf_cli.trainers.assemble.trl_config import listening_store

        return Meeting(listening_store(place, timedelta(seconds=_ANSWER_S)))


def entered(place: MeetingPlace) -> Meeting:
    """Enter the store of the first machine. Raises RunError where something else answers there."""
    with _quiet_torch():
        from torch.distributed import TCPStore

        try:
            store = TCPStore(place.host, place.port, None, False, timedelta(seconds=_ANSWER_S), wait_for_workers=False)
        except RuntimeError as error:
            raise RunError(
                f"at {place} is no run that waits for machines",
                got=str(error).splitlines()[0],
                expected="`rlhf train ... launch.nodes=2 launch.rdzv=HOST:PORT` on that machine",
            ) from None
    return Meeting(store)


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """Import torch such that a store that is gone is no page of C++ frames: who has left is said by us."""
    name = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "FATAL")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


@dataclass(frozen=True)
class Heard:
    """What a machine said last; `at` is when it did, by this machine's monotonic clock, `clock` by its time of day."""

    said: Said
    at: float
    clock: float


class Line:
    """A thread that says for this machine what `tell` was given last, and hears the machines at the places `others`.

    `broken` is why the store could not be reached any more, None while it can.
    """

    def __init__(self, meeting: Meeting, place: int, others: Sequence[int], says: Said) -> None:
        self.broken: str | None = None
        self.heard: dict[int, Heard] = {}
        self._meeting, self._place, self._others, self._says = meeting, place, others, says
        self._beat = 0
        self._round_at = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine-line", daemon=True)
        self._thread.start()

    @property
    def says(self) -> Said:
        """Return what this machine says now."""
        return self._says

    def tell(self, **changes: object) -> None:
        """Say something else from now on, but for what is not in `changes`."""
        self._says = replace(self._says, **changes)  # type: ignore[arg-type]

    def silent_s(self, place: int) -> float:
        """Return for how long the machine at a place has said nothing: for ever where the store is gone."""
        if self.broken is not None:
            return float("inf")
        stuck = time.monotonic() - self._round_at
        heard = self.heard.get(place)
        return max(stuck, self._round_at - heard.at if heard is not None else 0.0)

    def close(self) -> None:
        """Say the last word, and nothing after it."""
        self._end.set()
        self._thread.join(_FAREWELL_S)
        if not self._thread.is_alive() and self.broken is None:
            with contextlib.suppress(RuntimeError):
                self._round()

    def _run(self) -> None:
        while not self._end.wait(EVERY_S):
            try:
                self._round()
            except RuntimeError as error:  # torch's DistError is one
                self.broken = str(error).splitlines()[0]
                return

    def _round(self) -> None:
        self._beat += 1
        self._meeting.say(self._place, replace(self._says, beat=self._beat, clock=time.time()))
        for place in self._others:
            said, before = self._meeting.hear(place), self.heard.get(place)
            is_news = before is None or said is None or (said.name, said.beat) != (before.said.name, before.said.beat)
            if said is not None and is_news:
                self.heard[place] = Heard(said, time.monotonic(), time.time())
        self._round_at = time.monotonic()
