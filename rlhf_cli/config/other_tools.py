"""Answer keys that this schema does not have: misspelt ones, and those of other tools.

docs/reference/coming-from.md says what the keys of TRL, verl and OpenRLHF are called here.
"""

from __future__ import annotations

import re
from functools import cache

from rlhf_cli.config import trl_args
from rlhf_cli.config.conf_folders import groups, shipped_page
from rlhf_cli.config.schema.experiment import field_at, section_at
from rlhf_cli.config.suggestions import KnownKeys, accepts, meant_key
from rlhf_cli.tables.former_names import VALUE_SYNONYMS
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import leaves

_ROW, _NAMES = re.compile(r"\| (`.+?) \| (.+) \|"), re.compile(r"`([^`]+)`")
_TYPED = re.compile(r"[\w.]+(=\S+)?")
_STAGE_3 = re.compile(r"(?i)(z|zero|stage)\D{0,3}3|^3$")


@cache
def names_here() -> dict[str, str]:
    """Return key of another tool -> what the page says; of a row with as many names on both sides, its own name."""
    found: dict[str, str] = {}
    for row in _ROW.finditer(shipped_page("coming-from.md")):
        theirs, ours = _NAMES.findall(row[1]), row[2].replace("`", "")
        parts = _NAMES.findall(row[2]) if not _NAMES.sub("", row[2]).strip(", ") else []
        each = parts if len(parts) == len(theirs) else [ours] * len(theirs)
        found |= {name.removeprefix("--"): text for name, text in zip(theirs, each, strict=True)}
    return found


def _said_of(key: str) -> str | None:
    """Return what the page says of a key, or of TRL's name at its end; None if nothing."""
    return names_here().get(key) or names_here().get(key.rpartition(".")[2])


def answer(key: str, node: object, known: KnownKeys, trainer: str) -> tuple[str | None, str | None]:
    """Return what to type instead of an unknown key that holds `node`, and what else there is to say.

    Of a section of another tool each value is answered.
    """
    whole = key
    while isinstance(node, dict) and len(node) == 1:
        name, node = next(iter(node.items()))
        whole = f"{whole}.{name}"
    near = meant_key(key, known)
    if isinstance(node, dict) and (near is None or section_at(near.split(".")) is None):
        values = [leaf for leaf, value in leaves(node, whole) if not isinstance(value, dict)]
        found = {leaf: _said_of(leaf) or meant_key(leaf, known) for leaf in values}
        named = [f"{leaf}: {said}" for leaf, said in found.items() if said]
        return None, "\n".join(named) or None
    said, meant = _said_of(whole), meant_key(whole, known) or near
    if said is not None and not _TYPED.fullmatch(said):
        return fitted(meant, key, node, trainer) if meant and meant.partition("=")[0] in said else None, said
    is_precise = said is None or (meant or "").startswith(f"{said}=")
    return fitted(meant if is_precise else said, key, node, trainer), None


def fitted(hint: str | None, key: str, value: object, trainer: str) -> str | None:
    """Return a hint that fits the typed value.

    The key gets `=VALUE` if it cannot hold that value, and a switch that is off is removed with `~`. Return None if the
    hint is a section, because a section holds no value.
    """
    if hint is None or isinstance(value, dict | list):
        return hint
    if "=" in hint:
        at_stage_3 = hint.replace("zero2", "zero3") if _STAGE_3.search(str(value)) else hint
        return f"'~{key}'" if value is False or value is None else at_stage_3
    path = hint.split(".")
    value = VALUE_SYNONYMS.get(path[-1], {}).get(str(value).lower(), value)
    if section_at(path) is not None:
        return hint if path[0] == "rewards" or value in groups().get(hint, ()) else None
    if path[:2] == ["trainer", "args"] and trainer in TRAINERS:
        argument = trl_args.fields_of(trainer).get(path[-1])
        is_taken = argument is None or trl_args.expected_instead(argument, value) is None
    else:
        field = field_at(path)
        is_taken = field is None or accepts(field, value)
    return hint if is_taken else f"{hint}=VALUE"
