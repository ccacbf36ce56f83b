"""Write the embedded data of `data=hh_pairs`: the short dialogues of a file of Anthropic's preference pairs.

usage: hh_pairs.py HARMLESS.jsonl.gz rlhf_cli/data/worlds/hh_pairs.jsonl.gz

The source is harmless-base of github.com/anthropics/hh-rlhf (MIT licence; Bai et al. 2022, arXiv 2204.05862). Kept are
pairs of two different answers whose transcripts have at most 1,000 characters together.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

from rlhf_cli.data.dialogues import split_row

MOST_CHARACTERS = 1000
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def messages(transcript: str) -> list[dict[str, str]]:
    """Return the turns of a transcript that ends in an open "Assistant:"."""
    _, *parts = _TURN.split(transcript)
    turns = zip(parts[::2], parts[1::2], strict=True)
    return [{"role": _ROLES[who], "content": text.strip()} for who, text in turns][:-1]


def main(source: Path, out: Path) -> None:
    """Write the pairs as messages, in the order of the source. The same source gives the same bytes."""
    rows = []
    for line in gzip.decompress(source.read_bytes()).decode("utf-8").splitlines():
        pair = json.loads(line)
        if len(pair["chosen"]) + len(pair["rejected"]) > MOST_CHARACTERS:
            continue
        parts = [str(text) for text in split_row(pair).values()]  # prompt, chosen, rejected
        if parts[1].strip() == parts[2].strip() or not all(text.strip() for text in parts):
            continue
        answers = ([{"role": "assistant", "content": text.strip()}] for text in parts[1:])
        rows.append(dict(zip(("prompt", "chosen", "rejected"), (messages(parts[0]), *answers), strict=True)))
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    out.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
    print(f"{len(rows)} pairs, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
