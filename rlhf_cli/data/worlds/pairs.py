"""Generate preferences and single judgements over answers to sums, and give real pairs of dialogues.

A reward model learns from (chosen, rejected); `true_score` is what it should learn. A policy trained on the reward
model is over-optimised if the learnt reward still rises while the true one falls.

A thumb up or down is cheaper to collect than a comparison. The label still comes from the comparison: an answer is good
if it was the better one of its pair.

The dialogues are the short ones of Anthropic's harmless-base (scripts/hh_pairs.py, MIT licence; Bai et al. 2022, arXiv
2204.05862). They are about harm, and some are offensive.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from random import Random

from rlhf_cli.data.worlds.toy_tasks import draw_pairs, near_miss, without_repeats

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


def generate(num_rows: int, seed: int, max_value: int = 20) -> list[dict[str, str | float]]:
    """Return rows of `prompt`, `chosen`, `rejected`, their true `score_chosen` > `score_rejected`, and `reference`.

    Both answers are drawn from seven levels of quality, from bare right digits to a long-winded dodge. The reference is
    the sum in bare digits, the best answer there is.
    """
    rng = Random(seed)
    # A separate random stream, so that the pairs are those of toy_sums and the first n rows do not depend on num_rows.
    style = Random(rng.getrandbits(64))
    rows: list[dict[str, str | float]] = []
    for a, b in draw_pairs(num_rows, max_value, rng):
        prompt = f"{a}+{b}="
        scored = {true_score(prompt, text): text for text in _candidates(a + b, style)}
        worse, better = sorted(style.sample(sorted(scored), 2))
        answers = {"chosen": scored[better], "rejected": scored[worse]}
        scores = {"score_chosen": better, "score_rejected": worse}
        rows.append({"prompt": prompt, **answers, **scores, "reference": str(a + b)})
    return rows


def _candidates(total: int, rng: Random) -> list[str]:
    wrong = near_miss(total, rng)
    return [
        str(total),
        rng.choice(_SHORT).format(total),
        rng.choice(_LONG).format(total),
        str(wrong),
        rng.choice(_SHORT).format(wrong),
        rng.choice(_LONG).format(wrong),
        rng.choice(("not sure", "a number", "who knows, it could be anything really")),
    ]


def generate_judgements(num_rows: int, seed: int, max_value: int = 20) -> list[dict[str, str | bool | float]]:
    """Return rows of `prompt`, `completion`, `label` (true for its pair's better answer) and its true `score`."""
    rng = Random(seed)
    rows: list[dict[str, str | bool | float]] = []
    for pair in generate(num_rows, seed, max_value):
        is_good = rng.random() < 0.5  # in random order, because KTO's batches need both kinds
        side = "chosen" if is_good else "rejected"
        answer = {"completion": pair[side], "label": is_good, "score": pair[f"score_{side}"]}
        rows.append({"prompt": pair["prompt"], **answer})
    return rows


_DIALOGUES = Path(__file__).with_name("hh_pairs.jsonl.gz")
_HELD_OUT = 5
"""Of each five dialogues in the file's order the last one is held out."""


def generate_dialogues(
    num_rows: int, seed: int, held_out: bool = False, single_turn: bool = False
) -> list[dict[str, object]]:
    """Return rows of `prompt`, `chosen` and `rejected`, each a list of messages.

    A fifth of the dialogues is held out, the same ones for every seed: `held_out` draws from these, else from the
    others. `single_turn` draws only those whose prompt is one message. No pair is repeated before all of its side were
    drawn.
    """
    with gzip.open(_DIALOGUES, "rt", encoding="utf-8") as lines:
        pairs: list[dict[str, list[object]]] = [json.loads(line) for line in lines]
    mine: list[dict[str, object]] = [
        {**pair}
        for place, pair in enumerate(pairs, 1)
        if (place % _HELD_OUT == 0) is held_out and (len(pair["prompt"]) == 1 or not single_turn)
    ]
    return [mine[index] for index in without_repeats(len(mine), num_rows, Random(seed))]
