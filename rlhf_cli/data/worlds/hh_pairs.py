"""Preference pairs over real dialogues: the short ones of Anthropic's harmless-base (scripts/hh_pairs.py, MIT licence).

Bai et al. 2022, arXiv 2204.05862. The dialogues are about harm, and some are offensive.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from rlhf_cli.data.worlds.toy_tasks import without_repeats

_FILE = Path(__file__).with_name("hh_pairs.jsonl.gz")
_HELD_OUT = 5
"""Of each five dialogues in the file's order the last one is held out."""


def generate(num_rows: int, seed: int, held_out: bool = False, single_turn: bool = False) -> list[dict[str, object]]:
    """Return rows of `prompt`, `chosen` and `rejected`, each a list of messages.

    A fifth of the dialogues is held out, the same ones for every seed: `held_out` draws from these, else from the
    others. `single_turn` draws only those whose prompt is one message. No pair is repeated before all of its side were
    drawn.
    """
    with gzip.open(_FILE, "rt", encoding="utf-8") as lines:
        pairs: Sequence[dict[str, list[object]]] = [json.loads(line) for line in lines]
    mine: list[dict[str, object]] = [
        {**pair}
        for place, pair in enumerate(pairs, 1)
        if (place % _HELD_OUT == 0) is held_out and (len(pair["prompt"]) == 1 or not single_turn)
    ]
    return [mine[index] for index in without_repeats(len(mine), num_rows, Random(seed))]
