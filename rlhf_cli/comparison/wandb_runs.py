"""Read runs from wandb's server through its public API: `wandb:entity/project/group`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from rlhf_cli.comparison.logged_run import LoggedRun, flat, weights_of
from rlhf_cli.comparison.metric_columns import Wanted, columns_of
from rlhf_cli.errors import Prose, RunError
from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.runs.metrics_file import Event
from rlhf_cli.runs.run_status import FAILED, FINISHED, KILLED, RUNNING

PREFIX = "wandb:"
_TIMEOUT_S = 30
_STATES = {"finished": FINISHED, "failed": FAILED, "crashed": KILLED, "killed": KILLED, "running": RUNNING}
_TRAINING = ("seed", "trainer", "model", "data", "rewards", "primary", "aggregate", "critic", "kl", "reward_model")
_SECTIONS = frozenset((*_TRAINING, "truncation", "guards", "launch", "track", "run"))
"""Our sections; wandb's configuration may also contain TRL's arguments."""
_STEPS = ("step", "train/global_step", "global_step", "_step")


class WandbRun(Protocol):
    """The part of a `wandb.Api().runs(...)` run that we read."""

    name: str
    id: str
    state: str
    config: JsonTree

    def scan_history(self) -> Iterable[Mapping[str, object]]:
        """Yield every logged row, a mapping of metric -> value."""


class WandbApi(Protocol):
    """The part of `wandb.Api()` that we call."""

    def runs(self, path: str, filters: dict[str, object] | None = None) -> Iterable[WandbRun]:
        """Return the runs of a project that match the filters."""


def is_wandb(word: str) -> bool:
    """Return whether the argument is `wandb:...`."""
    return word.startswith(PREFIX)


def read_wandb(word: str, *, wanted: Wanted | None = None, api: WandbApi | None = None) -> list[LoggedRun]:
    """Return the runs of a project, or of one group if the word has three parts; not yet named by differences.

    Raise RunError if the word has not two or three parts, if wandb is unreachable, or if it has no such runs.
    """
    parts = word.removeprefix(PREFIX).strip("/").split("/")
    if len(parts) < 2 or not all(parts):
        raise RunError(
            "these are no runs of wandb's",
            got=word,
            expected="wandb:entity/project or wandb:entity/project/group",
            hint="rlhf compare wandb:my-team/rlhf/quickstart/20260131-101500",
        )
    path, group = "/".join(parts[:2]), "/".join(parts[2:])
    try:
        api = api or _api()
        found = list(api.runs(path, filters={"group": group} if group else None))
        # Beside those that train a group holds what was logged about it, such as a report.
        runs = [_logged(run, path, wanted) for run in found if "trainer" in run.config]
    except RunError:
        raise
    except Exception as error:  # wandb raises its own, those of requests and plain ValueErrors
        raise RunError(
            "wandb cannot be asked",
            where=word,
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            expected="a login (`wandb login`, or WANDB_API_KEY), a network, and a project that you may read",
            hint=Prose("rlhf compare runs/...: run folders hold the same metrics, and need no network"),
        ) from error
    if not runs:
        hint = f"rlhf compare wandb:{path}" if group else None
        raise RunError("wandb has no such runs", got=word, hint=hint)
    return runs


def _api() -> WandbApi:
    import wandb

    api: WandbApi = wandb.Api(timeout=_TIMEOUT_S)
    return api


def _logged(run: WandbRun, path: str, wanted: Wanted | None) -> LoggedRun:
    config = {key: value for key, value in run.config.items() if key in _SECTIONS}
    metrics = columns_of(list(_events(run.scan_history())), wanted)
    max_steps = section(section(config, "trainer"), "args").get("max_steps")
    return LoggedRun(
        name=run.name,
        place=f"{PREFIX}{path}/{run.id}",
        folder=None,
        state=_STATES.get(run.state, run.state),
        step=metrics.last_step,
        max_steps=max_steps if isinstance(max_steps, int) else None,
        reason=None,
        settings=dict(flat(config)),
        choices={},
        weights=weights_of(config),
        trainer=str(section(config, "trainer").get("name", "?")),
        metrics=metrics,
    )


def _events(rows: Iterable[Mapping[str, object]]) -> Iterator[Event]:
    """Yield log events with the names of metrics.jsonl, without the `train/` and `eval/` of transformers' callback."""
    for row in rows:
        step = next((value for name in _STEPS if isinstance(value := row.get(name), int | float)), None)
        if step is not None:
            named = {_plain(key): value for key, value in row.items() if key[0] != "_" and key not in _STEPS}
            yield {**{key: value for key, value in named.items() if value is not None}, "step": int(step)}


def _plain(key: str) -> str:
    if key.startswith("eval/"):
        return "eval_" + key.removeprefix("eval/")
    return key.removeprefix("train/")
