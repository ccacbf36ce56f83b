"""Complete a partial command line: verbs, flags, options of groups, keys, values, runs, files.

A verb's arguments are read from its help: its flags, and from the first lines whether it takes an experiment (`+exp=`)
or runs. Tab is pressed often, so neither Hydra nor TRL is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rlhf_cli.jobs.completed_files import files, runs_by_name
from rlhf_cli.usage import Flag, Usage, usage_of

_OF_RUNS = re.compile(r"\b(RUN|SWEEP|FOLDER|MODEL)\b")
_HELP = ("-h", "--help")


def candidates(words: Sequence[str], verbs: Iterable[str]) -> list[str]:
    """Return the completions of the last of `words`; the first word is the program's name."""
    known = list(verbs)
    if len(words) <= 2:
        return _starting(
            words[-1] if len(words) == 2 else "", [*known, "--help", "--help-all", "--version"] if words[-1:] else known
        )
    verb, current, earlier = words[1], words[-1], list(words[2:-1])
    if verb not in known:
        return []
    return _starting(current, _of_verb(verb, current, earlier))


def _starting(prefix: str, words: Iterable[str]) -> list[str]:
    found = sorted(word for word in dict.fromkeys(words) if word.startswith(prefix))
    return found if prefix.startswith("-") else [word for word in found if not word.startswith("-")]


def _of_verb(verb: str, current: str, earlier: list[str]) -> Iterable[str]:
    usage = usage_of(verb)
    name, equals, value = current.partition("=")
    if equals and name in usage.flags:
        return [f"{name}={one}" for one in _of_flag(usage.flags[name], value)]
    if current.startswith("-"):
        return [*usage.flags, "--help"]
    before = usage.flags.get(earlier[-1]) if earlier else None
    if before is not None and not before.is_switch and not before.may_be_bare:
        return _of_flag(before, current)
    typed = _without_flags(earlier, usage)
    if verb == "list":
        return _of_list(current, typed)
    if verb == "completion":
        return ["bash", "zsh"] if not typed else []
    return _words(usage, current, typed)


def _of_flag(flag: Flag, typed: str) -> list[str]:
    """Return completions of a flag's value: paths, experiments and runs, or [] if unknown."""
    if flag.is_path:
        return files(typed, endings=(flag.ending,) if flag.ending else ())
    if flag.names[0] == "--against":
        from rlhf_cli.config.conf_folders import groups

        return [*groups().get("exp", {}), *runs_by_name(typed), *files(typed)]
    return []


def _words(usage: Usage, current: str, earlier: list[str]) -> Iterable[str]:
    """Return overrides for a verb that takes an experiment, runs and files for one that takes runs, or both."""
    head = usage.text.partition("\n\n")[0]
    found: list[str] = []
    if _OF_RUNS.search(head) and "=" not in current:
        found += [*runs_by_name(current), *files(current)]
    if _OF_RUNS.search(head) and "=" in current:
        found += files(current)  # folders of sweep jobs have a = in their names
    if "+exp=" in head or "overrides" in head or "key=value" in head:
        from rlhf_cli.jobs.completed_keys import override_words

        found += override_words(current, earlier)
    return found


def _of_list(current: str, earlier: list[str]) -> Iterable[str]:
    from rlhf_cli.config.conf_folders import groups

    known = groups()
    if not earlier:
        return [*known, "keys", "metrics"]
    if len(earlier) == 1:
        if earlier[0] == "reward" and current.startswith((".", "/", "~")):
            from rlhf_cli.jobs.completed_files import functions

            return functions(current)
        if earlier[0] == "keys":
            from rlhf_cli.jobs.completed_keys import override_words

            return [word.rstrip("=.") for word in override_words(current, []) if "@" not in word and "+" not in word]
        return known.get(earlier[0], {})
    if earlier[0] == "trainer":
        from rlhf_cli.jobs.completed_keys import override_words

        head = "trainer.args."
        return [word[len(head) : -1] for word in override_words(head, [f"trainer={earlier[1]}"])]
    return []


def _without_flags(words: list[str], usage: Usage) -> list[str]:
    """Return the words that are neither flags nor values of flags."""
    left: list[str] = []
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            flag = usage.flags.get(word)
            is_value = flag is not None and not flag.is_switch and not flag.may_be_bare
        else:
            left.append(word)
    return left
