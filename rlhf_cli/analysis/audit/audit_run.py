"""Run an audit: which rows and kinds, at what cost."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rlhf_cli.analysis.audit.attack import AuditPlan, attack
from rlhf_cli.analysis.audit.audit_result import AuditResult
from rlhf_cli.analysis.audit.degenerate_answers import KINDS, AttackKind
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.data.peeking import first_rows
from rlhf_cli.errors import ConfigError, DataError, Prose
from rlhf_cli.evaluation.score_completions import rewards_without_tokenizer
from rlhf_cli.plan.data_sources import training_sources
from rlhf_cli.plan.reward_components import KEEP_TIME
from rlhf_cli.text.suggest import nearest

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


_ROWS, _COSTLY_ROWS = 64, 8
_WAYS_TO_WRITE_GOLD = 10


def chosen_kinds(typed: Sequence[str]) -> tuple[AttackKind, ...]:
    """Return the kinds that were typed, or all if none were. Raise ConfigError for an unknown name."""
    by_name = {kind.name: kind for kind in KINDS}
    names = [name.strip() for text in typed for name in text.split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            raise ConfigError(
                f"there is no kind of answer {name!r}",
                where="--kinds",
                expected="one of " + ", ".join(by_name),
                hint=nearest(name, by_name),
            )
    return tuple(kind for kind in KINDS if kind.name in names) if names else KINDS


def plan_of(experiment: Experiment, kinds: tuple[AttackKind, ...], *, limit: int | None, gold: str | None) -> AuditPlan:
    """Return the plan of an audit with at most `limit` rows; None for a default that depends on the cost.

    Raise ConfigError if there are no rewards, DataError if the rows cannot be loaded.
    """
    if not experiment.rewards:
        raise ConfigError(
            "there is no reward to attack",
            where="rewards",
            got=f"trainer={experiment.trainer.name}, rewards is empty",
            expected="an experiment with rewards",
            hint="reward@rewards.NAME=exact_match, or rlhf list reward",
        )
    costly = expensive(experiment)
    rows = experiment_rows(experiment, limit or (_COSTLY_ROWS if costly else _ROWS))
    cost = None
    if costly:
        count = len(rows) * (len(kinds) + 1) + min(2, len(rows)) * (0 if gold else _WAYS_TO_WRITE_GOLD)
        each = "; ".join(f"rewards.{name} {what}" for name, what in costly.items())
        cost = f"at most {count} texts ({len(rows)} rows), each of them: {each}. --limit and --kinds make it less"
    return AuditPlan(rows, kinds, 1 if costly else None, gold, cost)


def experiment_rows(experiment: Experiment, limit: int) -> list[dict[str, object]]:
    """Return the first rows of an experiment's training data as its trainer gets them. Raise DataError."""
    data = experiment.data
    prompt = data.model_dump()["prompt"]
    sources = training_sources(data)
    rows = first_rows(sources, prompt=prompt, transcripts=data.transcripts, seed=experiment.seed, limit=limit)
    if not rows or "prompt" not in rows[0]:
        raise DataError(
            "the data has no column 'prompt'",
            where="data",
            got="columns " + ", ".join(rows[0] if rows else ()),
            expected="a prompt, which an answer is an answer to",
            hint="data.rename.prompt=COLUMN, or data.prompt='Question: {COLUMN}'",
        )
    return rows


def attack_reachable(experiment: Experiment, plan: AuditPlan) -> AuditResult:
    """Return the audit without the unreachable rewards, which it lists.

    Raise ConfigError if no reward is left.
    """
    left_out = unreachable(experiment)
    if len(left_out) == len(experiment.rewards):
        name, why = next(iter(left_out.items()))
        raise ConfigError(
            "no reward can be asked",
            where=f"rewards.{name}",
            got=why,
            hint=Prose("start it, or say where it is: " + f"rewards.{name}.args.url=URL, rewards.{name}.model=FOLDER"),
        )
    return attack(experiment, plan, left_out=left_out)
