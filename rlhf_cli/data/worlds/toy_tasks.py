"""Generate the small tasks: sums, sums with held-out questions for a real model, and two speakers in one completion.

Sums are a small verifiable task. A reward can distinguish right or wrong, concise or wordy, ended or rambling on.

Speakers are a small credit-assignment task: parts of one completion belong to different speakers, so a reward may go to
the tokens of one of them only (for example the one with the larger number).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

from rlhf_cli.errors import DataError


def without_repeats(pool_size: int, count: int, rng: Random) -> Iterator[int]:
    """Yield `count` indices in [0, pool_size): one shuffle of the pool after another.

    A Fisher-Yates shuffle that stores only the places it moved, so a pool of 10^12 costs no more than `count`, and the
    first n draws do not depend on `count`.
    """
    moved: dict[int, int] = {}
    for drawn in range(count):
        position = drawn % pool_size
        if position == 0:
            moved.clear()
        pick = rng.randrange(position, pool_size)
        yield moved.get(pick, pick)
        moved[pick] = moved.get(position, position)


def check_bounds(key: str, value: float, least: float, most: float = math.inf) -> None:
    """Raise DataError unless an argument is between two bounds, inclusive."""
    if not least <= value <= most:
        expected = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise DataError(f"{key} is out of its range", where=key, got=value, expected=expected)


def generate(num_rows: int, seed: int, max_value: int = 20) -> list[dict[str, str | int]]:
    """Return rows of `prompt` ("17+5="), `answer` ("22"), `a`, `b`, up to `max_value`; all pairs before a repeat."""
    pairs = draw_pairs(num_rows, max_value, Random(seed))
    return [{"prompt": f"{a}+{b}=", "answer": str(a + b), "a": a, "b": b} for a, b in pairs]


def demonstrations(
    num_rows: int, seed: int, max_value: int = 20, wrong_fraction: float = 0.35, wordy_fraction: float = 0.5
) -> list[dict[str, str]]:
    """Return rows of `prompt`, `completion` without an end-of-text token, for a warm start that leaves room to improve.

    Independently of each other, a share `wrong_fraction` is off by 1, 2 or 10 and a share `wordy_fraction` is wrapped
    in words (`it is 22.`) instead of bare digits.
    """
    check_bounds("wrong_fraction", wrong_fraction, 0, 1)
    check_bounds("wordy_fraction", wordy_fraction, 0, 1)
    rng = Random(seed)
    # A separate random stream, so that the pairs do not depend on the two shares.
    style = Random(rng.getrandbits(64))
    rows = []
    for a, b in draw_pairs(num_rows, max_value, rng):
        wrong, wordy = style.random() < wrong_fraction, style.random() < wordy_fraction
        number = near_miss(a + b, style) if wrong else a + b
        form = style.choice(("it is {}.", " = {} ok", "I think {}", "{} I guess")) if wordy else "{}"
        rows.append({"prompt": f"{a}+{b}=", "completion": form.format(number)})
    return rows


def call_demonstrations(
    num_rows: int, seed: int, max_value: int = 99, call_fraction: float = 0.2
) -> list[dict[str, str]]:
    """Return rows of `prompt`, `completion` in the template of models/tiny.py, for a model that seldom calls `add`.

    Half of the rows answer a question: a share `call_fraction` by a call, the others by any number. The other half
    reads the result of a call.
    """
    check_bounds("call_fraction", call_fraction, 0, 1)
    rng = Random(seed)
    style = Random(rng.getrandbits(64))
    rows = []
    for a, b in draw_pairs(num_rows, max_value, rng):
        asked, call = f"user: {a}+{b}=\nassistant: ", f"[add a={a};b={b}]"
        if style.random() < 0.5:
            rows.append({"prompt": f"{asked}{call}<eos>\ntool: {a + b}\nassistant: ", "completion": str(a + b)})
        else:
            calls = style.random() < call_fraction
            rows.append({"prompt": asked, "completion": call if calls else str(style.randint(0, 2 * max_value))})
    return rows


def draw_pairs(count: int, max_value: int, rng: Random) -> list[tuple[int, int]]:
    """Return `count` pairs of addends, none repeated before all were drawn. Raise DataError for max_value < 1."""
    check_bounds("max_value", max_value, 1)
    side = max_value + 1
    return [divmod(index, side) for index in without_repeats(side * side, count, rng)]


def near_miss(total: int, rng: Random) -> int:
    """Return a wrong answer near `total`, never negative."""
    return rng.choice([total + offset for offset in (-10, -2, -1, 1, 2, 10) if total + offset >= 0])


SPEAKERS = ("A", "B", "C", "D", "E", "F")
_SLOPPY = ("{a} {x} {b} {y}", "{a}: {x}, {b}: {y}", "{a}: {x}", "{a}={x}\n{b}={y}")


def generate_speakers(num_rows: int, seed: int, max_value: int = 9) -> list[dict[str, str | int]]:
    """Return rows of `prompt` ("A and B:"), `speaker_a`, `speaker_b` and `max_value`, the largest number allowed."""
    pairs = _draw_speakers(num_rows, max_value, Random(seed))
    return [{"prompt": f"{a} and {b}:", "speaker_a": a, "speaker_b": b, "max_value": max_value} for a, b in pairs]


def speaker_demonstrations(
    num_rows: int, seed: int, max_value: int = 9, sloppy_fraction: float = 0.5
) -> list[dict[str, str]]:
    """Return rows of `prompt`, `completion` (no end-of-text); a share `sloppy_fraction` does not parse as two lines."""
    check_bounds("sloppy_fraction", sloppy_fraction, 0, 1)
    rng = Random(seed)
    style = Random(rng.getrandbits(64))
    rows = []
    for a, b in _draw_speakers(num_rows, max_value, rng):
        form = style.choice(_SLOPPY) if style.random() < sloppy_fraction else "{a}: {x}\n{b}: {y}"
        text = form.format(a=a, b=b, x=style.randint(0, max_value), y=style.randint(0, max_value))
        rows.append({"prompt": f"{a} and {b}:", "completion": text})
    return rows


def _draw_speakers(count: int, max_value: int, rng: Random) -> list[tuple[str, str]]:
    check_bounds("max_value", max_value, 1)
    pairs = [(a, b) for a in SPEAKERS for b in SPEAKERS if a != b]
    return [pairs[index] for index in without_repeats(len(pairs), count, rng)]


_LOWEST = 2
_HELD_OUT_SHARE = 0.15
_SPLIT_SEED = 20250207  # the split is the same for every seed of a run


def generate_split(num_rows: int, seed: int, max_value: int = 30, held_out: bool = False) -> list[dict[str, str]]:
    """Return rows of `question` ("17 + 5 =") and `answer` ("22"), both addends in 2..max_value.

    Of the unordered pairs of addends 15 % are held out, the same ones for every seed: `held_out` draws from these, else
    from the others. No question is repeated before all of its side were drawn.
    """
    check_bounds("max_value", max_value, _LOWEST + 1)
    addends = range(_LOWEST, max_value + 1)
    pairs = [(a, b) for a in addends for b in addends if a <= b]
    Random(_SPLIT_SEED).shuffle(pairs)
    count = max(1, round(_HELD_OUT_SHARE * len(pairs)))
    mine = pairs[:count] if held_out else pairs[count:]
    questions = sorted({question for a, b in mine for question in ((a, b), (b, a))})
    drawn = [questions[index] for index in without_repeats(len(questions), num_rows, Random(seed))]
    return [{"question": f"{a} + {b} =", "answer": str(a + b)} for a, b in drawn]
