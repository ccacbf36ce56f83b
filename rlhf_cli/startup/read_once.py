"""Spares the training libraries what they read twice, or for nothing, while they are imported.

Neither changes what anybody gets: the one is handed what was read before, the other reads when it is asked.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rlhf_cli.for_a_while import with_values

Structure = dict[frozenset[str], dict[str, set[str]]]
"""Backends -> module below `transformers.models` -> the names it exports."""

_PREFIX = "models"


class _WhenAsked(Mapping[str, list[str]]):
    """Package -> the names of the distributions it may come from; the files of all that are installed are read last.

    What has a package's own name and says that it brings it is the only one that is named then: it is the one that
    TRL and transformers take, whatever else brings files for that package.
    """

    def __init__(self, read: Callable[[], Mapping[str, list[str]]]) -> None:
        self._read = read
        self._found: Mapping[str, list[str]] | None = None

    def _mapping(self) -> Mapping[str, list[str]]:
        if self._found is None:
            self._found = self._read()
        return self._found

    def __getitem__(self, package: str) -> list[str]:
        if self._found is None and (name := _of_the_same_name(package)) is not None:
            return [name]
        return self._mapping()[package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())


def _of_the_same_name(package: str) -> str | None:
    """Return the name of the distribution that is called as the package is and says that it brings it, else None."""
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    name = distribution.metadata["Name"]
    brings = (distribution.read_text("top_level.txt") or "").split()
    return name if package in brings and name in (package, package.replace("_", "-")) else None


@contextlib.contextmanager
def distributions_when_asked() -> Iterator[None]:
    """Open a context in which `importlib.metadata.packages_distributions()` reads no more than it is asked for.

    TRL calls it when it is imported, which reads what every installed distribution has, and asks for two of them.
    """
    read = importlib.metadata.packages_distributions
    with with_values(importlib.metadata, packages_distributions=lambda: _WhenAsked(read)):
        yield


def read_models_once() -> None:
    """Import `transformers.models` with what `import transformers` has read of its 1,600 files a moment ago.

    transformers reads every file of its models for the names they export, for itself and again for `models`: the same
    names, of which the first have `models.` before them. Where it does not do so any more it is left alone.
    """
    import transformers
    from transformers.utils import import_utils

    if "transformers.models" in sys.modules:
        return
    folder = Path(transformers.__file__).parent / _PREFIX
    define = import_utils.define_import_structure
    cached = getattr(define, "cache_info", None)
    if cached is None:
        return
    known = cached().hits
    whole: Structure = define(folder, prefix=_PREFIX)
    if cached().hits == known:
        return  # it was read for nothing: transformers no longer asks in these words

    def of_models(module_path: str | Path, prefix: str | None = None) -> Structure:
        if prefix is None and Path(module_path) == folder / "__init__.py":
            return without_prefix(whole)
        structure: Structure = define(module_path, prefix)
        return structure

    with with_values(import_utils, **{define.__name__: of_models}):
        import transformers.models


def without_prefix(whole: Structure) -> Structure:
    """Return of the structure of `transformers` what lies in `models`, as `models` itself would name it."""
    start = f"{_PREFIX}."
    return {
        backends: {name.removeprefix(start): set(names) for name, names in modules.items() if name.startswith(start)}
        for backends, modules in whole.items()
    }
