"""rlhf show +exp=NAME [overrides] [KEY...]     the resolved configuration, with the origin of each value

KEY is a section or a key (rewards, trainer.args): only these are shown. A run folder or run:NAME instead of +exp=NAME
shows the frozen configuration of the run.

rlhf show +exp=quickstart rewards                    one section
rlhf show +exp=quickstart --changed                  what the experiment sets, without defaults
diff <(rlhf show +exp=quickstart) <(rlhf show +exp=toy_ppo)       what differs between two experiments

--changed            only values that are not defaults
--json               print the configuration and its origins as JSON
"""

from __future__ import annotations

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.cli.run_arguments import named_experiment
from rlhf_cli.config.environment_references import with_references
from rlhf_cli.display.reference_pages import show_configuration
from rlhf_cli.project.key_reference import only_sections, unlike_default
from rlhf_cli.text.json_values import leaves


def run(options: Options) -> int:
    """Print the configuration that the words describe and return the exit code."""
    prepared, keys = named_experiment(options.words)
    tree = with_references(prepared.as_written.model_dump(mode="json"), prepared.composed.references)
    tree = only_sections(unlike_default(tree) if options.on("--changed") else tree, keys)
    origins = prepared.composed.origins  # a default has none
    values = [key for key, value in leaves(tree) if not (isinstance(value, dict) and value)]
    return print_result(
        options,
        lambda: {"config": tree, "origins": {key: str(origins.by_key[key]) for key in values if key in origins.by_key}},
        lambda console: show_configuration(console, tree, origins),
    )
