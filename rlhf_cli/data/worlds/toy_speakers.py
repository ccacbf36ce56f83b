"""Generate the task of two speakers in one completion: `A and B:` wants `A: 4`, a line break, `B: 7`.

It is a small credit-assignment task: parts of one completion belong to different speakers, so a reward may go to the
tokens of one of them only (for example the one with the larger number).
"""

from __future__ import annotations

from random import Random

from rlhf_cli.data.worlds.draw import check_fraction, check_max_value, without_repeats

SPEAKERS = ("A", "B", "C", "D", "E", "F")
_SLOPPY = ("{a} {x} {b} {y}", "{a}: {x}, {b}: {y}", "{a}: {x}", "{a}={x}\n{b}={y}")


def generate(num_rows: int, seed: int, max_value: int = 9) -> list[dict[str, str | int]]:
    """Return rows of `prompt` ("A and B:"), `speaker_a`, `speaker_b` and `max_value`, the largest number allowed.

    Raise DataError for max_value < 1.
    """
    check_max_value(max_value)
    return [
        {"prompt": f"{a} and {b}:", "speaker_a": a, "speaker_b": b, "max_value": max_value}
        for a, b in _draw_speakers(num_rows, Random(seed))
    ]


def demonstrations(num_rows: int, seed: int, max_value: int = 9, sloppy_fraction: float = 0.5) -> list[dict[str, str]]:
    """Return rows of `prompt`, `completion` without an end-of-text token, with random numbers in 0..max_value.

    A share `sloppy_fraction` of the completions has a form that `rewards.toy.score_speakers` does not parse as two
    lines. Raise DataError for max_value < 1 and for a share outside [0, 1].
    """
    check_max_value(max_value)
    check_fraction("sloppy_fraction", sloppy_fraction)
    rng = Random(seed)
    style = Random(rng.getrandbits(64))
    rows = []
    for a, b in _draw_speakers(num_rows, rng):
        form = style.choice(_SLOPPY) if style.random() < sloppy_fraction else "{a}: {x}\n{b}: {y}"
        text = form.format(a=a, b=b, x=style.randint(0, max_value), y=style.randint(0, max_value))
        rows.append({"prompt": f"{a} and {b}:", "completion": text})
    return rows


def _draw_speakers(count: int, rng: Random) -> list[tuple[str, str]]:
    pairs = [(a, b) for a in SPEAKERS for b in SPEAKERS if a != b]
    return [pairs[index] for index in without_repeats(len(pairs), count, rng)]
