"""Read the resume options that `rlhf train`, `rlhf check` and `rlhf resume` share."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.usage import Options

_TRUST = "--trust"


@dataclass(frozen=True)
class ResumeOptions:
    """What the user allows.

    `allowed` are changed keys, sections or kinds of files; `take_over` permits taking over a run of another machine;
    `trust` permits code from a run folder made by another user.
    """

    allowed: tuple[str, ...] = ()
    take_over: bool = False
    trust: bool = False


def resume_options(options: Options) -> ResumeOptions:
    """Return the typed resume options. Without a `--trust` flag, a verb trusts no foreign code."""
    trust = _TRUST in options.usage.flags and options.on(_TRUST)
    return ResumeOptions(tuple(options.texts("--allow")), options.on("--take-over"), trust)
