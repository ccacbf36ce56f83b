"""Generate sums for a real language model, split so that no held-out question is in the training rows in any order."""

from __future__ import annotations

from random import Random

from rlhf_cli.data.worlds.toy_tasks import without_repeats
from rlhf_cli.errors import DataError

_LOWEST = 2
_HELD_OUT_SHARE = 0.15
_SPLIT_SEED = 20250207  # the split is the same for every seed of a run


def generate(num_rows: int, seed: int, max_value: int = 30, held_out: bool = False) -> list[dict[str, str]]:
    """Return rows of `question` ("17 + 5 =") and `answer` ("22"), both addends in 2..max_value.

    Of the unordered pairs of addends 15 % are held out, the same ones for every seed: `held_out` draws from these, else
    from the others. No question is repeated before all of its side were drawn.
    """
    if max_value <= _LOWEST:
        raise DataError("max_value too small", where="max_value", got=max_value, expected=f"{_LOWEST + 1} or more")
    addends = range(_LOWEST, max_value + 1)
    pairs = [(a, b) for a in addends for b in addends if a <= b]
    Random(_SPLIT_SEED).shuffle(pairs)
    count = max(1, round(_HELD_OUT_SHARE * len(pairs)))
    mine = pairs[:count] if held_out else pairs[count:]
    questions = sorted({question for a, b in mine for question in ((a, b), (b, a))})
    drawn = [questions[index] for index in without_repeats(len(questions), num_rows, Random(seed))]
    return [{"question": f"{a} + {b} =", "answer": str(a + b)} for a, b in drawn]
