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

from pathlib import Path

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.cli.run_arguments import none_named, run_at
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.environment_references import with_references
from rlhf_cli.config.schema.experiment import valid_keys
from rlhf_cli.display.reference_pages import show_configuration
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.prepare import is_run_name, prepare, prepare_from
from rlhf_cli.project.key_reference import only_sections, unlike_default
from rlhf_cli.runs.run_folder import open_run
from rlhf_cli.text.json_values import leaves
from rlhf_cli.text.suggest import nearest


def run(options: Options) -> int:
    """Print the configuration that the words describe and return the exit code."""
    overrides = [word for word in options.words if word.startswith("~") or ("=" in word and not Path(word).is_dir())]
    others = [word for word in options.words if word not in overrides]
    runs = [word for word in others if is_run_name(word) or (Path(word) / "config.yaml").is_file()]
    keys = [word.strip(".") for word in others if word not in runs]
    for folder in (key for key in keys if "/" in key):
        open_run(Path(folder))  # it raises: no key has such a name
    if len(runs) > 1:
        raise none_named("rlhf show", "one run", got=" ".join(runs))
    stored = run_at(runs[0], overrides, where="command line") if runs else None
    if stored is None and not overrides:
        named = nearest(keys[0], groups().get("exp", {})) if keys and keys[0] not in valid_keys([]) else None
        hint = " ".join([f"+exp={named}", *keys[1:]] if named else ["+exp=quickstart", *keys])
        got, expected = " ".join(keys) or "no words", "+exp=NAME, a run folder or run:NAME"
        hint += ", or rlhf list exp"
        raise ConfigError("which experiment?", where="command line", got=got, expected=expected, hint=hint)
    prepared = prepare(overrides, keep_run_names=True) if stored is None else prepare_from(stored, overrides)
    tree = prepared.as_written.model_dump(mode="json")
    known = [key for key, _ in leaves(tree)]
    for key in (key for key in keys if key not in known):
        ends = {name.rpartition(".")[2]: name for name in known}
        close = ends.get(key) or nearest(key, [*known, *ends])
        what = f"there is no key {key!r} in this configuration"
        expected = "a section or key, such as " + ", ".join(name for name in known if "." not in name)
        raise ConfigError(what, where="command line", expected=expected, hint=ends.get(close or "", close))
    tree = with_references(tree, prepared.composed.references)
    tree = only_sections(unlike_default(tree) if options.on("--changed") else tree, keys)
    origins = prepared.composed.origins  # a default has none
    values = [key for key, value in leaves(tree) if not (isinstance(value, dict) and value)]
    return print_result(
        options,
        lambda: {"config": tree, "origins": {key: str(origins.by_key[key]) for key in values if key in origins.by_key}},
        lambda console: show_configuration(console, tree, origins),
    )
