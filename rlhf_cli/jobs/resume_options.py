"""Says how a run may go on: the options that `rlhf train`, `rlhf check` and `rlhf resume` share."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.usage import Options

_TRUST = "--trust"


@dataclass(frozen=True)
class ResumeOptions:
    """What a user lets happen: changes of these keys, sections or kinds of files; a run of another machine, code
    that somebody else named."""

    allowed: tuple[str, ...] = ()
    take_over: bool = False
    trust: bool = False


def resume_options(options: Options) -> ResumeOptions:
    """Return how a run may go on, by what was typed; a verb without `--trust` trusts nobody."""
    trust = _TRUST in options.usage.flags and options.on(_TRUST)
    return ResumeOptions(tuple(options.texts("--allow")), options.on("--take-over"), trust)
