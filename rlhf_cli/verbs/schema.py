"""rlhf schema [GROUP]     JSON Schema of the configuration, for editors and programs: without a word of an experiment,
which is the whole of it, else of the files of a group of conf/ (rlhf schema reward)

An editor with a YAML language server checks and completes a file that begins with
    # yaml-language-server: $schema=rlhf.schema.json
where `rlhf schema --out rlhf.schema.json` has written it. It knows keys, types and values; what several keys have to do
with one another is for `rlhf check`.

--out FILE.json   write it there
--json            it is JSON in any case
"""

from __future__ import annotations

import json

from rich.console import Console

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.json_schema import configuration_schema
from rlhf_cli.errors import EXIT_OK, ConfigError, UserError
from rlhf_cli.json_output import print_json
from rlhf_cli.suggest import nearest
from rlhf_cli.usage import read_options


def run(argv: list[str]) -> int:
    """Print or write a schema; returns the exit code. Raises ConfigError for a group that does not exist."""
    options = read_options(__doc__, argv, verb="schema")
    group, *more = options.words or ["exp"]
    if more or group not in groups():
        close = nearest(group, groups())
        raise ConfigError(
            "a schema of what?",
            where="command line",
            got=" ".join(options.words),
            expected="nothing, or one group: " + ", ".join(groups()),
            hint=f"rlhf schema {close}" if close else "rlhf schema",
        )
    schema, out = configuration_schema(group), options.path("--out")
    if out is None:
        print_json(schema)
        return EXIT_OK
    try:
        out.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out} cannot be written", where="--out", got=error.strerror or str(error)) from None
    if options.as_json:
        print_json({"path": str(out), "group": group})
    else:
        line = f"{out}; first line of a file in conf/{group}:  # yaml-language-server: $schema={out}"
        Console(soft_wrap=True).print(line, markup=False, highlight=False)
    return EXIT_OK
