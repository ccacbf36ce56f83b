"""Suggest the valid name nearest to a mistyped one, or None: a wrong suggestion is worse than none.

People leave a letter out, double one, swap two or hit a neighbouring key. The distance is the number of such slips,
where a swap counts as one: the restricted Damerau-Levenshtein distance. Damerau (1964, doi 10.1145/363958.363994) found
that four of five misspellings are a single slip. difflib measures what two words share: it prefers `reported` to
`report` for `reporr`, and takes `max_completion_length` for `max_prompt_length`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def nearest(typed: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that `typed` was most likely meant to be, or None if all are too different.

    Of equally near names, the one with the typed letters in order wins, then one with the same first letter.
    """
    ranked = [(rank, place, name) for place, name in enumerate(valid) if (rank := likeness(typed, name)) is not None]
    return min(ranked)[2] if ranked else None


def likeness(typed: str, name: str) -> tuple[int, int, int] | None:
    """Return a name's distance, None if unrelated: few slips rank before a common start, that before the same words."""
    ours, theirs = _plain(typed), _plain(name)
    if not ours or not theirs:
        return None
    unlike = 2 * (not _holds(theirs, ours) and not _holds(ours, theirs)) + (ours[0] != theirs[0])
    allowed = min(3, max(len(ours) // 3, int(len(ours) > 1)))  # slips: for a third of its letters; 1 for two letters
    if abs(len(ours) - len(theirs)) <= allowed and (distance := slips(ours, theirs)) <= allowed:
        return 0, distance, unlike
    if len(ours) >= 3 and (theirs.startswith(ours) or (len(theirs) >= 4 and ours.startswith(theirs + "_"))):
        return 1, abs(len(theirs) - len(ours)), 0
    typed_words, words = _words(ours), _words(theirs)
    if len(typed_words) >= 2 and typed_words <= words:
        return 2, len(words - typed_words), unlike
    return None


def slips(word: str, other: str) -> int:
    """Return the restricted Damerau-Levenshtein distance: letters added, left out, replaced or swapped."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(word, start=1):
        current = [row]
        for column, theirs in enumerate(other, start=1):
            cost = min(above[column] + 1, current[-1] + 1, above[column - 1] + (letter != theirs))
            if row > 1 and column > 1 and letter == other[column - 2] and word[row - 2] == theirs:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, above = above, current
    return above[-1]


def _holds(name: str, letters: str) -> bool:
    """Return whether a name contains all letters in this order, possibly with others in between."""
    left = iter(name)
    return all(letter in left for letter in letters)


def _plain(name: str) -> str:
    """Normalise a name for comparison: lowercase, underscores as separators, no leading `-`, `+` or `~`."""
    return re.sub(r"[-\s]", "_", name.lower().lstrip("-+~"))


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[_./]+", name.strip("_./")))
