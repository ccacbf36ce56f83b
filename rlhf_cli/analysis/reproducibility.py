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
_EVAL = "eval_"
_ORDER = (
    *("epoch", "learning_rate", "num_input_tokens", "num_tokens", "completions/", "rewards/", "reward"),
    *("frac_reward", "sampling/", "kl", "entropy", "ppo/", "clip_ratio", "mean_token", "accuracy", "margin"),
    *("loss", "critic/", "grad_norm"),
)
"""The order of computation in a step: earlier metrics may cause later differences. An evaluation follows its step."""


@dataclass(frozen=True)
class LogDifference:
    """The first difference of two logs: its place and both values; null if a number was not finite.

    `metric` is `log event` if one of the runs logged nothing at the step. `others` are the other metrics that differ at
    the same step, in the order of their computation.
    """

    step: int
    metric: str
    before: JsonValue
    after: JsonValue
    others: tuple[str, ...] = ()


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
    old, new = _by_place(before, up_to), _by_place(after, up_to)
    places = sorted({**old, **new})
    found = [difference for place in places for difference in _differences(place[0], old.get(place), new.get(place))]
    first = next(iter(found), None)
    equal = [step for step, *_ in places if first is None or step < first.step]
    if first is not None:
        places = [place for place in places if place[0] <= first.step]
        first = replace(first, others=tuple(other.metric for other in found[1:] if other.step == first.step))
    return LogsCompared(
        last_step=max((step for step, *_ in places), default=0),
        num_events=sum(place in old and place in new for place in places),
        num_numbers=sum(_is_compared(name) for place in places for name in old.get(place, {})),
        equal_steps=max(equal, default=0),
        difference=first,
    )


def _by_place(events: Iterable[Event], up_to: int | None) -> dict[tuple[int, bool, int], Event]:
    """Return the events by (step, whether an evaluation, index among that kind at that step)."""
    counted: Counter[tuple[int, bool]] = Counter()
    by_place = {}
    for event in events:
        step = int(cast(float, event["step"]))
        if "train_runtime" in event or "train_loss" in event or (up_to is not None and step > up_to):
            continue
        kind = step, any(name.startswith(_EVAL) for name in event)
        by_place[(*kind, counted[kind])] = event
        counted[kind] += 1
    return by_place


def _differences(step: int, before: Event | None, after: Event | None) -> Iterator[LogDifference]:
    """Yield the differences of two events in the order of their computation."""
    if before is None or after is None:
        logged = "logged"
        yield LogDifference(
            step, "log event", NOT_LOGGED if before is None else logged, NOT_LOGGED if after is None else logged
        )
        return
    for name in sorted(filter(_is_compared, {**before, **after}), key=_rank):  # a stable sort
        was, now = (cast(JsonValue, event.get(name, NOT_LOGGED)) for event in (before, after))
        if was != now:
            yield LogDifference(step, name, was, now)


def _is_compared(name: str) -> bool:
    return name not in ("step", "time_s") and not is_of_the_clock(name)


def _rank(name: str) -> int:
    """Return the position of a metric's computation in a step, judging by its name."""
    plain = name.removeprefix(_EVAL)
    return next((rank for rank, prefix in enumerate(_ORDER) if plain.startswith(prefix)), len(_ORDER))


_HASH = re.compile("([0-9a-f]{12})[0-9a-f]{28,}")
_RECORDED = (
    *("data", "reward code", "starting_model", "versions", "rlhf_code", "torch_threads", "device", "device_name"),
    *("cuda", "attention", "world_size", "num_parameters", "num_train_rows", "mixed_precision", "distributed_type"),
    *("environment", "processor"),
)
"""The facts of a provenance that may change a number, the most probable cause first."""


@dataclass(frozen=True)
class PossibleCause:
    """A possible cause: its kind, its name, and its value in both runs."""

    kind: str
    name: str
    before: str
    after: str


Recorded = tuple[Mapping[str, object], JsonTree]
"""How a run was made: its configuration by dotted key, and its provenance."""


def causes_of(before: Recorded, after: Recorded) -> Iterator[PossibleCause]:
    """Yield all recorded differences that may change a number, the most probable first.

    A fact that the first run did not record is no difference: an older version recorded less.
    """
    (settings, old), (new_settings, new) = before, after
    yield from _changed("configuration", *(_that_matter(known) for known in (settings, new_settings)))
    resumed = old.get("resumed")
    for entry in resumed if isinstance(resumed, list) else ():
        # The frozen configuration is the one after the last resume.
        if isinstance(entry, dict) and (changed := [*section(entry, "changes"), *section(entry, "files")]):
            name = f"from step {entry.get('step')}"
            yield PossibleCause("resumed", name, f"started without {', '.join(changed)}", "with all from the start")
    facts = [_facts(known) for known in (old, new)]
    for key in _RECORDED:
        if facts[0].get(key) is not None:
            values = (known.get(key) for known in facts)
            both = (value if isinstance(value, dict) else {key: value} for value in values)
            yield from _changed(key.replace("_", " "), *both)


def _changed(kind: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[PossibleCause]:
    """Yield a cause for every name whose value differs; hashes are shortened."""
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            values = (known.get(name) for known in (old, new))
            texts = [_HASH.sub(r"\1", "none" if value is None else str(value)) for value in values]
            yield PossibleCause(kind, name, *texts)


def _that_matter(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that can affect a step or what it logs."""
    rows = {key: row_of(key) for key in settings}
    harmless = {key for key, row in rows.items() if row.effect == "taken" and row.only_if is None}
    return {key: value for key, value in settings.items() if key not in harmless or "args.logging_" in key}


def _facts(provenance: JsonTree) -> JsonTree:
    """Return a provenance with the hashes of its files as `data` and `reward code`, and without paths."""
    files = {name: digest for name, digest in section(provenance, "sha256").items() if name != PENDING_CONFIG}
    is_code = {name: kind_of_file(name) == CODE for name in files if name != CONFIG}
    return {
        **provenance,
        "data": {name: files[name] for name in is_code if not is_code[name]},
        "reward code": {name: files[name] for name in is_code if is_code[name]},
        "starting_model": {**section(provenance, "starting_model"), "path": None},
        "processor": section(provenance, "host").get("processor"),
    }


@dataclass(frozen=True)
class Reproduction:
    """Two runs that should be identical, and whether they are.

    `weights` maps a part (`model`, `critic`, or a checkpoint) to its hash in both runs. `causes` are all recorded
    differences that may change a number, also if the runs are equal.
    """

    before: RunFolder
    after: RunFolder
    logs: LogsCompared
    weights: Mapping[str, tuple[str, str]]
    causes: tuple[PossibleCause, ...]

    @property
    def is_equal(self) -> bool:
        """Return whether all compared numbers and hashes are equal."""
        return self.logs.difference is None and all(old == new for old, new in self.weights.values())

    def as_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        weights = self.weights.items()
        return {
            "equal": self.is_equal,
            "run": self.before.shown,
            "again": self.after.shown,
            "steps": self.logs.last_step,
            "equal_steps": self.logs.equal_steps,
            "log_events": self.logs.num_events,
            "numbers": self.logs.num_numbers,
            "first_difference": asdict(self.logs.difference) if self.logs.difference is not None else None,
            "weights": [
                {"part": part, "before": old, "after": new, "equal": old == new} for part, (old, new) in weights
            ],
            "causes": [asdict(cause) for cause in self.causes],
        }


def compare_again(before: RunFolder, after: RunFolder, *, up_to: int | None = None) -> Reproduction:
    """Compare two runs up to a step, None for their ends; compare weights if both kept them at that step.

    Raise RunError if one of their files cannot be read.
    """
    both = (before, after)
    logs = compare_logs(*(read_metrics(run.metrics) for run in both), up_to=up_to)
    recorded = [(dict(flat(run.read_config())), read_json(run.provenance)) for run in both]
    return Reproduction(before, after, logs, _weights(before, after, up_to), tuple(causes_of(*recorded)))


def _weights(before: RunFolder, after: RunFolder, up_to: int | None) -> dict[str, tuple[str, str]]:
    """Return the hashes of every part that both runs have at a step, None for their ends."""
    both = (before, after)
    if up_to is None:
        parts = {"model": [run.model for run in both], "critic": [run.critic for run in both]}
    else:
        parts = {f"checkpoint-{up_to}": [checkpoint_folder(run.checkpoints, up_to) for run in both]}
    found = {}
    for part, folders in parts.items():
        old, new = (weights_hash(folder) if folder.is_dir() else None for folder in folders)
        if old is not None and new is not None:
            found[part] = (old, new)
    return found
