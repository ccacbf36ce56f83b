"""A real shell at a terminal of its own: types, presses Tab, and reads what then stands on its line."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from pathlib import Path

_BEGIN, _END = "<<LINE ", " LINE>>"
_BASH = rf"""
PS1='$ '
bind 'set bell-style none'
bind 'set completion-query-items 0'
bind 'set page-completions off'
show_line() {{ printf '\n%s%s%s\n' '{_BEGIN}' "$READLINE_LINE" '{_END}'; }}
bind -x '"\C-x\C-e": show_line'
"""
_ZSH = rf"""
PS1='$ '
unsetopt beep
LISTMAX=1000
show_line() {{ print; print -r -- '{_BEGIN}'"$BUFFER"'{_END}'; zle redisplay; }}
zle -N show_line
bindkey -e
bindkey '^X^E' show_line
"""
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07|\x08")


class TypedShell:
    """An interactive bash or zsh in a folder. `line(text)` is what the line has become after a Tab behind `text`."""

    def __init__(self, shell: str, folder: Path, *, complete: bool = True) -> None:
        start = folder / f".{shell}_start"
        script = f'eval "$(rlhf completion {shell})"\n' if complete else ""
        start.write_text((_BASH if shell == "bash" else _ZSH) + script)
        self.shown = ""
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ |= {"TERM": "dumb" if shell == "zsh" else "xterm", "HOME": str(folder)}
            os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            flags = ["--noprofile", "--norc"] if shell == "bash" else ["-f"]
            os.execvp(shell, [shell, *flags, "-i"])
        self._pid = pid
        self._write(f"source {start.name}; echo rea''dy\n")
        self._read_until("ready")

    def line(self, text: str, *, tabs: int = 1) -> str:
        """Return what stands on the line when Tab was pressed behind `text`; the line is empty again afterwards."""
        self._write(text + "\t" * tabs)
        self._write("\x18\x05")
        shown = self._read_until(_END)
        self.shown = _CODES.sub("", shown.rpartition(_BEGIN)[0])
        self._write("\x15")
        return _CODES.sub("", shown.rpartition(_BEGIN)[2].partition(_END)[0])

    def close(self) -> None:
        """End the shell."""
        self._write("\x15\x04")
        self._write("exit\n")
        os.close(self._terminal)
        os.waitpid(self._pid, 0)

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _read_until(self, sign: str, *, limit_s: float = 60.0) -> str:
        read, began = "", time.monotonic()
        while sign not in read:
            assert time.monotonic() - began < limit_s, f"the shell never said {sign!r}:\n{read}"
            if select.select([self._terminal], [], [], 0.5)[0]:
                read += os.read(self._terminal, 65536).decode(errors="replace")
        return read
