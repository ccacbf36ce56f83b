"""Remembers which mutants were killed, for a rerun that judges the survivors alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from scripts.mutants.mutations import Mutant
from scripts.mutants.survivors import Verdict


class Kills:
    """Verdicts of mutants that were killed, kept in a JSON file; one is known as long as its source file is the same.

    That the test which killed it is still there is not asked: a run without `--keep-kills` judges all again.
    """

    def __init__(self, file: Path, root: Path) -> None:
        self._file, self._root = file, root
        self._known: dict[str, tuple[str, float, str]] = json.loads(file.read_text()) if file.exists() else {}

    def verdict(self, mutant: Mutant) -> Verdict | None:
        """Return the verdict of an earlier run, None where it was not killed in one."""
        known = self._known.get(self._key(mutant))
        return None if known is None else Verdict(mutant, *known)

    def note(self, verdict: Verdict) -> None:
        """Keep a verdict, at once: a run may be ended at any mutant."""
        key = self._key(verdict.mutant)
        if verdict.lives:
            self._known.pop(key, None)
        else:
            self._known[key] = (verdict.outcome, verdict.seconds, verdict.by)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._known))

    def _key(self, mutant: Mutant) -> str:
        source = (self._root / mutant.file).read_bytes()
        return hashlib.sha256(source + repr(mutant.name).encode()).hexdigest()[:20]
