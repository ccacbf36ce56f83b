"""rlhf show +exp=NAME [overrides] [KEY...]     the resolved configuration, with the origin of each value

KEY is a section or a key (rewards, trainer.args): only these are shown. A run folder or run:NAME instead of +exp=NAME
shows the frozen configuration of the run.

rlhf show +exp=quickstart rewards                    one section
rlhf show +exp=quickstart --changed                  what the experiment sets, without defaults
rlhf show +exp=quickstart --against toy_ppo          what differs between two experiments, with origins
rlhf show +exp=quickstart --against runs/quickstart/20260131-101500      the same against a run
rlhf show +exp=quickstart --against '+exp=quickstart trainer=rloo'       the same against other words

--changed            only values that are not defaults
--against WORDS      an experiment's name, a run, or overrides in quotes
--json               print the configuration and its origins, or the differences, as JSON
"""

from __future__ import annotations

import shlex
from dataclasses import asdict

from rlhf_cli.cli.output import print_json
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.environment_references import with_references
from rlhf_cli.config.origins import Origins
from rlhf_cli.display.configuration_tables import show_configuration, show_differences
from rlhf_cli.display.terminal import wide_console
from rlhf_cli.errors import EXIT_OK
from rlhf_cli.jobs.run_arguments import NamedExperiment, named_experiment
from rlhf_cli.jobs.usage import read_options
from rlhf_cli.project.reference.differences import Side, differences, only_sections, unlike_default
from rlhf_cli.text.json_values import JsonTree


def run(argv: list[str]) -> int:
    """Print the configuration that `argv` describes, or its differences from another, and return the exit code."""
    options = read_options(__doc__, argv, verb="show")
    named = named_experiment(options.words)
    here = _side(named)
    if (against := options.text("--against")) is not None:
        other = named_experiment(_words_of(against))
        there = _side(other)
        found = [one for one in differences(here, there) if _is_shown(one.key, named.keys)]
        if options.as_json:
            print_json({"here": here.label, "there": there.label, "differences": [asdict(one) for one in found]})
        else:
            show_differences(wide_console(), found, here, there)
        return EXIT_OK
    tree = only_sections(unlike_default(here.tree) if options.on("--changed") else here.tree, named.keys)
    if options.as_json:
        print_json({"config": tree, "origins": _origins(tree, here.origins)})
    else:
        show_configuration(wide_console(), tree, here.origins)
    return EXIT_OK


def _side(named: NamedExperiment) -> Side:
    composed = named.prepared.composed
    tree = with_references(named.prepared.as_written.model_dump(mode="json"), composed.references)
    return Side(named.label, tree, composed.origins, is_run=named.run is not None)


def _words_of(against: str) -> list[str]:
    """Split the value of --against into words; a name alone is an experiment."""
    return [f"+exp={against}"] if against in groups().get("exp", {}) else shlex.split(against)


def _is_shown(key: str, keys: tuple[str, ...]) -> bool:
    return not keys or any(f"{key}.".startswith(f"{one}.") or f"{one}.".startswith(f"{key}.") for one in keys)


def _origins(tree: JsonTree, origins: Origins, prefix: str = "") -> dict[str, str]:
    """Return dotted key -> origin of a tree's values; a default has none."""
    found: dict[str, str] = {}
    for name, value in tree.items():
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(value, dict) and value:
            found |= _origins(value, origins, key)
        elif key in origins.by_key:
            found[key] = str(origins.by_key[key])
    return found
