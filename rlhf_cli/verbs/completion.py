"""rlhf completion bash|zsh             a completion script: eval "$(rlhf completion bash)" in ~/.bashrc, or
eval "$(rlhf completion zsh)" in ~/.zshrc
"""

from __future__ import annotations

from rlhf_cli.errors import EXIT_OK, UserError
from rlhf_cli.verbs import VERBS

_BASH = r"""
_rlhf() {
    local current="${COMP_WORDS[COMP_CWORD]}" line="${COMP_LINE:0:COMP_POINT}"
    # bash breaks words at = and :, an override does not
    current="${line##*[[:space:]]}"
    local prefix="${current%"${COMP_WORDS[COMP_CWORD]}"}"
    # behind a sign that breaks words bash goes on with a new one
    [[ "${COMP_WORDS[COMP_CWORD]}" == [=:] ]] && prefix="$current"
    COMPREPLY=()
    local word
    while IFS= read -r word; do
        COMPREPLY+=("${word#"$prefix"}")
    done < <(rlhf completion words "$line" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 0 && $current == *=* ]]; then
        # a sweep's runs have a = in their names, at which bash's own completion of files begins anew
        while IFS= read -r word; do
            [[ -d $word ]] && word+=/
            COMPREPLY+=("${word#"$prefix"}")
        done < <(compgen -f -- "${current//\\/}")
    fi
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace
    [[ ${#COMPREPLY[@]} -eq 0 ]] && compopt -o default
}
complete -F _rlhf rlhf
"""

_ZSH = r"""
_rlhf() {
    local -a words_found
    words_found=("${(@f)$(rlhf completion words "${BUFFER[1,CURSOR]}" 2>/dev/null)}")
    if [[ ${#words_found} -gt 0 && -n "${words_found[1]}" ]]; then
        compadd -U -S '' -- $words_found
    else
        _files
    fi
}
compdef _rlhf rlhf
"""


def run(argv: list[str]) -> int:
    """Print a completion script, or the candidates for a line; returns the exit code.

    Raises UserError for another shell.
    """
    if argv[:1] == ["words"] and len(argv) == 2:
        from rlhf_cli.jobs.completion_words import candidates

        for word in candidates(argv[1], VERBS):  # nothing, not an empty line, leaves files to the shell
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
