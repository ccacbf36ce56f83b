"""Reads the options that say how a run may go on, which `rlhf train` and `rlhf resume` share."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.errors import ConfigError

_ALLOW, _TAKE_OVER, _TRUST = "--allow", "--take-over", "--trust"


@dataclass(frozen=True)
class ResumeOptions:
    """What a user lets happen: changes of these keys, sections or kinds of files; a run of another machine, code
    that somebody else named."""

    allowed: tuple[str, ...] = ()
    take_over: bool = False
    trust: bool = False


def resume_options(argv: list[str]) -> tuple[ResumeOptions, list[str]]:
    """Return the options in `argv` and the words that are none. Raises ConfigError for `--allow` without a key."""
    allowed: list[str] = []
    words: list[str] = []
    take_over = trust = False
    left = iter(argv)
    for word in left:
        option, equals, value = word.partition("=")
        if option == _ALLOW:
            name = value if equals else next(left, "")
            if not name or name.startswith("-"):
                raise ConfigError(
                    "--allow names what may be another one now",
                    where="command line",
                    expected="a key such as trainer.args.learning_rate, a section, or data, code, config",
                    hint="--allow trainer.args.learning_rate",
                )
            allowed.append(name)
        elif word == _TAKE_OVER:
            take_over = True
        elif word == _TRUST:
            trust = True
        else:
            words.append(word)
    return ResumeOptions(tuple(allowed), take_over, trust), words
