"""rlhf list [GROUP [NAME [WORD...]]]     what there is to choose from, and its documentation

rlhf list                          experiments, rewards, trainers, models, data: every group with its options
rlhf list reward                   the options of one group
rlhf list reward judge             what it scores, its arguments, a worked example, YAML to paste
rlhf list reward ./rewards.py:fn   the same for a function of yours; its source is read, not run
rlhf list trainer grpo             TRL's arguments with their defaults, and those set by another key here
rlhf list trainer grpo learning rate     the arguments with these words, with TRL's help
rlhf list exp quickstart           the file of an option: its description and its settings
rlhf list metrics kl               logged metrics and their meaning; those with these words
rlhf list keys rewards             keys of the configuration: those below a key, or with these words

--json   print all of it as JSON
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rlhf_cli.cli.output import print_json
from rlhf_cli.config.conf_folders import caption, groups
from rlhf_cli.display.reference_pages import show_groups, show_option
from rlhf_cli.display.terminal import wide_console
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.jobs.usage import read_options
from rlhf_cli.text.suggest import nearest

_FIRST = ("exp", "trainer", "reward", "data", "model")
_KEYS = "keys"
_METRICS = "metrics"
_Options = dict[str, Path]


def run(argv: list[str]) -> int:
    """Print the page of a group, option, metric or key, and return the exit code.

    Raises ConfigError for a group, an option or an argument that does not exist.
    """
    options = read_options(__doc__, argv, verb="list")
    words, is_json = options.words, options.as_json
    names = [*(name for name in _FIRST if name in groups()), *sorted(set(groups()) - set(_FIRST))]
    known = {name: groups()[name] for name in names}
    if not words:
        return _groups(known, "GROUP", is_json=is_json)
    group, names = _group(words[0], known), words[1:]
    if group == _KEYS:
        return _keys(names, is_json=is_json)
    if group == _METRICS:
        return _metrics(names, is_json=is_json)
    if group == "trainer" and names:
        return _trainer(names[0], names[1:], is_json=is_json)
    if len(names) > 1:
        raise ConfigError(
            f"a {group} is one word", got=" ".join(words), expected=f"rlhf list {group} NAME", where="rlhf list"
        )
    if not names:
        return _groups({group: known[group]}, group, is_json=is_json)
    if group == "reward":
        return _reward(names[0], is_json=is_json)
    return _option(group, names[0], known[group], is_json=is_json)


def _groups(known: dict[str, _Options], group: str, *, is_json: bool) -> int:
    if not is_json:
        show_groups(wide_console(), known, more=f"rlhf list {group} NAME describes one")
        return EXIT_OK
    return _as_json(
        {
            group: [{"name": name, "caption": caption(file), "file": str(file)} for name, file in options.items()]
            for group, options in known.items()
        }
    )


def _group(typed: str, known: dict[str, _Options]) -> str:
    """Return the group, also for `rewards` or `key`. Raises ConfigError for an unknown one."""
    names = [*known, _KEYS, _METRICS]
    for meant in (typed, typed.removesuffix("s"), f"{typed}s", *(["exp"] if typed.startswith("experiment") else [])):
        if meant in names:
            return meant
    close = nearest(typed, names)
    in_groups = [group for group, options in known.items() if typed in options]
    raise ConfigError(
        f"there is no group {typed!r}",
        where="rlhf list",
        expected="one of " + ", ".join(names),
        hint=f"rlhf list {in_groups[0]} {typed}" if in_groups else f"rlhf list {close}" if close else "rlhf list",
    )


def _reward(named: str, *, is_json: bool) -> int:
    from rlhf_cli.project.reference.reward_reference import reward_reference

    reward = reward_reference(named)
    if is_json:
        from rlhf_cli.project.reference.reference_json import reward_json

        return _as_json(reward_json(reward))
    from rlhf_cli.display.reference_pages import show_reward

    show_reward(wide_console(), reward)
    return EXIT_OK


def _trainer(option: str, words: list[str], *, is_json: bool) -> int:
    from rlhf_cli.project.reference.trainer_reference import about, trainer_reference

    trainer = trainer_reference(option)
    found = about(trainer.arguments, words)
    if not found:
        names = [argument.name for argument in trainer.arguments]
        close = nearest("_".join(words), names)
        raise ConfigError(
            f"no argument of {option} has {' and '.join(map(repr, words))} in its name or help",
            where="rlhf list trainer",
            hint=f"rlhf list trainer {option} {close}" if close else f"rlhf list trainer {option}",
        )
    if is_json:
        from rlhf_cli.project.reference.reference_json import trainer_json

        return _as_json(trainer_json(trainer, found if words else trainer.arguments))
    from rlhf_cli.display.reference_pages import show_arguments, show_trainer

    if words:
        show_arguments(wide_console(), found)
    else:
        show_trainer(wide_console(), trainer)
    return EXIT_OK


def _keys(words: list[str], *, is_json: bool) -> int:
    from rlhf_cli.project.reference.key_reference import about_keys

    found = about_keys(words)
    if is_json:
        from rlhf_cli.project.reference.reference_json import key_json

        return _as_json([key_json(key) for key in found])
    from rlhf_cli.display.reference_pages import show_keys

    show_keys(wide_console(), found)
    return EXIT_OK


def _metrics(words: list[str], *, is_json: bool) -> int:
    from rlhf_cli.project.reference.key_reference import metrics_about

    found = metrics_about(words)
    if is_json:
        return _as_json([asdict(one) for one in found])
    from rlhf_cli.display.reference_pages import show_metrics

    show_metrics(wide_console(), found)
    return EXIT_OK


def _option(group: str, named: str, options: _Options, *, is_json: bool) -> int:
    if named not in options:
        close = nearest(named, options)
        raise ConfigError(
            f"there is no {group} named {named!r}",
            where=f"rlhf list {group}",
            expected="one of " + ", ".join(sorted(options)),
            hint=f"rlhf list {group} {close}" if close else f"rlhf list {group}",
        )
    file = options[named]
    if is_json:
        text = file.read_text(encoding="utf-8")
        return _as_json({"group": group, "name": named, "caption": caption(file), "file": str(file), "text": text})
    show_option(wide_console(), group, named, file)
    return EXIT_OK


def _as_json(value: object) -> int:
    print_json(value)
    return EXIT_OK
