"""Read the shell blocks of a page: what to type, what they need, how they end.

A block with the fence `sh` is typed as it stands. In any other fence, lines that begin with `$ ` are typed, or if there
are none, lines that begin with `rlhf `, without the explanation after two blanks; in `text`, which is output, none. A
fence with the title `needs ...` is not typed, nor is a line that ends in `# needs ...`. A fence whose title is a file
name is that file. Comments of the page's source, which the reader does not see:

    <!-- before: words of a shell -->  typed before the next block: runs, files, folders that it names (at_hand.sh)
    <!-- exits: 2 -->                  exit code of the commands of the next block (2 if it shows `error:`)
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.documents.quoted_commands import ROOT, explained, typed_line

_PIECE = re.compile(
    r"^<!-- (?P<word>\w+):\s(?P<text>.*?)\s?-->|^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]*)"')
_NEEDS_HERE = re.compile(r"#(?: .*[;,])? needs ([^;,]+?)\s*$")
_COMMAND = re.compile(r"\s*(?:\S*\$ )?rlhf \S")
REASONS = re.compile(
    r"a GPU|GPUs|\d+ GPUs|two machines|Slurm|vLLM|a model server|a login(?: and a network)?|a network|a service manager"
    r"|half an hour|SmolLM2|a GGUF file|(?:SmolLM2 and )?reasoning-gym"
)
"""Reasons why a command cannot be typed on a laptop without a network."""
WORDS = ("before", "exits")


@dataclass(frozen=True)
class Block:
    """A fence of a page and the comments above it.

    text: the input of the shell; commands: its lines that begin with `rlhf`, as quoted; unread: lines that look like
    commands and are neither typed nor marked.
    """

    place: str
    text: str = ""
    commands: tuple[str, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()
    before: str = ""
    exits: int = 0
    file: str = ""


def pages() -> list[Path]:
    """Return all documents except AGENTS.md, whose commands another test types."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str, name: str) -> list[Block]:
    """Return the blocks of a page in order.

    Raise ValueError for an unknown comment, or one that stands above no block.
    """
    found, comments = [], {}
    for piece in _PIECE.finditer(text):
        place = f"{name}:{text[: piece.start()].count(chr(10)) + 1}"
        if (word := piece["word"]) is not None:
            if word not in WORDS or word in comments:
                raise ValueError(f"{place}: <!-- {word}: unknown or repeated comment; known: {', '.join(WORDS)}")
            comments[word] = piece["text"].strip()
            continue
        block = _block(place, piece["info"], piece["body"], comments)
        if block.commands or block.file or comments:
            if comments and not block.commands:
                raise ValueError(f"{place}: no command is typed in the block below {', '.join(comments)}")
            comments = {}
        found.append(block)
    if comments or text.count("<!--") != sum(piece["word"] is not None for piece in _PIECE.finditer(text)):
        raise ValueError(f"{name}: unknown comment, or a comment above no block")
    return found


def _block(place: str, info: str, body: str, comments: dict[str, str]) -> Block:
    title = (_TITLE.search(info) or ["", ""])[1]
    if title and not title.startswith("needs "):
        return Block(place, text=body, file=title)
    lines = body.replace("\\\n", "\\\0").splitlines()
    if info.strip() == "text":
        return Block(place)
    if title:
        whole = [explained(line.replace("\\\0", " ")) for line in lines if _COMMAND.match(line)]
        return Block(place, needs=tuple((command, title.removeprefix("needs ")) for command in whole))
    is_shell = info.strip() == "sh"
    has_prompts = any(line.startswith("$ ") for line in lines)
    typed, commands, needs, unread = [], [], [], []
    for line in lines:
        reason = _NEEDS_HERE.search(line)
        command = typed_line(line, is_shell=is_shell, has_prompts=has_prompts)
        if reason:
            needs.append((explained(line), reason[1]))
        elif command is not None:
            typed.append(command.replace("\\\0", "\\\n"))
            if command.startswith("rlhf "):
                commands.append(command.replace("\\\0", " "))
        elif _COMMAND.match(line) and not (has_prompts and line.startswith(" ")):
            unread.append(line)
    exits = int(comments.get("exits", 2 if any(line.startswith("error:") for line in lines) else 0))
    return Block(
        place,
        "\n".join(typed) + "\n" if commands or is_shell else "",
        tuple(commands),
        tuple(needs),
        tuple(unread),
        comments.get("before", ""),
        exits,
    )


def script_of(page: list[Block]) -> str:
    """Return the shell script of a page: before each block what it needs, files as they are shown."""
    parts = []
    for block in page:
        if block.file:
            file = shlex.quote(block.file)
            parts.append(f"mkdir -p $(dirname {file})\ncat > {file} <<'END_OF_FILE'\n{block.text}END_OF_FILE\n")
        if block.before:
            parts.append(f"at='before {block.place}' exits=0\n{block.before}\n")
        if block.text and not block.file:
            parts.append(f"at={block.place} exits={block.exits}\n{block.text}")
    return "".join(parts)


def type_script(script: str, place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script that may call "$PYTHON" until a command fails; return its output and exit code."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", **variables}
    words = ["bash", "-euc", script]
    return subprocess.run(
        words, cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
