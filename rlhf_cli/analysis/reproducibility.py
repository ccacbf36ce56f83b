"""Compare a run with itself run again: the first number that differs, the weights, and the likely causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from rlhf_cli.analysis.comparison.logged_run import flat
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, checkpoint_folder, read_json
from rlhf_cli.tables.metrics import is_of_the_clock
from rlhf_cli.tables.resume_keys import row_of

NOT_LOGGED = "not logged"
_ORDER = "epoch learning_rate num_ completions rewards/ reward sampling kl entropy ppo clip_ratio loss critic grad_norm"
_FACTS = (
    *("sha256.", "starting_model.", "versions.", "rlhf_code", "torch_threads", "device", "attention", "world_size"),
    *("num_", "mixed_precision", "distributed_type", "environment.", "host.processor", "resumed"),
)
_UNRELATED = ("sha256.config", "sha256.config_to_be", "starting_model.path")


@dataclass(frozen=True)
class Pair:
    """A metric, a part of the weights or a recorded fact, and its value in both runs."""

    name: str
    before: object
    after: object


@dataclass(frozen=True)
class Reproduction:
    """Two runs compared up to step `steps`. `also` are the other metrics that differ at step `first_step`."""

    equal: bool
    run: str
    again: str
    steps: int
    numbers: int
    first_step: int | None
    first_difference: Pair | None
    also: list[str]
    weights: list[Pair]
    causes: list[Pair]


def compare_again(run: RunFolder, again: RunFolder, *, up_to: int | None = None) -> Reproduction:
    """Compare two runs up to a step (None: to their ends), to the last bit. Raise RunError for an unreadable file."""
    logs = [_numbers(one, up_to) for one in (run, again)]
    places = sorted(logs[0] | logs[1], key=lambda place: place[:-1])  # stable: metrics of one rank stay as logged
    pairs = [(place[0], Pair(place[-1], *(log.get(place, NOT_LOGGED) for log in logs))) for place in places]
    differing = [(step, pair) for step, pair in pairs if pair.before != pair.after]
    first_step, first = differing[0] if differing else (None, None)
    weights, also = list(_weights(run, again, up_to)), [pair.name for step, pair in differing[1:] if step == first_step]
    is_equal = first is None and all(part.before == part.after for part in weights)
    steps, causes = max((step for step, _ in pairs), default=0), list(_causes(run, again))
    return Reproduction(is_equal, run.shown, again.shown, steps, len(logs[0]), first_step, first, also, weights, causes)


def _numbers(run: RunFolder, up_to: int | None) -> dict[tuple[int, bool, int, int, str], object]:
    """Return the logged values by (step, of an evaluation, index of the event, order of the metric, metric).

    Metrics of the clock and the last line, which summarises one call, are left out.
    """
    counted, found = Counter[tuple[int, bool]](), {}
    for event in read_metrics(run.metrics):
        kind = int(cast(float, event["step"])), any(name.startswith("eval_") for name in event)
        if "train_runtime" in event or (up_to is not None and kind[0] > up_to):
            continue
        counted[kind] += 1
        for name in event:
            if name not in ("step", "time_s") and not is_of_the_clock(name):
                order = [name.removeprefix("eval_").startswith(prefix) for prefix in _ORDER.split()] + [True]
                found[*kind, counted[kind], order.index(True), name] = event[name]
    return found


def _weights(run: RunFolder, again: RunFolder, up_to: int | None) -> Iterator[Pair]:
    """Yield the hashes of every part that both runs kept at a step (None: at their ends)."""
    for part in ("model", "critic") if up_to is None else (f"checkpoint-{up_to}",):
        folders = (checkpoint_folder(one.checkpoints, up_to) if up_to else one.path / part for one in (run, again))
        pair = Pair(part, *(weights_hash(folder) if folder.is_dir() else None for folder in folders))
        if None not in (pair.before, pair.after):
            yield pair


def _causes(run: RunFolder, again: RunFolder) -> Iterator[Pair]:
    """Yield the settings, then the facts that the first run recorded, that differ and may change a number."""
    old, new = (dict(flat(one.read_config())) for one in (run, again))
    for key in old | new:
        row = row_of(key)
        is_harmless = row.effect == "taken" and not row.only_if and "args.logging_" not in key
        if old.get(key) != new.get(key) and not is_harmless:
            yield Pair(key, old.get(key), new.get(key))
    old, new = (dict(flat(read_json(one.provenance))) for one in (run, again))
    for name, value in old.items():
        if name.startswith(_FACTS) and name not in _UNRELATED and value not in (None, new.get(name)):
            yield Pair(name, value, new.get(name))
