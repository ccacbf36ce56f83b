"""Store verdicts for a rerun that judges only changed functions."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

from scripts.mutants.mutations import Mutant
from scripts.mutants.survivors import Verdict, key


class Kills:
    """Verdicts in a JSON file, valid while the function is unchanged and the test that killed the mutant exists.

    Survivors are stored only if they are in `equivalent`. A run without `--keep-kills` judges all mutants again.
    """

    def __init__(self, file: Path, root: Path, equivalent: set[tuple[str, str, int]]) -> None:
        self._file, self._root, self._equivalent = file, root, equivalent
        self._known: dict[str, tuple[str, float, str]] = json.loads(file.read_text()) if file.exists() else {}

    def verdict(self, mutant: Mutant) -> Verdict | None:
        """Return the verdict of an earlier run, or None."""
        known = self._known.get(self._key(mutant))
        if known is None:
            return None
        verdict = Verdict(mutant, *known, is_kept=True)
        if verdict.lives:
            return verdict if key(mutant) in self._equivalent else None
        return verdict if not verdict.by or self.killers_file(mutant) else None

    def killers_file(self, mutant: Mutant) -> str | None:
        """Return the file of the test that killed it last, or None if it is gone."""
        file, _, test = self._known.get(self._name(mutant), ("", 0, ""))[2].partition("::")
        function = test.split("::")[-1].split("[")[0]
        is_there = (self._root / file).is_file() and f"def {function}(" in (self._root / file).read_text("utf-8")
        return file if function and is_there else None

    def note(self, verdict: Verdict) -> None:
        """Store a verdict at once, because a run may be stopped at any mutant."""
        known = (verdict.outcome, verdict.seconds, verdict.by)
        self._known[self._key(verdict.mutant)] = self._known[self._name(verdict.mutant)] = known
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._known))

    def _key(self, mutant: Mutant) -> str:
        return self._name(mutant, function_around(mutant, (self._root / mutant.file).read_text("utf-8")).encode())

    @staticmethod
    def _name(mutant: Mutant, source: bytes = b"") -> str:
        return hashlib.sha256(source + repr(mutant.name).encode()).hexdigest()[:20]


def function_around(mutant: Mutant, source: str) -> str:
    """Return the source of the innermost function around a mutant, or of its statement in the module."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    around = [node for node in (*functions, *tree.body) if node.lineno <= mutant.line <= (node.end_lineno or 0)]
    return ast.get_source_segment(source, max(around, key=lambda node: (node in functions, node.lineno))) or ""
