"""Find what is wrong in the defaults lists of the chosen files: file, line and the corrected line.

It is imported only after something failed: Hydra says that a name was not found or not overridden, without a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from rlhf_cli.config.conf_folders import find, groups, shipped_dir
from rlhf_cli.config.origins import Origin
from rlhf_cli.errors import ConfigError
from rlhf_cli.tables.former_names import VALUE_SYNONYMS
from rlhf_cli.text.suggest import nearest
from rlhf_cli.text.yaml_loader import SAFE_LOADER

_SELF, _OVERRIDE, _DEFAULTS = "_self_", "override", "defaults"
_ENTRY = re.compile(r"(?P<word>\w+ +)?(?P<group>[\w./-]+)(?P<at>@[\w.]*)?\s*[:=]\s*(?P<option>[\w.-]+)")
Base = tuple[str, str]
"""The group and the name of a file that another builds on."""


def defaults_problems(overrides: list[str]) -> list[ConfigError]:
    """Return what is wrong in the defaults lists of the files that these overrides choose, and of those they name."""
    chosen = [text.lstrip("+").partition("=") for text in overrides]
    waiting, seen, problems = [(group.partition("@")[0], name) for group, _, name in chosen], set[Path](), []
    while waiting:
        group, name = waiting.pop(0)
        if (file := find(f"{group}/{name}")) is not None and file not in seen:
            seen.add(file)
            for found in _in_file(file, group):
                waiting.append(found) if isinstance(found, tuple) else problems.append(found)
    return problems


def _in_file(file: Path, group: str) -> Iterator[ConfigError | Base]:
    """Yield what is wrong in a file's defaults list, and the files that it builds on."""
    root = yaml.compose(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    found = next((pair for pair in pairs if nearest(str(pair[0].value), [_DEFAULTS])), None)
    if found is None:
        return
    key, value = found
    if key.value != _DEFAULTS or not isinstance(value, yaml.SequenceNode):
        inside = value.value if isinstance(value, yaml.MappingNode) else []
        lines = [_corrected(f"{one.value}: {option.value}", group)[1] for one, option in inside]
        lines = [*(lines or ["..." if isinstance(value.value, list) else value.value]), _SELF]
        yield ConfigError(
            "an experiment builds on a list called `defaults`",
            where=str(Origin(file, key.start_mark.line + 1)),
            got=f"{key.value}: {'keys' if inside else 'a list' if isinstance(value.value, list) else value.value}",
            hint="\n  - ".join([f"{_DEFAULTS}:", *lines]),
        )
        return
    first = 0
    for node in value.value:
        pair = node.value[0] if isinstance(node, yaml.MappingNode) else (node,)
        if not all(isinstance(one, yaml.ScalarNode) and one.value and not one.tag.endswith("null") for one in pair):
            if isinstance(pair[-1], yaml.MappingNode):
                what, where = "an entry of `defaults` names one option", str(Origin(file, node.start_mark.line + 1))
                yield ConfigError(what, where=where, got="a mapping", hint=f"- {pair[0].value}: NAME")
            continue  # no option, or several
        text, line = ": ".join(str(one.value) for one in pair), node.start_mark.line + 1
        what, meant, names = _corrected(text, group)
        if what:
            expected = "one of " + ", ".join(names) if names else None
            yield ConfigError(
                what, where=str(Origin(file, line)), got=f"- {text}", expected=expected, hint=f"- {meant}"
            )
        elif first and not text.startswith(_OVERRIDE) and text != _SELF:
            what, hint = "entries with `override` come last in `defaults`", f"move line {line} above line {first}"
            yield ConfigError(what, where=str(Origin(file, line)), got=f"- {text}", advice=hint)
        else:
            words = [str(one.value).partition("@")[0] for one in pair]
            above, _, name = "/".join(words).rpartition(" ")[2].strip("/").rpartition("/")
            yield above or group, name
            first = first or line * text.startswith(_OVERRIDE)


def _corrected(text: str, own: str) -> tuple[str, str, Sequence[str]]:
    """Return what is wrong with an entry ('' for nothing), the entry as it was meant, and the names it may have.

    `own` is the group of the file that has it.
    """
    known, match = groups(), _ENTRY.fullmatch(text)
    if match is None:
        return _corrected_base(text, own)
    group, at, option = match["group"].strip("/"), match["at"] or "", match["option"]
    if not match["group"].startswith("/") and f"{own}/{group}" in known:
        return "", text, ()
    is_override = nearest((match["word"] or "").strip(), [_OVERRIDE]) is not None
    what, names = "", list[str]()
    if group not in known:
        what, names = f"there is no group {group!r}", [*known]
        group = nearest(group, known) or "GROUP"
    elif option not in known[group]:
        what, names = f"there is no {group} named {option!r}", [*known[group]]
        option = VALUE_SYNONYMS.get(group, {}).get(option.lower()) or nearest(option, names) or "NAME"
    if group == own:
        return what or "an experiment builds on another by its name alone", option, names
    has_one = f"\n  - {group}:" in (shipped_dir() / "train.yaml").read_text(encoding="utf-8")
    if group == "reward" and not at.startswith("@rewards."):
        what, at = what or "a reward stands under `rewards`, with a name", f"@rewards.{at[1:] or option}"
    if has_one and not at and not is_override:
        what = what or f"there is a {group} already, so another one wants the word `override`"
    elif is_override and (at or not has_one):
        what = what or f"there is no {group}{at} to override"
    is_override = has_one and not at
    meant = f"{f'{_OVERRIDE} ' * is_override}/{group}{at}: {option}"
    if " ".join(text.removeprefix("optional").split()) != meant:
        what = what or "an entry of `defaults` reads `/GROUP: OPTION` or `override /GROUP: OPTION`"
    return what, meant, names


def _corrected_base(text: str, own: str) -> tuple[str, str, Sequence[str]]:
    """Return the same for an entry that is the name of a file, of the same group unless it begins with `/`."""
    known = groups()
    place, at, package = text.partition("@")
    above, _, name = place.strip("/").rpartition("/")
    group = above or own
    name = name.removesuffix(".yaml")
    if text == _SELF or "${" in text or " " in text or (name in known.get(group, ()) and (text[0] == "/" or not above)):
        return "", text, ()
    if nearest(text.strip("_"), ["self"]):
        return "the file's own keys are called `_self_`", _SELF, ()
    if name in known.get(group, ()):
        return "a group begins with `/`", f"/{text}", ()
    if holder := next((other for other in known if name in known[other]), None):
        return f"{name!r} is no {group}", _corrected(f"/{holder}: {name}", own)[1], [*known[group]]
    close = nearest(name, known.get(group, ())) or "NAME"
    return f"there is no {group} named {name!r}", close + at + package, [*known.get(group, ())]
