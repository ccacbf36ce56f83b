"""rlhf completion bash|zsh             a completion script: verbs, flags, keys, values, metrics, runs, files by Tab

In ~/.bashrc:  eval "$(rlhf completion bash)"
In ~/.zshrc:   eval "$(rlhf completion zsh)"
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlhf_cli.cli.options import Options, read_options, usage_of
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.errors import EXIT_OK, UserError
from rlhf_cli.project.function_source import functions_in, read_function
from rlhf_cli.project.key_reference import ANY_NAME, key_reference, keys_below, trainer_arguments
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import SWEEP, names_a_run, runs_below
from rlhf_cli.text.json_values import JsonTree, leaves, section

# bash breaks words at = and :, so only what follows is printed.
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
complete -F _rlhf rlhf
"""

_ZSH = r"""
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
_rlhf() {
    local -a found begun whole
    local word="${IPREFIX}${PREFIX}"
    [[ -n ${compstate[quote]} ]] && word="${(q)word}"
    found=("${(@f)$(${~words[1]} completion words "${(j: :)words[1,CURRENT-1]} $word" 2>/dev/null)}")
    for word in $found; do
        [[ -n $word ]] || continue
        if [[ $word == *[=./:] ]]; then begun+=("$word"); else whole+=("$word"); fi
    done
    (( ${#begun} )) && compadd -U -S '' -- $begun
    (( ${#whole} )) && compadd -U -- $whole
}
compdef _rlhf rlhf
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH}


def run(options: Options) -> int:
    """Print a completion script, or the completions of a line, and return the exit code."""
    argv = options.argv
    if argv[:1] == ["words"] and len(argv) in (2, 3):
        words, quoted_from = _typed_words(argv[1])
        found, breaks = candidates(words), set(argv[2] if len(argv) == 3 else "") - {" ", "\t", "\n"}
        last = max((place for place, sign in enumerate(words[-1], 1) if sign in breaks), default=0)
        if quoted_from is not None and len(found) == 1 and found[0].endswith(("=", ".", "/", ":")):
            found.append(f"{found[0]}…")  # behind a single word bash would close the quote
        for word in found:
            is_bare = quoted_from is None and breaks
            print(_BARE.sub(r"\\\g<0>", word[last:]) if is_bare else word[quoted_from:])
        return EXIT_OK
    if len(argv) != 1 or argv[0] not in _SCRIPTS:
        what, expected = "a completion script for which shell?", "bash or zsh"
        raise UserError(what, got=" ".join(argv) or "nothing", expected=expected, hint='eval "$(rlhf completion bash)"')
    print(_SCRIPTS[argv[0]].strip())
    return EXIT_OK


def _typed_words(line: str) -> tuple[list[str], int | None]:
    """Return the words of a line as the shell reads them, and where in the last one an open quote begins, or None."""
    for quote in ("", "'", '"'):
        with contextlib.suppress(ValueError):  # another quote is open
            *words, last = shlex.split(f"{line}.{quote}")
            return [*words, last[:-1]], len(last) - 1 - len(line.rpartition(quote)[2]) if quote else None
    raise AssertionError(line)


_BARE = re.compile(r"[ '\"\\$`&;|<>()*?\[\]]")
"""What bash reads as more than itself in a word; zsh quotes what is added."""
_OF_RUNS = re.compile(r"\b(RUN|SWEEP|FOLDER|MODEL)\b")
_HOLDS_PATH = ("path", "model", "tokenizer", "init", "root", "accelerate_config")
"""Last parts of keys whose value may be a path or `run:NAME`."""
_LAST_RUNS, _LAST_EVENTS = 10, 20
_HOLDS_FUNCTION = ("fn", "class", "aggregate")
_ARGS = "trainer.args"


def candidates(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of `words`, whose first is the program's name."""
    current = words[-1]
    if len(words) == 2 or (len(words) == 3 and words[1] == "help"):
        found: Iterable[str] = [*VERBS, "--help", "--help-all", "--version"]
    else:
        found = _of_verb(words[1], current, list(words[2:-1])) if words[1] in VERBS else []
    fitting = sorted(word for word in dict.fromkeys(found) if word.startswith(current))
    return [word for word in fitting if current.startswith("-") or not word.startswith("-")]


def _of_verb(verb: str, current: str, earlier: list[str]) -> Iterable[str]:
    usage = usage_of(verb)
    before = usage.flags.get(earlier[-1]) if earlier else None
    if before is not None and before.metavar:
        if before.metavar in ("METRIC", "A,B"):
            typed_before = current[: current.rfind(",") + 1] or "-" * current.startswith("-")
            return [typed_before + metric for metric in _metrics(earlier)]
        if before.metavar == "REWARD":
            return section(_tree_of(earlier), "rewards")
        if before.metavar == "KEY":
            return [key.rstrip("=") for key in _overrides(current, earlier)]
        return _runs(current) if before.metavar == "RUN" else _paths(current, before.ending) if before.is_path else []
    if current.startswith("-"):
        return [*usage.flags, "--help"]
    typed = list[str]()
    with contextlib.suppress(UserError):
        typed = read_options(usage, earlier).words
    if verb == "list":
        return _listed(typed, current)
    head = usage.text.partition("\n\n")[0]
    fixed = {"completion": [*_SCRIPTS], "schema": [*groups()], "init": _paths(current, "/")}
    found = fixed[verb] if verb in fixed else _runs(current) if _OF_RUNS.search(head) else []
    if any(sign in head for sign in ("+exp=", "overrides", "key=value")):
        found += _overrides(current, earlier)
    elif typed and "..." not in head:  # it takes one word
        return []
    return [word for word in found if verb != "resume" or not word.startswith("run:")]


def _listed(earlier: Sequence[str], current: str) -> Iterable[str]:
    """Return what may follow `rlhf list`, given its earlier words."""
    match earlier:
        case []:
            return [*groups(), "keys", "metrics"]
        case ["reward"]:
            return [*groups()["reward"], *(_functions(current) if current.startswith((".", "/")) else [])]
        case ["trainer", trainer]:
            return _arguments([f"trainer={trainer}"])
        case [group]:
            return groups().get(group, {})
    return []


def _runs(typed: str) -> list[str]:
    """Return `run:EXPERIMENT` and `run:EXPERIMENT/` for every folder of runs, after the `/` its runs; and the folders
    that hold runs.
    """
    if typed.startswith("run:"):
        experiment, slash, _ = typed.removeprefix("run:").partition("/")
        found = [*Path("runs").glob(f"{experiment}*/*/config.yaml"), *Path("runs").glob(f"{experiment}*/*/{SWEEP}")]
        runs = [place.parts[1:3] for place in sorted(found)]
        if slash:
            return [f"run:{name}/{run}" for name, run in runs]
        return [f"run:{name}{end}" for name in dict.fromkeys(name for name, _ in runs) for end in ("", "/")]
    folders = [path for path in _paths(typed, "/") if runs_below(Path(path).expanduser())]
    is_run = [Path(path, "config.yaml").expanduser().is_file() for path in folders]
    return [path.rstrip("/") if whole else path for path, whole in zip(folders, is_run, strict=True)] + ["run:"]


def _paths(typed: str, ending: str = "") -> list[str]:
    """Return the folders, and the files with this ending, that begin with what was typed."""
    whole = os.path.expanduser(typed)
    found = [path + "/" * os.path.isdir(path) for path in glob.glob(f"{glob.escape(whole)}*")]
    return [typed + path[len(whole) :] for path in found if path.endswith(("/", ending))]


def _metrics(words: Sequence[str]) -> list[str]:
    """Return the rewards of the run or experiment that words name, and the metrics of the newest run with a log."""
    runs = [run for word in words for run in runs_below(_folder_of(word))] or runs_below(Path("runs"))
    logged = list[str]()
    for run in sorted(runs, key=lambda run: run.config.stat().st_mtime, reverse=True)[:_LAST_RUNS]:
        with contextlib.suppress(UserError):
            if logged := [name for event in read_metrics(run.metrics)[-_LAST_EVENTS:] for name in event]:
                break
    shorter = {"total": "reward", "length": "completions/mean_length"}
    short = [name for name, metric in shorter.items() if metric in logged]
    of_rewards = [name.split("/")[1] for name in logged if re.fullmatch("rewards/[^/]+/mean", name)]
    return [*section(_tree_of(words), "rewards"), *short, *of_rewards, *logged]


def _folder_of(word: str) -> Path:
    return Path("runs", word.removeprefix("run:")) if word.startswith("run:") else Path(word).expanduser()


def _tree_of(words: Sequence[str]) -> JsonTree:
    """Return the configuration of the run, or of the options of groups, that words name."""
    from rlhf_cli.config.compose import compose  # imports Hydra, 0.2 s

    for word in filter(names_a_run, words):
        with contextlib.suppress(UserError):
            if runs := runs_below(_folder_of(word)):
                return runs[-1].read_config()
    known = groups()
    chosen = [re.sub(",.*", "", word) for word in words if re.split("[@=]", word.lstrip("+"))[0] in known]
    with contextlib.suppress(UserError):
        return compose(chosen).tree
    return {}


def _arguments(words: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return argument -> its values, () if any, below `trainer.args`."""
    arguments = trainer_arguments(section(_tree_of(words), "trainer"))
    free = (argument for argument in arguments if argument.home is None)
    return {argument.name: argument.choices or ("true", "false") * ("bool" in argument.type) for argument in free}


def _of_function(section_key: str, words: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return argument -> its values, () if any, of the function that `fn` of a section names."""
    from rlhf_cli.project.reward_reference import function_arguments  # imports pydantic, 0.2 s

    values = dict(leaves(_tree_of(words)))
    values |= {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
    with contextlib.suppress(UserError):
        arguments, _ = function_arguments(read_function(str(values.get(f"{section_key}.fn"))), {})
        return {one.name: one.choices or ("true", "false") * (one.type == "bool") for one in arguments}
    return {}


def _overrides(current: str, earlier: list[str]) -> list[str]:
    """Return the options of a group, the values of a key, or the keys one level below: `launch.slurm.`, `seed=`."""
    key, equals, value = current.partition("=")
    plain = key.lstrip("+~")
    if equals:
        before = value[: value.rfind(",") + 1]  # of a sweep
        values = _values(plain, value[len(before) :], earlier)
        return [f"{key}={before}{choice}" for choice in values if choice not in before.split(",")]
    sign, parent = key.removesuffix(plain), plain.rpartition(".")[0]
    if plain.startswith("reward@"):
        return [f"{sign}reward@rewards.{name}=" for name in groups().get("reward", {})]
    if parent == _ARGS:
        return [f"{sign}{parent}.{name}=" for name in _arguments(earlier)]
    if parent.endswith(".args"):
        return [f"{sign}{parent}.{name}=" for name in _of_function(parent.removesuffix(".args"), earlier)]
    found: dict[str, str] = {}
    reference = key_reference(parent) if parent else None
    if reference is not None and ANY_NAME in reference.holds:
        # Names of the user's own: rewards, tools, evaluation sets.
        branches = [key for key, node in leaves(_tree_of(earlier)) if isinstance(node, dict)]
        found = {key: "." for key in branches if key.rpartition(".")[0] == parent}
    found |= {known.key: "." if known.is_branch else "=" for known in keys_below(parent)}
    names = [f"{sign}{key}{end}" for key, end in found.items()]
    if "." not in plain:
        names += [f"{sign or '+' * (not current and group in APPENDED_GROUPS)}{group}=" for group in groups()]
    return names


def _values(key: str, typed: str, earlier: list[str]) -> Iterable[str]:
    parent, _, name = key.rpartition(".")
    if (group := key.partition("@")[0]) in groups():
        return groups()[group]
    if parent == _ARGS:
        return _arguments(earlier).get(name, ())
    if parent.endswith(".args"):
        return _of_function(parent.removesuffix(".args"), earlier).get(name, ())
    if name == "by":
        return section(_tree_of(earlier), "rewards")
    reference = key_reference(key)
    found = list(reference.values if reference is not None else ())
    if name in _HOLDS_FUNCTION:
        found += _functions(typed)
    return found + ([*_runs(typed), *_paths(typed)] if name in _HOLDS_PATH else [])


def _functions(typed: str) -> list[str]:
    """Return `FILE:FUNCTION` for every function of the files that begin with what was typed."""
    found = list[str]()
    for file in [typed.partition(":")[0]] if ":" in typed else glob.glob(f"{glob.escape(typed or './')}*.py"):
        with contextlib.suppress(UserError):
            found += [f"{file}:{function}" for function in functions_in(file)]
    return found
