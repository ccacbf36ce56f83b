"""Read UTF-8 text, plain or gzip, line by line, with the line number in every error."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rlhf_cli.errors import DataError, Prose

_BOM = b"\xef\xbb\xbf"


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield `(line number from 1, line with its line end)`.

    Raise DataError on bytes that are not UTF-8, on broken gzip and on an unreadable file.
    """
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, 1):
                yield number, _decode(raw.removeprefix(_BOM) if number == 1 else raw, f"{path}:{number}")
    except EOFError:
        hint = Prose("copy or download it again")
        raise DataError("the gzip file is cut off", where=f"{path}:{number + 1}", hint=hint) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError("the gzip file is damaged", where=f"{path}:{number + 1}", got=error) from None
    except OSError as error:
        raise DataError("the file cannot be read", where=str(path), got=error.strerror or error) from error


def shorten(text: str, around: int = 0, width: int = 80) -> str:
    """Return at most `width` characters of `text` with position `around` among them; an ellipsis marks cut ends."""
    text = text.rstrip("\r\n")
    start = max(0, min(around - width // 2, len(text) - width))
    return ("…" if start else "") + text[start : start + width] + ("…" if start + width < len(text) else "")


def _open(path: Path) -> IO[bytes]:
    # gzip.open's annotation does not say that it yields bytes in this mode.
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        shown = shorten(raw.decode("utf-8", errors="replace"), around=error.start)
        raise DataError(
            f"byte 0x{raw[error.start]:02x} at position {error.start + 1} of the line is not UTF-8",
            where=where,
            got=shown,
            hint=Prose("save the file as UTF-8; from Windows: iconv -f cp1252 -t utf-8 OLD > NEW"),
        ) from None
