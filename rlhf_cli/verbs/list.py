"""rlhf list [group]                    what there is to choose from: experiments, rewards, trainers, models, data"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rlhf_cli.config.conf_folders import caption, groups, user_dir
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.suggest import nearest

_FIRST = ("exp", "trainer", "reward", "data", "model")


def run(argv: list[str]) -> int:
    """Print the groups and their options, or those of the group in `argv`; returns the exit code.

    Raises ConfigError for a group that does not exist.
    """
    known = groups()
    names = sorted(known, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    if argv:
        wanted = argv[0].removesuffix("s") if argv[0] not in known else argv[0]
        if wanted not in known:
            close = nearest(argv[0], names)
            raise ConfigError(
                f"there is no group {argv[0]!r}",
                expected="one of " + ", ".join(names),
                hint=f"rlhf list {close}" if close else "rlhf list",
            )
        names = [wanted]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name in names:
        table.add_row(f"[cyan]{name}", "")
        for option, file in sorted(known[name].items()):
            mine = user_dir() is not None and file.is_relative_to(user_dir() or file)
            table.add_row(f"  {option}", caption(file) + (" [green](yours)" if mine else ""))
    Console().print(table)
    return EXIT_OK
