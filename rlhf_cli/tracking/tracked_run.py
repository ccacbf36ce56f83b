"""Describe a frozen run for a tracker, without secrets: its name, group, tags and configuration."""

from __future__ import annotations

import hashlib

from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.redaction import redacted, redacted_tree
from rlhf_cli.runs.provenance import add_to_provenance
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.tracking.tracker import TrackedRun

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
