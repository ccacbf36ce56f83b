"""Reads the options of a sweep, which `rlhf train -m` and `rlhf resume SWEEP` share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlhf_cli.errors import ConfigError

_JOBS = re.compile(r"^(?:-j|--jobs=|-j=)(?P<count>.+)$")
_KNOWN = "-j N, --watch METRIC, -v, --dry-run"


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep runs: so many jobs at a time, which metric its table shows (None: reward, else loss), whether every
    run's panels are shown, whether nothing is started, whether only failed jobs are gone on with.
    """

    at_once: int = 1
    watch: str | None = None
    verbose: bool = False
    dry_run: bool = False
    only_failed: bool = False


def sweep_options(argv: list[str], *, may_only_failed: bool = False) -> tuple[SweepOptions, list[str]]:
    """Return the options in `argv` and the words that are none. Raises ConfigError for an option that is not known."""
    at_once, watch = 1, None
    flags: set[str] = set()
    words: list[str] = []
    left = iter(argv)
    for word in left:
        if word in ("-j", "--jobs"):
            at_once = _count(next(left, ""))
        elif (match := _JOBS.match(word)) is not None:
            at_once = _count(match["count"])
        elif word == "--watch" or word.startswith("--watch="):
            watch = word.partition("=")[2] or next(left, "")
            if not watch:
                raise _wrong("--watch names a metric of metrics.jsonl", "--watch", "--watch rewards/correct/mean")
        elif word in ("-v", "--verbose", "--dry-run") or (word == "--failed" and may_only_failed):
            flags.add(word)
        elif word.startswith("-"):
            known = f"{_KNOWN}, --failed, --trust" if may_only_failed else _KNOWN
            raise _wrong("a sweep has no such option", word, f"one of {known}")
        else:
            words.append(word)
    options = SweepOptions(
        at_once=at_once,
        watch=watch,
        verbose=not flags.isdisjoint({"-v", "--verbose"}),
        dry_run="--dry-run" in flags,
        only_failed="--failed" in flags,
    )
    return options, words


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise _wrong("-j says how many runs there are at a time", f"-j {text}".strip(), "a number from 1 on: -j 4")
    return int(text)


def _wrong(what: str, got: str, expected: str) -> ConfigError:
    return ConfigError(what, where="command line", got=got, expected=expected)
