"""Compare a run with itself run again: the first difference and its likely causes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import cast

from rlhf_cli.analysis.comparison.logged_run import flat
from rlhf_cli.runs.metrics_file import Event, read_metrics
from rlhf_cli.runs.provenance import PENDING_CONFIG, weights_hash
from rlhf_cli.runs.run_folder import RunFolder, checkpoint_folder, read_json
from rlhf_cli.tables.metrics import is_of_the_clock
from rlhf_cli.tables.resume_keys import CODE, CONFIG, kind_of_file, row_of
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

NOT_LOGGED = "not logged"
LOG_EVENT = "log event"
"""The `metric` of a difference if one of the runs logged nothing at a step."""

_OF_ONE_CALL = ("train_runtime", "train_loss")
"""Names in the last line of a log. It is about one call of the trainer, and a resumed run had several."""
_EVAL = "eval_"
_CAUSES_FIRST = (
    *("epoch", "learning_rate", "num_input_tokens", "num_tokens", "completions/", "rewards/", "reward"),
    *("frac_reward", "sampling/", "kl", "entropy", "ppo/", "clip_ratio", "mean_token", "accuracy", "margin"),
    *("loss", "critic/", "grad_norm"),
)
"""The order of computation in a step: earlier metrics may cause later differences. An evaluation follows its step."""
_NOT_COMPARED = ("step", "time_s")


@dataclass(frozen=True)
class LogDifference:
    """The first difference of two logs: its place and both values; null if a number was not finite.

    `others` are the other metrics that differ at the same step, in the order of their computation.
    """

    step: int
    metric: str
    before: JsonValue
    after: JsonValue
    others: tuple[str, ...] = ()

    @property
    def size(self) -> float | None:
        """Return the absolute difference, or None if a value is not a number."""
        both = self.before, self.after
        return abs(both[1] - both[0]) if isinstance(both[0], int | float) and isinstance(both[1], int | float) else None


@dataclass(frozen=True)
class LogsCompared:
    """The comparison of two logs up to a step. `equal_steps` is the last step up to which everything is equal."""

    last_step: int
    num_events: int
    num_numbers: int
    equal_steps: int
    difference: LogDifference | None


def compare_logs(before: Iterable[Event], after: Iterable[Event], *, up_to: int | None = None) -> LogsCompared:
    """Compare two logs event by event, up to a step (None for everything). Numbers must be bitwise equal.

    Ignore clock-based metrics (tables/metrics.py) and the last line, which summarises one call.
    """
    one, other = _by_place(before, up_to), _by_place(after, up_to)
    places = sorted({**one, **other})
    differences = [(place, _difference(place[0], one.get(place), other.get(place))) for place in places]
    first = next((difference for _, difference in differences if difference is not None), None)
    if first is not None:
        # The evaluation of the same step may differ, too.
        at_step = [difference for _, difference in differences if difference and difference.step == first.step]
        names_at_step = tuple(name for difference in at_step for name in (difference.metric, *difference.others))
        first = replace(first, others=names_at_step[1:])
        places = [place for place in places if place[0] <= first.step]
    return LogsCompared(
        last_step=max((step for step, *_ in places), default=0),
        num_events=sum(place in one and place in other for place in places),
        num_numbers=sum(_is_compared(name) for place in places for name in one.get(place, {})),
        equal_steps=max((step for step, *_ in places if first is None or step < first.step), default=0),
        difference=first,
    )


def _by_place(events: Iterable[Event], up_to: int | None) -> dict[tuple[int, bool, int], Event]:
    """Return the events by (step, whether an evaluation, index among that kind at that step)."""
    counted: Counter[tuple[int, bool]] = Counter()
    by_place = {}
    for event in events:
        step = event["step"]
        assert isinstance(step, int | float)
        if any(name in event for name in _OF_ONE_CALL) or (up_to is not None and step > up_to):
            continue
        kind = int(step), any(name.startswith(_EVAL) for name in event)
        by_place[(*kind, counted[kind])] = event
        counted[kind] += 1
    return by_place


def _difference(step: int, before: Event | None, after: Event | None) -> LogDifference | None:
    if before is None or after is None:
        old, new = (NOT_LOGGED if event is None else "logged" for event in (before, after))
        return LogDifference(step, LOG_EVENT, old, new)
    names = [name for name in {**before, **after} if _is_compared(name)]
    equal = {name for name in names if name in before and name in after and before[name] == after[name]}
    differing = sorted((name for name in names if name not in equal), key=_rank)  # a stable sort
    if not differing:
        return None
    first, *others = differing
    was, now = (cast(JsonValue, event.get(first, NOT_LOGGED)) for event in (before, after))
    return LogDifference(step, first, was, now, tuple(others))


def _is_compared(name: str) -> bool:
    return name not in _NOT_COMPARED and not is_of_the_clock(name)


def _rank(name: str) -> int:
    """Return the position of a metric's computation in a step, judging by its name."""
    plain = name.removeprefix(_EVAL)
    return next((rank for rank, prefix in enumerate(_CAUSES_FIRST) if plain.startswith(prefix)), len(_CAUSES_FIRST))


_SHOWN = 12
"""Enough characters of a hash to distinguish two."""
_HASH = re.compile("[0-9a-f]{40,}")
_LOGGED = "trainer.args.logging_"
_FACTS = {
    "versions": "version",
    "rlhf_code": "version",
    "torch_threads": "threads of torch: sums are split among them",
    "device": "device",
    "device_name": "device",
    "cuda": "CUDA",
    "attention": "how packed rows attend",
    **dict.fromkeys(("world_size", "num_parameters", "num_train_rows"), "as it came up"),
    **dict.fromkeys(("mixed_precision", "distributed_type"), "as it came up"),
    "environment": "environment",
}
"""Map a key of provenance.json -> how its difference is called, the most probable cause first."""


@dataclass(frozen=True)
class PossibleCause:
    """A possible cause: its kind, its name, and its value in both runs."""

    kind: str
    name: str
    before: str
    after: str


Recorded = tuple[Mapping[str, object], JsonTree]
"""How a run was made: its configuration by dotted key, and its provenance."""


def causes_of(before: Recorded, after: Recorded) -> list[PossibleCause]:
    """Return all recorded differences that may change a number, the most probable first.

    A fact that the first run did not record is no difference: an older version recorded less.
    """
    (old_settings, old), (new_settings, new) = before, after
    facts = {key: (one, new.get(key)) for key in _FACTS if (one := old.get(key)) is not None}
    if (processor := section(old, "host").get("processor")) is not None:
        facts["processor"] = processor, section(new, "host").get("processor")
    causes = [
        *(one for one in _changed("configuration", old_settings, new_settings) if not _is_harmless(one.name)),
        *_changed("data", _hashes(old, of_code=False), _hashes(new, of_code=False)),
        *_changed("reward code", _hashes(old, of_code=True), _hashes(new, of_code=True)),
        *_changed("starting model", *({**section(one, "starting_model"), "path": None} for one in (old, new))),
        *_when_resumed(old),
    ]
    for key, (was, now) in facts.items():
        both = [one if isinstance(one, dict) else {key: one} for one in (was, now)]
        causes += _changed(_FACTS.get(key, key), *both)
    return causes


def _changed(kind: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[PossibleCause]:
    """Yield a cause for every name whose value differs."""
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            texts = ["none" if (value := one.get(name)) is None else str(value) for one in (old, new)]
            was, now = (text[:_SHOWN] if _HASH.fullmatch(text) else text for text in texts)
            yield PossibleCause(kind, name, was, now)


def _is_harmless(key: str) -> bool:
    """Return whether a setting cannot affect a step."""
    row = row_of(key)
    return row.effect == "taken" and row.only_if is None and not key.startswith(_LOGGED)


def _hashes(provenance: JsonTree, *, of_code: bool) -> dict[str, object]:
    files = section(provenance, "sha256")
    return {
        name: value
        for name, value in files.items()
        if name not in (CONFIG, PENDING_CONFIG) and (kind_of_file(name) == CODE) == of_code
    }


def _when_resumed(before: JsonTree) -> Iterator[PossibleCause]:
    """Yield changes made when the first run was resumed, because its configuration is the final one."""
    resumed = before.get("resumed")
    for entry in resumed if isinstance(resumed, list) else ():
        if isinstance(entry, dict) and (section(entry, "changes") or section(entry, "files")):
            changed = ", ".join([*section(entry, "changes"), *section(entry, "files")])
            yield PossibleCause("resumed", f"from step {entry.get('step')}", f"begun without {changed}", "all of it so")


@dataclass(frozen=True)
class WeightsCompared:
    """The hashes of the weights of one part of two runs: `model`, `critic`, or a checkpoint."""

    part: str
    before: str
    after: str

    @property
    def is_equal(self) -> bool:
        """Return whether the weights are equal."""
        return self.before == self.after


@dataclass(frozen=True)
class Reproduction:
    """Two runs that should be identical, and whether they are.

    `causes` are all recorded differences that may change a number, also if the runs are equal.
    """

    before: RunFolder
    after: RunFolder
    logs: LogsCompared
    weights: tuple[WeightsCompared, ...]
    causes: tuple[PossibleCause, ...]

    @property
    def is_equal(self) -> bool:
        """Return whether all compared numbers and hashes are equal."""
        return self.logs.difference is None and all(part.is_equal for part in self.weights)

    def as_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        difference = self.logs.difference
        return {
            "equal": self.is_equal,
            "run": self.before.shown,
            "again": self.after.shown,
            "steps": self.logs.last_step,
            "equal_steps": self.logs.equal_steps,
            "log_events": self.logs.num_events,
            "numbers": self.logs.num_numbers,
            "first_difference": None if difference is None else asdict(difference),
            "weights": [{**asdict(part), "equal": part.is_equal} for part in self.weights],
            "causes": [asdict(cause) for cause in self.causes],
        }


def compare_again(before: RunFolder, after: RunFolder, *, up_to: int | None = None) -> Reproduction:
    """Compare two runs up to a step, None for their ends; compare weights if both kept them at that step.

    Raise RunError if one of their files cannot be read.
    """
    old, new = read_metrics(before.metrics), read_metrics(after.metrics)
    recorded = [(dict(flat(run.read_config())), read_json(run.provenance)) for run in (before, after)]
    return Reproduction(
        before,
        after,
        compare_logs(old, new, up_to=up_to),
        tuple(_weights(before, after, up_to)),
        tuple(causes_of(*recorded)),
    )


def _weights(before: RunFolder, after: RunFolder, up_to: int | None) -> list[WeightsCompared]:
    if up_to is None:
        parts = {"model": (before.model, after.model), "critic": (before.critic, after.critic)}
    else:
        folders = [checkpoint_folder(run.checkpoints, up_to) for run in (before, after)]
        parts = {f"checkpoint-{up_to}": (folders[0], folders[1])}
    compared = []
    for part, both in parts.items():
        old, new = (weights_hash(folder) if folder.is_dir() else None for folder in both)
        if old is not None and new is not None:
            compared.append(WeightsCompared(part, old, new))
    return compared
