"""Generate sums of two small numbers: `17+5=` wants `22` and then the end of the text.

It is a small verifiable task. A reward can distinguish right or wrong, concise or wordy, ended or rambling on.
"""

from __future__ import annotations

from random import Random

from rlhf_cli.data.worlds.draw import check_fraction, check_max_value, without_repeats

_WORDY = ("it is {}.", " = {} ok", "I think {}", "{} I guess")
_OFFSETS = (-10, -2, -1, 1, 2, 10)


def generate(num_rows: int, seed: int, max_value: int = 20) -> list[dict[str, str | int]]:
    """Return rows of `prompt` ("17+5="), `answer` ("22"), `a`, `b`; both addends in 0..max_value.

    No pair (a, b) is repeated before all (max_value + 1)^2 pairs were drawn.
    """
    return [
        {"prompt": f"{a}+{b}=", "answer": str(a + b), "a": a, "b": b}
        for a, b in draw_pairs(num_rows, max_value, Random(seed))
    ]


def demonstrations(
    num_rows: int, seed: int, max_value: int = 20, wrong_fraction: float = 0.35, wordy_fraction: float = 0.5
) -> list[dict[str, str]]:
    """Return rows of `prompt`, `completion` without an end-of-text token, for a warm start that leaves room to improve.

    Independently of each other, a share `wrong_fraction` is off by 1, 2 or 10 and a share `wordy_fraction` is wrapped
    in words (`it is 22.`) instead of bare digits.
    """
    check_fraction("wrong_fraction", wrong_fraction)
    check_fraction("wordy_fraction", wordy_fraction)
    rng = Random(seed)
    # A separate random stream, so that the pairs do not depend on the two shares.
    style = Random(rng.getrandbits(64))
    rows = []
    for a, b in draw_pairs(num_rows, max_value, rng):
        wrong, wordy = style.random() < wrong_fraction, style.random() < wordy_fraction
        number = near_miss(a + b, style) if wrong else a + b
        text = style.choice(_WORDY).format(number) if wordy else str(number)
        rows.append({"prompt": f"{a}+{b}=", "completion": text})
    return rows


def draw_pairs(count: int, max_value: int, rng: Random) -> list[tuple[int, int]]:
    """Return `count` pairs of addends, none repeated before all were drawn. Raise DataError for max_value < 1."""
    check_max_value(max_value)
    side = max_value + 1
    return [divmod(index, side) for index in without_repeats(side * side, count, rng)]


def near_miss(total: int, rng: Random) -> int:
    """Return a wrong answer near `total`, never negative."""
    return rng.choice([total + offset for offset in _OFFSETS if total + offset >= 0])
