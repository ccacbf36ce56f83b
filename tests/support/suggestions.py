"""Type what a message suggests, and check that the problem is gone.

A hint is one thing to type, or several on lines or with `, or ` between them: a command, flags, overrides, a name that
replaces a misspelt one, or a line of YAML. Words in capitals are for the reader to fill in (VALUE, FILE), `...` is the
rest of a command, ` # ` begins a comment, as in a shell. Anything else is an `advice`.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlhf_cli import cli
from rlhf_cli.cli.options import usage_of
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import valid_keys
from rlhf_cli.errors import Problems, RlhfError, RunError, UserError
from rlhf_cli.plan import prepare as prepare_module

Judge = Callable[[list[str]], object]
"""Prepares the experiment that words describe; raises UserError."""

_COMMANDS = {
    **dict.fromkeys(
        ("pip", "hf", "wandb", "accelerate", "export", "unset", "ls", "cp", "mkdir", "mv", "rm", "scancel", "eval"), 6
    ),
    **dict.fromkeys(("cd", "python", "gunzip", "<", "tail", "iconv", "jq", "sed"), 20),
}
"""A command that is not ours -> how many words it has at most."""
_OVERRIDE = re.compile(r"^(\+{0,2}[A-Za-z_][\w./@+:-]*=.*|~[\w.]+)$", re.DOTALL)
_NAME = re.compile(r"^[\w.+:/@${}*~,|-]+$|^'[^']*'$")
_YAML = re.compile(r"^(- |- override )?[\w./@-]+: \S.*$")
_ENGLISH = re.compile(r"^[a-z]{2,}[,;:]?$")
_ENGLISH_BEHIND = re.compile(r": .* (in|under|if|it) ")
_PLACE = re.compile(r"(?<![A-Za-z])[A-Z][A-Z_]{2,}|\.\.\.")
"""A part that the reader fills in."""


_NO_VERBS = (["--help"], ["--version"], ["X"], ["cook"])
"""What may stand behind `rlhf` instead of a verb; `cook` is one that only tests of the grammar have."""


def alternatives(hint: str) -> list[str]:
    """Return the alternatives that a hint offers."""
    # As for a shell, what stands behind ` # ` is a comment.
    without = re.sub(r"\s+# .*$", "", hint, flags=re.MULTILINE) if not hint.startswith("#") else hint
    return [part.strip() for part in re.split(r",? or (?=\S)|\n", without) if part.strip()]


def is_typed(text: str) -> bool:
    """Whether one alternative can be typed, and is no sentence."""
    if text.startswith("# @package") or (_YAML.match(text) and not _ENGLISH_BEHIND.search(text)):
        return True
    if " && " in text:
        return all(map(is_typed, text.split(" && ")))
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    if not words:
        return False
    if words[0] == "rlhf":
        return _is_command(words[1:])
    if words[0] in _COMMANDS:
        return len(words) <= _COMMANDS[words[0]] and not any(re.search(r"[a-z][.,;]$", word) for word in words)
    if len(words) == 1 and _NAME.match(text):
        return True
    flags = [word.startswith("-") for word in words]
    is_value = [False, *flags][: len(words)]
    return all(
        flag or value or _OVERRIDE.match(word) or word in valid_keys([])  # `rlhf show +exp=NAME rewards`
        for word, flag, value in zip(words, flags, is_value, strict=True)
    )


def _is_command(words: Sequence[str]) -> bool:
    if words[:1] in _NO_VERBS:
        return True
    if not words or words[0] not in VERBS:
        return False
    usage = usage_of(words[0])
    flags = usage.flags
    if words[0] in _NEED_A_WORD and not any(not word.startswith("-") or word == "--help" for word in words[1:]):
        return False
    values = [name for name, following in itertools.pairwise([*words, "-"]) if following.startswith("-")]
    if any(name in flags and flags[name].metavar for name in values):
        return False  # a flag without its value
    # `rlhf eval mine --data FILE`: one bare name behind a verb that takes a run; two bare words are a sentence.
    takes_run = re.search(rf"^rlhf {words[0]} \[?(RUN|MODEL|SWEEP)\b", usage.text, re.MULTILINE) is not None
    is_name = takes_run and len(words) > 1 and not any(map(_ENGLISH.match, words[2:3]))
    of_list = words[0] in ("list", "schema")
    for place, (before, word) in enumerate(itertools.pairwise(words)):
        if word.startswith("-") and word.partition("=")[0] not in (*flags, "--help", "-m"):
            return False
        is_value = before in flags and bool(flags[before].metavar)
        if _ENGLISH.match(word) and not (of_list or is_value or word in _FOLDERS or (place == 0 and is_name)):
            return False
    return len(words) <= 4 if of_list else True


_FOLDERS = ("runs", "dpo", "sft")
_NEED_A_WORD = (
    *("train", "check", "show", "audit", "score", "resume", "join", "compare", "report", "why", "whatif"),
    *("eval", "generate", "verify", "reproduce", "export", "completion"),
)
"""Verbs that refuse a line without an experiment or a run."""


def prose(error: RlhfError) -> list[str]:
    """What an error says to type, and that cannot be typed."""
    return [text for text in alternatives(error.hint or "") if not is_typed(text)]


def problems_of(error: UserError) -> list[UserError]:
    return list(error.problems) if isinstance(error, Problems) else [error]


def useless(words: list[str], error: UserError, judge: Judge) -> Iterator[str]:
    """Yield what an error says to type and that, typed, leaves the same problem or is refused itself."""
    for problem in problems_of(error):
        for text in alternatives(problem.hint or ""):
            try:
                suggested = shlex.split(text)
            except ValueError:
                continue  # which is prose
            if _PLACE.search(text) or not suggested or suggested[0] in ("rlhf", *_COMMANDS) or "$" in text:
                continue
            tries = list(_typed(words, problem, suggested))
            if tries and not any(_helps(new, problem, suggested, judge) for new in tries):
                yield f"{' '.join(words)}: {text!r} leaves {problem.what!r}"


def _key(word: str) -> str:
    """The key that an override sets; of `reward@rewards.short=brevity` the section that it fills."""
    return word.lstrip("+~").partition("=")[0].rpartition("@")[2]


def _typed(words: list[str], problem: UserError, suggested: list[str]) -> Iterator[list[str]]:
    """Yield the command lines that follow a suggestion: added to the typed words, or instead of some of them."""
    wrong = str(problem.where).partition(" ")[0]
    got = str(problem.got)
    is_override = all(_OVERRIDE.match(word) for word in suggested)
    if is_override:
        keys = {_key(word) for word in suggested}
        rest = [word for word in words if _key(word) not in keys]
        yield [*rest, *suggested]
        whole = [word for text in suggested for word in text.split()]
        named = [word for word in rest if word == got or repr(word) in problem.what or word in whole]
        yield [*(word for word in rest if _key(word) != wrong and word not in named), *suggested]
        # a deletion removes a key of a file; a typed word is just left out
        yield [word for word in words if f"~{_key(word)}" not in suggested]
    elif len(suggested) == 1 and "(command line)" in str(problem.where):
        for number, word in enumerate(words):
            if _key(word) == wrong and not re.search(r"=[{\[]", word):
                yield [*words[:number], f"{suggested[0]}={word.partition('=')[2]}", *words[number + 1 :]]


def _helps(words: list[str], problem: UserError, suggested: list[str], judge: Judge) -> bool:
    try:
        judge(words)
    except UserError as error:
        left = problems_of(error)
    else:
        return True
    keys = {_key(word) for word in suggested}
    is_name = not all(_OVERRIDE.match(word) for word in suggested)
    same = [one for one in left if (one.what, one.where) == (problem.what, problem.where)]
    # A RunError is about runs, not about what was typed: a reward model has to be evaluated first, say.
    refused = [one for one in left if not isinstance(one, RunError)]
    refused = [one for one in refused if str(one.where).partition(" ")[0] in keys and one.where != problem.where]
    # The value that stood behind the misspelt name may be wrong as well.
    refused = [one for one in refused if not is_name or re.search("unknown|elsewhere|has no", one.what)]
    return not same and not refused


def lacks_something(problem: RlhfError, words: Sequence[str]) -> bool:
    """Whether a suggestion is a key alone although a value was typed behind the wrong one, or has a gap."""
    hint, place = str(problem.command), str(problem.where)
    if "..." in hint or "=VALUE" in hint:
        return True
    is_key = re.fullmatch(r"[a-z_]\w*(\.\w+)+", hint) is not None and place.endswith(" (command line)")
    return is_key and any(_key(word) == place.partition(" ")[0] and "=" in word for word in words)


WRONG: list[str] = []
"""What refusals suggested in the test that runs, and should not have."""
_typed_now: list[str] = []


def watch_refusals() -> None:
    """From now on hold every suggestion against what a hint may be, and type what a configuration is refused with."""
    made = RlhfError.__init__

    def init(self: RlhfError, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        WRONG.extend(f"no advice, and cannot be typed: {text!r}, of {self.what!r}" for text in prose(self))
        if _typed_now and self.hint == f"rlhf {shlex.join(_typed_now)}":
            WRONG.append(f"leads back to what failed: {self.hint!r}")

    refused = cli._refused

    def refused_noted(error: RlhfError) -> int:
        """What is printed behind `try:` leaves nothing to fill in, and gives a corrected key its value."""
        problems: Sequence[RlhfError] = error.problems if isinstance(error, Problems) else [error]
        told = [one for one in problems if one.command is not None]
        lacking = [one for one in told if lacks_something(one, _typed_now[1:])]
        WRONG.extend(f"cannot be typed as it stands: {one.hint!r}, of {one.what!r}" for one in lacking)
        return refused(error)

    run = cli._run

    def run_noted(verb: str, words: list[str]) -> int:
        _typed_now[:] = [verb, *words]
        try:
            return run(verb, words)
        finally:
            _typed_now.clear()

    compose, checked = prepare_module.compose, prepare_module._checked
    composed_last: list[tuple[Composed, list[str]]] = []

    def compose_watched(words: list[str], frozen: Any = None) -> Composed:
        if frozen is not None:
            return compose(words, frozen)
        try:
            composed = compose(words)
        except UserError as error:
            WRONG.extend(useless(words, error, compose))
            raise
        composed_last[:] = [(composed, words)]
        return composed

    def checked_watched(composed: Composed, adjust: Any, *, keep_run_names: bool) -> Any:
        try:
            return checked(composed, adjust, keep_run_names=keep_run_names)
        except UserError as error:
            if composed_last and composed_last[0][0] is composed:
                typed = composed_last[0][1]
                WRONG.extend(
                    useless(typed, error, lambda words: checked(compose(words), adjust, keep_run_names=keep_run_names))
                )
            raise

    cli._refused = refused_noted
    RlhfError.__init__ = init  # type: ignore[method-assign,assignment]
    cli._run = run_noted
    prepare_module.compose, prepare_module._checked = compose_watched, checked_watched
