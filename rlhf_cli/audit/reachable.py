"""List the rewards that cost time or money, and those that are unreachable, before calling any."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import Reward
from rlhf_cli.evaluate.policy_tokenizer import rewards_without_tokenizer
from rlhf_cli.plan.reward_components import KEEP_TIME

_CONNECT_S = 2.0


def expensive(experiment: Experiment) -> dict[str, str]:
    """Return name -> cost per text, for the rewards that are not plain functions."""
    found = {}
    for name, reward in experiment.rewards.items():
        if reward.model is not None:
            found[name] = f"a forward pass of {reward.model}"
        elif _urls(reward):
            found[name] = f"a request to {_urls(reward)[0]}"
        elif reward.isolate or (reward.fn or "").startswith(KEEP_TIME):
            found[name] = "a process of its own"
    return found


def unreachable(experiment: Experiment) -> dict[str, str]:
    """Return name -> why a reward cannot be called.

    No server listens at its address, its model is not on this machine, or it needs the tokenizer of a policy that is
    not configured. Open and close a connection without sending anything.
    """
    found = rewards_without_tokenizer(experiment)
    for name, reward in experiment.rewards.items():
        if reward.model is not None:
            if not Path(reward.model).expanduser().is_dir() and not _is_cached(reward.model):
                found[name] = f"{reward.model} is neither a folder nor in the cache of the hub"
            continue
        urls = _urls(reward)
        if urls and not any(map(_listens, urls)):
            found[name] = f"nobody listens at {urls[0]}"
    return found


def _urls(reward: Reward) -> list[str]:
    given = reward.args.get("url")
    urls = given if isinstance(given, list) else [given]
    return [url for url in urls if isinstance(url, str) and url.startswith("http")]


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _is_cached(model: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except ValueError:  # not a valid model id: a folder that does not exist
        return False
