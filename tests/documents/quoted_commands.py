"""Find the commands that documents quote: lines of fenced blocks that begin with `rlhf `, and those in sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_IN_A_SENTENCE = re.compile(r"`rlhf ([^`]+)`")
_COMMENT = re.compile(r"(?:\s{2,}\S.*|\s+# .*)$")
_ENDS = {"|", ">", "2>", "&&", ";", "&", "2>&1", "||"}


@dataclass(frozen=True)
class Quoted:
    """A quoted command: its place, its words after `rlhf`, whether the page shows it as refused."""

    place: str
    words: tuple[str, ...]
    is_refused: bool = False


def documents() -> list[Path]:
    """Return every document for users."""
    return [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]


def quoted_commands() -> list[Quoted]:
    """Return every command of every document."""
    return [command for document in documents() for command in _commands(document)]


def commands_in_sentences() -> list[Quoted]:
    """Return every command in backticks in a text once, often with a placeholder."""
    found: dict[str, str] = {}
    for document in documents():
        text = document.read_text(encoding="utf-8")
        sentences = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
        for command in _IN_A_SENTENCE.finditer(sentences):
            place = f"{document.relative_to(ROOT)}:{sentences[: command.start()].count(chr(10)) + 1}"
            found.setdefault(" ".join(command[1].split()), place)
    return [Quoted(place, tuple(shlex.split(words))) for words, place in found.items()]


def commands_of_experiments() -> list[Quoted]:
    """Return every command in the comments of conf/exp."""
    found = []
    for file in sorted((ROOT / "conf" / "exp").glob("*.yaml")):
        comments = [line.lstrip("# ") for line in file.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
        lines = re.sub(r" \\\n", " ", "\n".join(comments)).splitlines()
        found += [Quoted(f"conf/exp/{file.name}", _words(line)) for line in lines if line.startswith("rlhf ")]
    return found


def _commands(document: Path) -> Iterator[Quoted]:
    text = document.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(text):
        line_number = text[: fence.start(3)].count("\n") + 1
        lines = fence[3].splitlines()
        for offset, line in enumerate(lines):
            command = line.strip().removeprefix("$ ")
            if not command.startswith("rlhf "):
                continue
            while command.endswith("\\") and offset + 1 < len(lines):
                offset += 1
                command = command[:-1].rstrip() + " " + lines[offset].strip()
            is_refused = offset + 1 < len(lines) and lines[offset + 1].strip().startswith("error:")
            yield Quoted(f"{document.relative_to(ROOT)}:{line_number + offset}", _words(command), is_refused)


def explained(line: str) -> str:
    """Return a quoted command without its prompt and its explanation."""
    return _COMMENT.sub("", line.strip().removeprefix("$ "))


def typed_line(line: str, *, is_shell: bool, has_prompts: bool) -> str | None:
    """Return the part of a line that is typed, or None for output."""
    if is_shell:
        return line
    if has_prompts:
        return line.removeprefix("$ ") if line.startswith("$ ") else None
    return explained(line) if line.startswith("rlhf ") else None


def _words(command: str) -> tuple[str, ...]:
    """Return the words of a command without its explanation and without pipes and redirections."""
    words = shlex.split(_COMMENT.sub("", command), comments=True)
    end = next((place for place, word in enumerate(words) if word in _ENDS), len(words))
    return tuple(words[1:end])
