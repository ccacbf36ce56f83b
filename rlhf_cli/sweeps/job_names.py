"""Name the jobs of a sweep by their differences: `weight=0.5,seed=2`. The name is used as folder, row and label."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

_MOST_OF_A_VALUE = 32
_MOST_OF_A_NAME = 120
"""Folder names may have 255 bytes; names longer than this are unreadable."""
_HASH = 6
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_EXPONENT = re.compile(r"(\d)e([+-])0+(\d)")


def names_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a name for each job: its values, under the shortest unambiguous suffixes of their keys.

    Names are unique and valid as folder names. Characters that are unsafe in a shell or file system become `-`. A value
    that is long, or equal to another one after that, ends in a hash.
    """
    keys = list(rows[0]) if rows else []
    short = short_keys(keys)
    cells = {key: _cells([row[key] for row in rows]) for key in keys}
    names = [",".join(f"{short[key]}={cells[key][row[key]]}" for key in keys) for row in rows]
    return [name if len(name) <= _MOST_OF_A_NAME else f"{name[:_MOST_OF_A_NAME]}~{_hash(name)}" for name in names]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return key -> its shortest suffix that no other key has: `weight`, or `brevity.weight` next to another weight.

    For a group with a package, `reward@rewards.x`, the package is used.
    """
    parts = {key: tuple(_UNSAFE.sub("-", key.rpartition("@")[2]).split(".")) for key in keys}
    short = {}
    for key, own in parts.items():
        others = [other for name, other in parts.items() if name != key]
        ends = (own[-length:] for length in range(1, len(own) + 1))
        end = next((end for end in ends if not any(other[-len(end) :] == end for other in others)), None)
        short[key] = ".".join(end) if end is not None else _UNSAFE.sub("-", key)
    return short


def _cells(values: Sequence[str]) -> dict[str, str]:
    """Return value -> its text in a name. Different values have different texts."""
    plain = {value: _plain(value) for value in values}
    several = [text for text in plain.values() if list(plain.values()).count(text) > 1]
    return {
        value: _shortened(value, text) if text in several or len(text) > _MOST_OF_A_VALUE else text
        for value, text in plain.items()
    }


def _plain(value: str) -> str:
    text = _UNSAFE.sub("-", _EXPONENT.sub(r"\1e\2\3", value)).strip("-") if not _is_number(value) else _number(value)
    return text or "empty"


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _number(value: str) -> str:
    """Return a number as a user would type it: 1e-5, not Python's 1e-05."""
    return _EXPONENT.sub(r"\1e\2\3", value)


def _shortened(value: str, text: str) -> str:
    """Return the end of a value, which is the most telling part of a path, with a hash that makes it unique."""
    return f"{text[-(_MOST_OF_A_VALUE - _HASH - 1) :].lstrip('-.')}~{_hash(value)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH]
