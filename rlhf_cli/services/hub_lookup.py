"""Ask the hub, all questions at once, whether it has the repositories of an experiment that are not in the cache."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["model", "dataset"]
State: TypeAlias = Literal["there", "cached", "impossible", "missing", "no_revision", "gated", "unreachable"]

TIMEOUT_VARIABLE = "HF_HUB_ETAG_TIMEOUT"  # the hub's own variable: the timeout in seconds for an answer without data
_TIMEOUT_S = 2.0
_TRUE = {"1", "ON", "YES", "TRUE"}
_WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class HubQuestion:
    """A repository to load from; the tokenizer's files suffice unless `needs_weights`."""

    kind: Kind
    name: str
    revision: str | None = None
    needs_weights: bool = True


@dataclass(frozen=True)
class HubAnswer:
    """`detail` is the problem; `folder` holds a cached model; `is_silence`: a timeout, perhaps of a slow server."""

    state: State
    detail: str = ""
    folder: Path | None = None
    is_silence: bool = False


def look_up(questions: Sequence[HubQuestion]) -> list[HubAnswer]:
    """Return an answer to each question, in order, within the timeout."""
    try:
        deadline_s = float(os.environ[TIMEOUT_VARIABLE])
    except (KeyError, ValueError):
        deadline_s = _TIMEOUT_S
    answers = {question: _without_network(question) for question in questions}

    def ask(question: HubQuestion) -> None:
        answers[question] = _asked(question, deadline_s)

    unknown = [question for question, answer in answers.items() if answer is None]
    # Daemon threads: a DNS lookup cannot be interrupted, and must not delay the exit.
    threads = [threading.Thread(target=ask, args=(question,), daemon=True) for question in unknown]
    for thread in threads:
        thread.start()
    until = time.monotonic() + deadline_s + 0.5
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    silence = HubAnswer("unreachable", f"no answer in {deadline_s:g} s", is_silence=True)
    return [answers[question] or silence for question in questions]


def is_offline() -> str | None:
    """Return the environment variable that forbids hub requests, or None."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return next((name for name in names if os.environ.get(name, "").upper() in _TRUE), None)


def cached_model(name: str, revision: str | None = None) -> Path | None:
    """Return the cache folder that holds a model's configuration, or None if it was never loaded."""
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # a path, which is no valid id
        for file in ("config.json", "adapter_config.json", "tokenizer_config.json"):
            found = try_to_load_from_cache(name, file, revision=revision)
            if isinstance(found, str):
                return Path(found).parent
    return None


def _without_network(question: HubQuestion) -> HubAnswer | None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(question.name)
    except HFValidationError as error:
        return HubAnswer("impossible", _first_line(error))
    folder = None
    if question.kind == "dataset":
        if _cached_dataset(question.name):
            return HubAnswer("cached")
    else:
        folder = cached_model(question.name, question.revision)
        has_weights = folder is not None and any(file.name.endswith(_WEIGHTS) for file in folder.iterdir())
        if folder is not None and (has_weights or not question.needs_weights):
            return HubAnswer("cached", folder=folder)
    variable = is_offline()
    if variable is None:
        return None
    partly = "only its configuration is in the cache, and " if folder is not None else ""
    return HubAnswer("unreachable", f"{partly}{variable}={os.environ[variable]} forbids to ask the hub", folder)


@cache
def _asked(question: HubQuestion, deadline_s: float) -> HubAnswer:
    """Return the hub's answer, cached per process because many runs of a sweep may name the same repository."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        info = api.repo_info(question.name, repo_type=question.kind, revision=question.revision, timeout=deadline_s)
        if info.gated:
            api.auth_check(question.name, repo_type=question.kind)
    except GatedRepoError as error:
        return HubAnswer("gated", _first_line(error))
    except RevisionNotFoundError as error:
        return HubAnswer("no_revision", _first_line(error))
    except RepositoryNotFoundError as error:
        return HubAnswer("missing", _first_line(error))
    except HfHubHTTPError as error:
        return HubAnswer("there", _first_line(error))  # but is busy or has an error: the run will ask again and wait
    except Exception as error:  # DNS, proxy, certificate and socket errors have different types
        is_silence = "timeout" in type(error).__name__.lower()
        return HubAnswer("unreachable", f"{type(error).__name__}: {_first_line(error)}", is_silence=is_silence)
    return HubAnswer("there")


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _cached_dataset(name: str) -> bool:
    """Return whether `datasets` has a prepared dataset in its cache: OWNER___NAME/SUBSET/VERSION/HASH."""
    from huggingface_hub.constants import HF_HOME

    cache_folder = Path(os.environ.get("HF_DATASETS_CACHE") or os.path.join(HF_HOME, "datasets")).expanduser()
    owner, _, own = name.rpartition("/")
    own = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", own)
    in_snake_case = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", own).lower()
    folder = cache_folder / (f"{owner}___" * bool(owner) + in_snake_case)
    return any(found.is_dir() for found in folder.glob("*/*/*"))
