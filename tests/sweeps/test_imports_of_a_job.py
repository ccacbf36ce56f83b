"""The process of a job reads the frozen file: whatever composes is out of the reach of what a worker imports."""

from __future__ import annotations

from scripts import structure


def test_the_process_of_a_job_has_nothing_to_compose_with() -> None:
    files = structure.file_graph(structure.modules())
    assert "rlhf_cli.config.compose" not in reached(files, "rlhf_cli.jobs.rank_process")
    assert "rlhf_cli.config.compose" in reached(files, "rlhf_cli.cli.verbs.train")


def reached(files: structure.Graph, start: str) -> set[str]:
    """All that a file imports, and what that imports."""
    found, to_see = set(), [start]
    while to_see:
        found.add(one := to_see.pop())
        to_see += [other for other in files.get(one, set()) if other not in found]
    return found
