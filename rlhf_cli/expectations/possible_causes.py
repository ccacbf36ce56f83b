"""List possible causes of a difference between two runs: recorded facts that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.runs.changed_files import CODE, CONFIG, kind_of_file
from rlhf_cli.runs.provenance import PENDING_CONFIG
from rlhf_cli.tables.resume_keys import row_of

_SHOWN = 12
"""Enough characters of a hash to distinguish two."""
_SIZES = ("world_size", "num_parameters", "num_train_rows", "mixed_precision", "distributed_type")
_LOGGED = "trainer.args.logging_"
_MACHINE = {
    "torch_threads": "threads of torch: sums are split among them",
    "device": "device",
    "device_name": "device",
    "cuda": "CUDA",
    "attention": "how packed rows attend",
}
_SERVED = ("rlhf_cli.rewards.judge:", "rlhf_cli.rewards.server:")


@dataclass(frozen=True)
class Cause:
    """A possible cause: its kind, its name, and its value in both runs."""

    kind: str
    name: str
    before: str
    after: str

    def as_json(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"kind": self.kind, "name": self.name, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Recorded:
    """The recorded facts about how a run was made; `settings` is its configuration by dotted key."""

    settings: Mapping[str, object]
    provenance: JsonTree


def causes_of(before: Recorded, after: Recorded) -> list[Cause]:
    """Return all recorded differences that may change a number, the most probable first.

    Ignore settings that cannot affect a step (the run's path, its mirrors).
    """
    return [
        *_settings(before.settings, after.settings),
        *_files(before.provenance, after.provenance),
        *_starting_models(before.provenance, after.provenance),
        *_went_on(before.provenance),
        *_versions(before.provenance, after.provenance),
        *_machine(before.provenance, after.provenance),
    ]


def unrepeatable(run: Recorded, *, had_timeouts: bool) -> list[str]:
    """Return the parts of a run that may differ even if nothing changed."""
    found = []
    if str(run.provenance.get("device", "")).startswith("cuda"):
        found.append("it ran on a GPU: some sums are not made in the same order each time")
    served = [
        key.split(".")[1]
        for key, value in run.settings.items()
        if key.startswith("rewards.") and key.endswith(".fn") and str(value).startswith(_SERVED)
    ]
    if served:
        found.append(f"a server answers for {', '.join(served)}: nobody knows what it runs")
    if run.settings.get("trainer.args.use_vllm") is True:
        found.append("vLLM samples: what it batches together hangs on the clock")
    if had_timeouts:
        found.append("rewards ran into their timeouts: whether they do hangs on the clock")
    return found


def _settings(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[Cause]:
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        row = row_of(key)
        is_harmless = row.effect == "taken" and row.only_if is None and not key.startswith(_LOGGED)
        if old != new and not is_harmless:
            yield Cause("configuration", key, _in_short(old), _in_short(new))


def _files(before: JsonTree, after: JsonTree) -> Iterator[Cause]:
    old, new = section(before, "sha256"), section(after, "sha256")
    for name in dict.fromkeys([*old, *new]):
        if name not in (CONFIG, PENDING_CONFIG) and old.get(name) != new.get(name):
            kind = "reward code" if kind_of_file(name) == CODE else "data"
            yield Cause(kind, name, _hash(old.get(name)), _hash(new.get(name)))


def _starting_models(before: JsonTree, after: JsonTree) -> Iterator[Cause]:
    old, new = section(before, "starting_model"), section(after, "starting_model")
    for key in ("weights_sha256", "commit"):
        if old.get(key) != new.get(key):
            yield Cause("starting model", key, _hash(old.get(key)), _hash(new.get(key)))


def _went_on(before: JsonTree) -> Iterator[Cause]:
    """Yield changes made when the first run was resumed, because its configuration is the final one."""
    resumed = before.get("resumed")
    for entry in resumed if isinstance(resumed, list) else ():
        if isinstance(entry, dict) and (section(entry, "changes") or section(entry, "files")):
            changed = ", ".join([*section(entry, "changes"), *section(entry, "files")])
            yield Cause("resumed", f"from step {entry.get('step')}", f"begun without {changed}", "all of it so")


def _versions(before: JsonTree, after: JsonTree) -> Iterator[Cause]:
    old, new = section(before, "versions"), section(after, "versions")
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield Cause("version", name, _in_short(old.get(name)), _in_short(new.get(name)))
    code = [one.get("rlhf_code") for one in (before, after)]
    if None not in code and code[0] != code[1]:
        yield Cause("version", "rlhf's own code", _hash(code[0]), _hash(code[1]))


def _machine(before: JsonTree, after: JsonTree) -> Iterator[Cause]:
    for name, kind in _MACHINE.items():
        if before.get(name) is not None and before.get(name) != after.get(name):
            yield Cause(kind, name, _in_short(before.get(name)), _in_short(after.get(name)))
    old, new = section(before, "host"), section(after, "host")
    if old.get("processor") is not None and old.get("processor") != new.get("processor"):
        yield Cause("processor", "processor", _in_short(old.get("processor")), _in_short(new.get("processor")))
    for name in _SIZES:
        if before.get(name) is not None and before.get(name) != after.get(name):
            yield Cause("as it came up", name, _in_short(before.get(name)), _in_short(after.get(name)))
    old, new = section(before, "environment"), section(after, "environment")
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield Cause("environment", name, "another value", "another value")


def _hash(value: object) -> str:
    return value[:_SHOWN] if isinstance(value, str) else "none"


def _in_short(value: object) -> str:
    return "none" if value is None else str(value)
