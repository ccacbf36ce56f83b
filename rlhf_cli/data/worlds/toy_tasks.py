"""Generate the small tasks, and preferences and single judgements over answers to sums; give real pairs of dialogues.

Sums are a small verifiable task: a reward can distinguish right or wrong, concise or wordy, ended or rambling on.
Speakers are a small credit-assignment task: parts of one completion belong to different speakers, so a reward may go to
the tokens of one of them only (for example the one with the larger number).

A reward model learns from (chosen, rejected); `true_score` is what it should learn. A policy trained on the reward
model is over-optimised if the learnt reward still rises while the true one falls. A thumb up or down is cheaper to
collect than a comparison; its label still comes from one: an answer is good if it was the better one of its pair.

The dialogues are the short ones of Anthropic's harmless-base (scripts/hh_pairs.py, MIT licence; Bai et al. 2022, arXiv
2204.05862). They are about harm, and some are offensive.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
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
    """Return rows of `prompt` ("17+5="), `answer` ("22"), `a`, `b`; both addends in 0..max_value.

    No pair (a, b) is repeated before all (max_value + 1)^2 pairs were drawn.
    """
    pairs = draw_pairs(num_rows, max_value, Random(seed))
    return [{"prompt": f"{a}+{b}=", "answer": str(a + b), "a": a, "b": b} for a, b in pairs]


def demonstrations(
    num_rows: int, seed: int, max_value: int = 20, wrong_fraction: float = 0.35, wordy_fraction: float = 0.5
) -> list[dict[str, str]]:
    """Return rows of `prompt`, `completion` without an end-of-text token, for a warm start that leaves room to improve.

    Independently, a share `wrong_fraction` is off by 1, 2 or 10, and a share `wordy_fraction` has words (`it is 22.`).
    """
    check_bounds("wrong_fraction", wrong_fraction, 0, 1)
    check_bounds("wordy_fraction", wordy_fraction, 0, 1)
    rng, style = _streams(seed)
    rows = []
    for a, b in draw_pairs(num_rows, max_value, rng):
        wrong, wordy = style.random() < wrong_fraction, style.random() < wordy_fraction
        number = near_miss(a + b, style) if wrong else a + b
        form = style.choice(("it is {}.", " = {} ok", "I think {}", "{} I guess")) if wordy else "{}"
        rows.append({"prompt": f"{a}+{b}=", "completion": form.format(number)})
    return rows


def call_demonstrations(num_rows: int, seed: int) -> list[dict[str, str]]:
    """Return rows of `prompt`, `completion` in the template of models/tiny.py, for a model that seldom calls `add`.

    Half of the rows answer, a fifth of them by a call, others by any number; half read the result of a call.
    """
    rng, style = _streams(seed)
    rows, most = [], 99
    for a, b in draw_pairs(num_rows, most, rng):
        asked, call = f"user: {a}+{b}=\nassistant: ", f"[add a={a};b={b}]"
        if style.random() < 0.5:
            rows.append({"prompt": f"{asked}{call}<eos>\ntool: {a + b}\nassistant: ", "completion": str(a + b)})
        else:
            calls = style.random() < 0.2
            rows.append({"prompt": asked, "completion": call if calls else str(style.randint(0, 2 * most))})
    return rows


def _streams(seed: int) -> tuple[Random, Random]:
    """Return the random numbers of the questions, and others for the answers, on which the questions do not depend."""
    rng = Random(seed)
    return rng, Random(rng.getrandbits(64))


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


def speaker_demonstrations(num_rows: int, seed: int) -> list[dict[str, str]]:
    """Return rows of `prompt`, `completion` (no end-of-text) with digits; half of them do not parse as two lines."""
    rng, style = _streams(seed)
    rows = []
    for a, b in _draw_speakers(num_rows, 9, rng):
        form = style.choice(_SLOPPY) if style.random() < 0.5 else "{a}: {x}\n{b}: {y}"
        text = form.format(a=a, b=b, x=style.randint(0, 9), y=style.randint(0, 9))
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


_SHORT = ("it is {}.", "I think {}", "the sum is {}")
_LONG = ("well, if I add the two then I think I get {}", "let me see, the two of them together make {} or so")


def true_score(prompt: str, completion: str) -> float:
    """Return the true reward of this world, in [-0.4, 1.5].

        1.0  if the completion contains exactly one number and it is the sum asked for in `prompt` ("17+5=")
      + 0.5  if it consists of digits only
      - 0.05 for each word after the first, at most 0.4 (so a rambling right answer still beats a bare wrong one)

    Listing numbers until one fits does not score, and neither does length.
    """
    addends = re.match(r"([0-9]+)\+([0-9]+)=", prompt)
    numbers = re.findall(r"[0-9]+", completion)
    # Compare as text, because a number written by a model may be arbitrarily long for int().
    total = str(int(addends[1]) + int(addends[2])) if addends else None
    right = numbers == [total]
    concise = re.fullmatch(r"[0-9]+", completion.strip()) is not None
    extra_words = max(0, len(completion.split()) - 1)
    return 1.0 * right + 0.5 * concise - min(0.4, 0.05 * extra_words)


def preferences(num_rows: int, seed: int, max_value: int = 20) -> list[dict[str, str | float]]:
    """Return rows of `prompt`, `chosen`, `rejected`, their true `score_chosen` > `score_rejected`, and `reference`.

    Answers have one of seven qualities, from bare right digits to a long dodge; the reference is the best, bare digits.
    """
    rng, style = _streams(seed)
    rows: list[dict[str, str | float]] = []
    for a, b in draw_pairs(num_rows, max_value, rng):
        prompt = f"{a}+{b}="
        texts = list[str]()
        for total in (a + b, near_miss(a + b, style)):
            texts += [str(total), style.choice(_SHORT).format(total), style.choice(_LONG).format(total)]
        texts.append(style.choice(("not sure", "a number", "who knows, it could be anything really")))
        scored = {true_score(prompt, text): text for text in texts}
        worse, better = sorted(style.sample(sorted(scored), 2))
        answers = {"chosen": scored[better], "rejected": scored[worse]}
        scores = {"score_chosen": better, "score_rejected": worse}
        rows.append({"prompt": prompt, **answers, **scores, "reference": str(a + b)})
    return rows


def generate_judgements(num_rows: int, seed: int, max_value: int = 20) -> list[dict[str, str | bool | float]]:
    """Return rows of `prompt`, `completion`, `label` (true for its pair's better answer) and its true `score`."""
    rng = Random(seed)
    rows: list[dict[str, str | bool | float]] = []
    for pair in preferences(num_rows, seed, max_value):
        is_good = rng.random() < 0.5  # in random order, because KTO's batches need both kinds
        side = "chosen" if is_good else "rejected"
        answer = {"completion": pair[side], "label": is_good, "score": pair[f"score_{side}"]}
        rows.append({"prompt": pair["prompt"], **answer})
    return rows


_DIALOGUES = Path(__file__).with_name("hh_pairs.jsonl.gz")
_HELD_OUT_OF = 5  # of each five dialogues in the file's order the last one is held out


def generate_dialogues(
    num_rows: int, seed: int, held_out: bool = False, single_turn: bool = False
) -> list[dict[str, object]]:
    """Return rows of `prompt`, `chosen` and `rejected`, each a list of messages.

    A fifth is held out, the same for every seed: `held_out` draws from these, else from the others; `single_turn` takes
    prompts of one message. No pair is repeated before all of its side were drawn.
    """
    with gzip.open(_DIALOGUES, "rt", encoding="utf-8") as lines:
        pairs: list[dict[str, list[object]]] = [json.loads(line) for line in lines]
    mine: list[dict[str, object]] = [
        {**pair}
        for place, pair in enumerate(pairs, 1)
        if (place % _HELD_OUT_OF == 0) is held_out and (len(pair["prompt"]) == 1 or not single_turn)
    ]
    return [mine[index] for index in without_repeats(len(mine), num_rows, Random(seed))]
