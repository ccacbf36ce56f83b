"""rlhf completion bash|zsh             a completion script: verbs, flags, groups, keys, values, runs, files by Tab

In ~/.bashrc:  eval "$(rlhf completion bash)"
In ~/.zshrc:   eval "$(rlhf completion zsh)"
"""

from __future__ import annotations

import os

from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.errors import EXIT_OK, UserError

_BASH = r"""
_rlhf() {
    local program="${COMP_WORDS[0]/#\~/$HOME}" line="${COMP_LINE:0:COMP_POINT}" word
    COMPREPLY=()
    # bash breaks words at = and :, so only the part after the last of them is printed
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <("$program" completion words "$line" "$COMP_WORDBREAKS" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./:] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -F _rlhf rlhf
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
}
compdef _rlhf rlhf
"""


def run(argv: list[str]) -> int:
    """Print a completion script, or the completions of a line, and return the exit code.

    Raises UserError for another shell.
    """
    if argv[:1] == ["words"] and len(argv) in (2, 3):
        for word in _candidates(argv[1], argv[2] if len(argv) == 3 else None):
            print(word)
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


def _candidates(line: str, breaks: str | None) -> list[str]:
    """Return the completions of a line's last word; for bash, whose word `breaks` are given, the text to insert."""
    # pydantic's search of all installed packages for plugins would double the time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from rlhf_cli.cli.completion import candidates, for_bash, typed_line

    typed = typed_line(line)
    found = candidates(typed.words, VERBS)
    return found if breaks is None else for_bash(found, typed, breaks)
