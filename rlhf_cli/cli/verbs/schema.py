"""rlhf schema [GROUP]     JSON Schema: without a word of an experiment, which is the whole configuration, else of the
files of a group of conf/ (rlhf schema reward)

An editor with a YAML language server checks and completes a file that starts with
    # yaml-language-server: $schema=rlhf.schema.json
after `rlhf schema --out rlhf.schema.json`. The schema has keys, types and values; `rlhf check` also checks keys against
each other.

--out FILE.json   write it there
--json            no effect: the output is always JSON
"""

from __future__ import annotations

import json

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.json_schema import configuration_schema
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, ConfigError, writing
from rlhf_cli.project.key_reference import described
from rlhf_cli.text.suggest import nearest


def run(options: Options) -> int:
    """Print or write a schema and return the exit code. Raise ConfigError for any other word."""
    group, *more = options.words or ["exp"]
    if more or group not in groups():
        close = nearest(group, groups())
        what, expected = "there is no such schema", "nothing, or a group: " + ", ".join(groups())
        hint = f"rlhf schema {close}" if close else "rlhf schema"
        raise ConfigError(what, where="command line", got=" ".join(options.words), expected=expected, hint=hint)
    schema = described(configuration_schema(group), group)
    out = options.path("--out")
    if out is None:
        print_json(schema)
        return EXIT_OK
    with writing("the schema", "--out"):
        out.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    if options.as_json:
        print_json({"path": str(out), "of": group})
    else:
        use = f"first line of a file in conf/{group}:  # yaml-language-server: $schema={out}"
        Screen(soft_wrap=True).print(f"{out}; {use}", markup=False)
    return EXIT_OK
