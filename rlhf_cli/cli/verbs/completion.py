"""rlhf completion bash|zsh             a completion script: verbs, flags, groups, keys, values, runs, files by Tab

In ~/.bashrc:  eval "$(rlhf completion bash)"
In ~/.zshrc:   eval "$(rlhf completion zsh)"
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.errors import EXIT_OK, UserError

# Where nothing is offered, the shell completes a file. bash breaks words at = and :, so only what follows is printed.
_BASH = r"""
_rlhf() {
    local program="${COMP_WORDS[0]/#\~/$HOME}" line="${COMP_LINE:0:COMP_POINT}" word
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <("$program" completion words "$line" "$COMP_WORDBREAKS" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./:] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o default -F _rlhf rlhf
"""

_ZSH = r"""
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
_rlhf() {
    local -a found begun whole
    local word
    found=("${(@f)$(${~words[1]} completion words "${(j: :)words[1,CURRENT-1]} ${IPREFIX}${PREFIX}" 2>/dev/null)}")
    for word in $found; do
        [[ -n $word ]] || continue
        if [[ $word == *[=./:] ]]; then begun+=("$word"); else whole+=("$word"); fi
    done
    (( ${#begun} )) && compadd -U -S '' -- $begun
    (( ${#whole} )) && compadd -U -- $whole
    (( ${#begun} + ${#whole} )) || _default
}
compdef _rlhf rlhf
"""


def run(argv: list[str]) -> int:
    """Print a completion script, or the completions of a line, and return the exit code."""
    if argv[:1] == ["words"] and len(argv) in (2, 3):
        # pydantic's search of all installed packages for plugins would double the time.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        words = argv[1].split(" ")
        breaks = set(argv[2] if len(argv) == 3 else "") - {" ", "\t", "\n"}
        last = max((place for place, sign in enumerate(words[-1]) if sign in breaks), default=-1)
        for word in candidates([*filter(None, words[:-1]), words[-1]]):
            print(word[last + 1 :])
        return EXIT_OK
    scripts = {"bash": _BASH, "zsh": _ZSH}
    if len(argv) != 1 or argv[0] not in scripts:
        raise UserError(
            "a completion script for which shell?",
            got=" ".join(argv) or "nothing",
            expected="bash or zsh",
            hint='eval "$(rlhf completion bash)"',
        )
    print(scripts[argv[0]].strip())
    return EXIT_OK


_OF_RUNS = re.compile(r"\b(RUN|SWEEP|FOLDER|MODEL)\b")


def candidates(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of `words`; the first word is the program's name.

    A verb's arguments are read from its help: its flags, and whether it takes an experiment or runs.
    """
    current = words[-1]
    if len(words) == 2:
        found: Iterable[str] = [*VERBS, "--help", "--help-all", "--version"]
    else:
        found = _of_verb(words[1], current, list(words[2:-1])) if words[1] in VERBS else []
    fitting = sorted(word for word in dict.fromkeys(found) if word.startswith(current))
    return [word for word in fitting if current.startswith("-") or not word.startswith("-")]


def _of_verb(verb: str, current: str, earlier: list[str]) -> Iterable[str]:
    from rlhf_cli.config.conf_folders import groups
    from rlhf_cli.jobs.usage import usage_of

    usage = usage_of(verb)
    if current.startswith("-"):
        return [*usage.flags, "--help"]
    before = usage.flags.get(earlier[-1]) if earlier else None
    if before is not None and before.metavar:
        return []
    if verb == "list":
        typed = [word for word in earlier if not word.startswith("-")]
        return groups().get(typed[0], {}) if typed else [*groups(), "keys", "metrics"]
    head = usage.text.partition("\n\n")[0]
    takes_overrides = any(sign in head for sign in ("+exp=", "overrides", "key=value"))
    return [*(_runs(current) if _OF_RUNS.search(head) else []), *(_overrides(current) if takes_overrides else [])]


def _runs(typed: str) -> list[str]:
    """Return `run:EXPERIMENT` for every folder of runs, or after a `/` its runs."""
    if not typed.startswith("run:"):
        return []
    experiment, slash, _ = typed.removeprefix("run:").partition("/")
    places = sorted(Path("runs").glob(f"{experiment}*/*/config.yaml"))
    return list(dict.fromkeys(f"run:{'/'.join(place.parts[1 : 3 if slash else 2])}" for place in places))


def _overrides(current: str) -> list[str]:
    """Return the options of a group, the values of a key, or the keys one level below: `launch.slurm.`, `seed=`."""
    from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
    from rlhf_cli.project.reference.key_reference import key_reference, keys_below

    key, equals, value = current.partition("=")
    plain = key.lstrip("+~")
    if equals:
        if (group := plain.partition("@")[0]) in groups():
            return [f"{key}={option}" for option in groups()[group]]
        reference = key_reference(plain)
        return [f"{key}={one}" for one in (*(reference.values if reference is not None else ()), *_runs(value))]
    sign = key.removesuffix(plain)
    if plain.startswith("reward@"):
        return [f"{sign}reward@rewards.{name}=" for name in groups().get("reward", {})]
    names = [f"{sign}{one.key}{'.' if one.is_branch else '='}" for one in keys_below(plain.rpartition(".")[0])]
    if "." not in plain:
        names += [f"{sign or '+' * (not current and group in APPENDED_GROUPS)}{group}=" for group in groups()]
    return names
